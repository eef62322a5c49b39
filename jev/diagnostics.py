"""`x_diagnostics`: how an answer came about, and with "full" what it takes to reproduce it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from jev.decide import Reads, argmax, entropy
from jev.plan import Group, Unit

if TYPE_CHECKING:
    from jev.calibration.apply import Active
    from jev.run import Run


def diagnostics(run: Run, reads: dict[str, Reads]) -> dict[str, Any]:
    """Build the diagnostics of a finished run. Times are milliseconds, entropies nats."""
    plan, request = run.plan, run.plan.request
    groups = {question: group for group in plan.groups for question in group.questions}
    prefixes: dict[bytes, Unit] = {}
    for unit in plan.units:
        prefixes.setdefault(run.key_of(unit), unit)
    report: dict[str, Any] = {
        "layout": request.layout,
        "probability_semantics": "conditional_label_softmax_temperature_1"
        if plan.calibration is None
        else "conditional_label_softmax_calibrated",
        "calibration": None if plan.calibration is None else plan.calibration.name,
        "entropy_semantics": "conditional_label_entropy_nats",
        "seed": request.seed,
        "samples": {
            "policy": "auto" if request.samples == "auto" else "fixed",
            "n": None if request.samples == "auto" else request.samples,
            "auto_max": request.auto_max,
            "auto_threshold": request.auto_threshold,
        },
        "permutations": request.permutations,
        "reads": sum(map(len, run.readings.values())),
        "prefixes": {"used": len(prefixes), "cached": run.cached_prefixes},
        "prefix_tokens": sum(len(unit.prefix) for unit in prefixes.values()),
        "timing": {
            "total_ms": round((time.perf_counter() - run.started) * 1000, 3),
            "prefill_ms": round(run.prefill_s * 1000, 3),
            "read_ms": round(run.read_s * 1000, 3),
            "steps": run.steps,
        },
        "evidence": [
            {
                "name": one.name,
                "kind": one.kind,
                "notes": list(one.notes),
                "text_characters": len(one.text),
                "pictures": len(one.pictures),
                "sampled": one.sampled,
                "sha256": one.sha256,
            }
            for one in plan.evidence
        ],
        "questions": {
            name: _question(name, groups.get(name), reads.get(name), run, full=request.diagnostics == "full")
            for name in request.questions
        },
    }
    if request.diagnostics == "full":
        keys = list(prefixes)
        report["prefix_token_ids"] = [list(unit.prefix) for unit in prefixes.values()]
        report["units"] = [
            {
                "questions": list(group.questions),
                "prefix": keys.index(run.key_of(unit)),
                "branch_token_ids": list(unit.branch),
                "canvas_token_ids": list(unit.canvas),
                "slots": [slot.position for slot in unit.slots],
                "label_token_ids": [list(slot.labels) for slot in unit.slots],
                "label_order": [list(slot.order) for slot in unit.slots],
                "noise_token_ids": [
                    list(unit.noise_ids(number)) for number in range(len(run.readings[id(unit)]))
                ],
            }
            for group in plan.groups
            for unit in group.units
        ]
    return report


def _calibration(name: str, mean: list[float], calibration: Active | None) -> dict[str, Any]:
    """What a question's probabilities were before its calibration, and what that does; else nothing."""
    entry = None if calibration is None else calibration.entries.get(name)
    if entry is None:
        return {}
    about = {"temperature": entry.temperature, "bias": None if entry.bias is None else list(entry.bias)}
    return {"calibration": about, "raw_probabilities": mean}


def _question(name: str, group: Group | None, reads: Reads | None, run: Run, *, full: bool) -> dict[str, Any]:
    if group is None or reads is None:
        return {"reads": 0, "note": "a single alternative needs no read"}
    mean = reads.probabilities
    masses = [
        min(1.0, math.exp(reading.log_mass[index]))  # rounding may lift it over 1
        for unit in group.units
        for index, slot in enumerate(unit.slots)
        if slot.question == name
        for reading in run.readings[id(unit)]
        if reading.log_mass is not None
    ]
    report: dict[str, Any] = {
        **_calibration(name, mean, run.plan.calibration),
        "reads": len(reads.rows),
        "entropy": entropy(mean),
        "read_entropies": [entropy(row) for row in reads.rows],
        "stderr": reads.standard_error,
        "agreement": reads.agreement,
        "label_mass": math.fsum(masses) / len(masses) if masses else None,
        "canvas_width": len(group.units[0].canvas),
        "branch_tokens": len(group.units[0].branch),
        "permutations": len(group.units),
    }
    if full:
        report["read_probabilities"] = [list(row) for row in reads.rows]
        report["read_winners"] = [argmax(row) for row in reads.rows]
    return report
