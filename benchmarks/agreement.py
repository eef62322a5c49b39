"""Measure whether what is served decides like the original checkpoint under transformers.

Every row of labelled sets is asked as a closed question; the response's diagnostics name the token
ids of the prompt and the noise of the canvas, and transformers runs exactly these ids on the original
folder. Compared are (a) the served default, that is the embedded int8 model, over HTTP unless told
otherwise, and (b) the original folder itself loaded by this package in fp32.

    python benchmarks/agreement.py --data DATA --reference CHECKPOINT
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import (
    ServerProcess,
    add_json_option,
    console,
    machine,
    machine_line,
    parser_of,
    progress,
    say,
    table,
    verdict,
)
from labelled import Example, load, macro_f1
from rich.console import Console

from jev import ChoiceAnswer, Decision, Jev, LocalJev, NoulAnswer
from jev.backends.reference import Reference
from jev.engine import Engine

SETS = "trec,sst2,clinc150,sms_spam,tweeteval_emotion,banking77,snips"
AGREEMENT_TARGET = 0.99
"""Share of rows on which the embedded model must choose as the reference does."""
DISTANCE_TARGET = 1e-4
"""Largest difference of a probability between the folder served in fp32 and transformers."""
SEED = 42
FLIPS_SHOWN = 25

Prompt = tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, ...]]
"""Prompt ids, canvas ids, slot row, label ids."""


@dataclass(frozen=True)
class Row:
    """One question with what each side said, as probabilities over its alternatives."""

    set: str
    example: Example
    reference: tuple[float, ...]
    served: tuple[float, ...]
    reference_s: float
    served_s: float

    @property
    def distance(self) -> float:
        """Largest difference of a probability."""
        return max(abs(p - q) for p, q in zip(self.reference, self.served, strict=True))

    @property
    def agrees(self) -> bool:
        """Whether both choose the same alternative."""
        return top(self.reference) == top(self.served)


@dataclass
class Comparison:
    """All rows of one served model against the reference."""

    title: str
    short: str
    rows: list[Row] = field(default_factory=list)

    def summary(self, name: str | None = None) -> dict[str, Any]:
        """Numbers of one set, or of all rows for None."""
        rows = [row for row in self.rows if name in (None, row.set)]
        numbers: dict[str, Any] = {
            "rows": len(rows),
            "agreement": sum(row.agrees for row in rows) / len(rows),
            "mean_dp": _mean([row.distance for row in rows]),
            "max_dp": max(row.distance for row in rows),
            "reference_ms": 1000 * _mean([row.reference_s for row in rows]),
            "served_ms": 1000 * _mean([row.served_s for row in rows]),
        }
        for side in ("reference", "served"):
            predicted = [row.example.alternatives[top(getattr(row, side))] for row in rows]
            gold = [row.example.alternatives[row.example.gold] for row in rows]
            numbers[f"{side}_accuracy"] = sum(map(str.__eq__, gold, predicted)) / len(rows)
            if name is not None:
                numbers[f"{side}_macro_f1"] = macro_f1(gold, predicted)
        if name is None:
            # Labels of different sets are different things: the mean over the sets.
            for key in ("reference_macro_f1", "served_macro_f1"):
                numbers[key] = _mean([self.summary(one)[key] for one in self.sets])
        return numbers

    @property
    def sets(self) -> list[str]:
        """Names of the sets in order."""
        return list(dict.fromkeys(row.set for row in self.rows))

    @property
    def flips(self) -> list[dict[str, Any]]:
        """Rows on which the two choose differently, closest calls of the reference first."""
        found = [
            {
                "id": row.example.id,
                "reference": row.example.alternatives[top(row.reference)],
                "served": row.example.alternatives[top(row.served)],
                "gold": row.example.alternatives[row.example.gold],
                "reference_margin": margin(row.reference),
                "served_margin": margin(row.served),
                "max_dp": row.distance,
            }
            for row in self.rows
            if not row.agrees
        ]
        return sorted(found, key=lambda flip: flip["reference_margin"])


def top(probabilities: Sequence[float]) -> int:
    """Index of the largest, the first of equals."""
    return probabilities.index(max(probabilities))


def margin(probabilities: Sequence[float]) -> float:
    """How far the winner is ahead."""
    first, second, *_ = sorted(probabilities, reverse=True)
    return first - second


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def ask(client: Jev | LocalJev, example: Example) -> tuple[Decision, tuple[float, ...], float]:
    """Ask one question; returns the decision, its probabilities by alternative and the seconds."""
    started = time.perf_counter()
    decision = client.decide(
        example.state, {"label": example.question}, samples=1, seed=SEED, diagnostics="full"
    )
    elapsed = time.perf_counter() - started
    answer = decision["label"]
    if isinstance(answer, NoulAnswer):
        return decision, (answer.noul, 1 - answer.noul), elapsed
    assert isinstance(answer, ChoiceAnswer)
    return decision, tuple(answer.probabilities[name] for name in example.alternatives), elapsed


def prompt_of(decision: Decision) -> Prompt:
    """What the model was shown, from the diagnostics alone."""
    report = decision.diagnostics
    assert report is not None
    (unit,) = report["units"]
    (slot,), (labels,), (noise,) = unit["slots"], unit["label_token_ids"], unit["noise_token_ids"]
    assert unit["label_order"] == [list(range(len(labels)))]
    canvas = list(unit["canvas_token_ids"])
    canvas[slot] = noise[0]
    prompt = (*report["prefix_token_ids"][unit["prefix"]], *unit["branch_token_ids"])
    return prompt, tuple(canvas), slot, tuple(labels)


def timed(reference: Reference, prompt: Prompt) -> tuple[tuple[float, ...], float]:
    """Return the reference's probabilities and the seconds it took."""
    started = time.perf_counter()
    return tuple(reference.probabilities(*prompt)), time.perf_counter() - started


def compare(
    examples: dict[str, list[Example]],
    reference: Reference,
    served: list[tuple[Comparison, Jev | LocalJev]],
) -> None:
    """Ask every example of every side, row by row in turn, and fill the comparisons."""
    started = time.perf_counter()
    total, done = sum(map(len, examples.values())), 0
    for name, rows in examples.items():
        for example in rows:
            known: dict[Prompt, tuple[tuple[float, ...], float]] = {}
            for comparison, client in served:
                decision, probabilities, served_s = ask(client, example)
                prompt = prompt_of(decision)
                if prompt not in known:
                    known[prompt] = timed(reference, prompt)
                expected, reference_s = known[prompt]
                comparison.rows.append(Row(name, example, expected, probabilities, reference_s, served_s))
            done += 1
            if done % 100 == 0:
                progress(f"{done} of {total} rows, {time.perf_counter() - started:.0f} s")


@contextlib.contextmanager
def served_default(args: argparse.Namespace) -> Iterator[tuple[str, Jev | LocalJev]]:
    """The embedded model behind HTTP (a given server or one of its own), or in this process."""
    if args.in_process:
        yield "embedded int8 model, in process", LocalJev()
    elif args.url:
        with Jev(args.url) as client:
            yield f"{client.models()[-1].name} at {args.url}", client
    else:
        with ServerProcess(threads=args.threads) as server, Jev(server.url) as client:
            yield "embedded int8 model, `jev serve` over HTTP", client


def show(out: Console, comparison: Comparison) -> None:
    """Print a comparison by set, with all rows last, and its flips."""
    made = table(
        comparison.title,
        "set", "rows", "agreement", "mean dp", "max dp",
        "accuracy ref", "served", "macro-F1 ref", "served", "ms a row ref", "served",
    )  # fmt: skip
    for name in (*comparison.sets, None):
        numbers = comparison.summary(name)
        if name is None:
            made.add_section()
        made.add_row(
            name or "all",
            f"{numbers['rows']}",
            f"{100 * numbers['agreement']:.2f}%",
            f"{numbers['mean_dp']:.2e}",
            f"{numbers['max_dp']:.2e}",
            *(
                f"{numbers[f'{side}_{what}']:.3f}"
                for what in ("accuracy", "macro_f1")
                for side in ("reference", "served")
            ),
            f"{numbers['reference_ms']:.0f}",
            f"{numbers['served_ms']:.0f}",
        )
    out.print(made)
    if flips := comparison.flips:
        made = table(
            f"{len(flips)} rows chosen differently, by the reference's margin over its second choice",
            "row", "reference", "served", "gold", "margin ref", "served", "max dp",
        )  # fmt: skip
        for flip in flips[:FLIPS_SHOWN]:
            margins = (f"{flip[key]:.4f}" for key in ("reference_margin", "served_margin", "max_dp"))
            made.add_row(flip["id"], flip["reference"], flip["served"], flip["gold"], *margins)
        if len(flips) > FLIPS_SHOWN:
            made.add_row(f"and {len(flips) - FLIPS_SHOWN} more")
        out.print(made)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of labelled sets")
    parser.add_argument("--reference", type=Path, required=True, help="original checkpoint folder")
    parser.add_argument("--sets", default=SETS, help=f"names, comma separated (default {SETS})")
    parser.add_argument("--rows", type=int, default=2000, help="rows over all sets (default 2000)")
    parser.add_argument("--yes-no", action="store_true", help="ask sets of two labels as yes/no questions")
    parser.add_argument("--threads", type=int, help="torch threads here and in the server")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="a running server, instead of starting one")
    where.add_argument("--in-process", action="store_true", help="no server: the engine in this process")
    add_json_option(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = machine(args.threads)
    names = args.sets.split(",")
    share = -(-args.rows // len(names))
    examples = {name: load(args.data, name, share, yes_no=args.yes_no) for name in names}
    reference = Reference(args.reference)
    original = LocalJev(engine=Engine.load(args.reference))
    with served_default(args) as (title, default):
        a = Comparison(f"(a) {title}, against transformers fp32 on {args.reference.name}", "a")
        b = Comparison(f"(b) {args.reference.name} loaded in fp32, against transformers fp32 on it", "b")
        compare(examples, reference, [(a, default), (b, original)])

    all_a, all_b = a.summary(), b.summary()
    targets = {
        f"(a) agreement of at least {AGREEMENT_TARGET:.0%}": (
            f"{100 * all_a['agreement']:.2f}%",
            all_a["agreement"] >= AGREEMENT_TARGET,
        ),
        "(b) agreement of 100%": (f"{100 * all_b['agreement']:.2f}%", all_b["agreement"] == 1),
        f"(b) probabilities within {DISTANCE_TARGET:g}": (
            f"{all_b['max_dp']:.1e}",
            all_b["max_dp"] <= DISTANCE_TARGET,
        ),
    }
    report = {
        "machine": facts,
        "targets": {name: {"value": value, "met": met} for name, (value, met) in targets.items()},
        **{
            one.short: {
                "title": one.title,
                "all": one.summary(),
                "sets": {name: one.summary(name) for name in one.sets},
                "flips": one.flips,
            }
            for one in (a, b)
        },
    }
    if not say(report, args.json):
        return
    out = console()
    out.print(machine_line(facts))
    for one in (a, b):
        show(out, one)
    for name, (value, met) in targets.items():
        out.print(f"{name}: {value}, {verdict(met)}")


if __name__ == "__main__":
    main()
