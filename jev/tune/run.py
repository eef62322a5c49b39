"""A whole run: rows checked, the base measured, trained, written, and what was written measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import torch

from jev.engine import Engine
from jev.loading import load_engine
from jev.model.lora import checkpoint_name, save_adapter
from jev.model.packed import ImageSpan
from jev.model.source import gguf_path
from jev.plan import PlacedImage
from jev.settings import Settings
from jev.tune import card
from jev.tune.check import check, content, estimate
from jev.tune.gather import Laid
from jev.tune.group import Group, shard
from jev.tune.job import Checked, Doing, Job, Tell, Work, facts
from jev.tune.keep import write_json
from jev.tune.measure import measure
from jev.tune.output import write_full
from jev.tune.place import Place
from jev.tune.recipe import TuneError
from jev.tune.record import Record
from jev.tune.trained import FORWARD_ONLY, adapter_from, trainable
from jev.tune.trainer import Stopped, Trainer

LOOK_ROWS = 128
"""Most held-out rows that are looked at while training; the figures before and after are over all."""

CONTENT = "rows, attachments and teacher's answers (digest)"
"""What a run must find again when it goes on, besides the files that `facts` names."""

ADAPTER = "tuned"
"""What the result is called where it is measured."""


def run(
    job: Job,
    *,
    group: Group | None = None,
    tell: Tell = lambda told: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Do a job, or go on with it; the report is what `tune.json` holds.

    Args:
        job: what to do.
        group: the processes that do it together. All call this with the same job; the first one reads,
            measures and writes.
        tell: told what happens (in the first process).
        stop: asked again and again whether to stop; while it trains between steps.

    Returns:
        The report; None in the other processes.

    Raises:
        TuneError: something in the job or its rows cannot be used; one sentence.
        Stopped: `stop` said so; the same job goes on later.
        JevError, CheckpointError: a file, the model or the teacher cannot be used.
    """
    place = Place(job.out)
    try:
        return _run(job, place, group or Group(), tell, stop)
    finally:
        place.close()


def _run(job: Job, place: Place, group: Group, tell: Tell, stop: Callable[[], bool]) -> dict[str, Any] | None:
    work: Work | None = None
    before: dict[str, Any] | None = None
    checked: Checked | None = None
    try:
        if group.first:
            place.check([*_inputs(job), *_read(job)], restart=job.restart)
            tell(Doing("loading the model"))
        engine = _load(job)
        if engine.precision:  # "auto" is decided once: what is measured is as it was trained
            pinned = job.settings.model_copy(update={"dtype": engine.precision})
            job = replace(job, settings=pinned, teacher_settings=job.teacher_settings or job.settings)
        if group.first:
            place.compare(facts(job, engine))
            if place.report is not None:
                return place.report
            checked, work = check(job, place, engine, tell, stop)
            estimate(job, engine, work, group, tell)
            place.begin({**facts(job, engine), CONTENT: content(work)})
            before = _before(job, place, engine, work, tell, stop)
    finally:
        # The others wait for this, whatever became of it.
        work = group.share(work if before is not None else None)
    if work is None:
        return None
    record, weights = _train(job, place, engine, work, group, tell, stop)
    if not group.first:
        return None
    assert checked is not None
    tell(Doing("writing the result"))
    _write(job, engine, weights)
    fingerprint, name = engine.fingerprint, engine.name
    del engine, weights
    tell(Doing("measuring the result"))
    after = _after(job, work, tell, stop)
    report = card.report(
        recipe=job.recipe,
        base={"name": checkpoint_name(job.base), "served_as": name, "weights": fingerprint},
        data=_told(job, checked, work),
        record=record,
        before=before or None,
        after=after,
    )
    (job.out / "README.md").write_text(card.text(report, job.out), encoding="utf-8")
    place.done(report)
    return report


def _inputs(job: Job) -> list[Path]:
    """The files of rows, which are read more than once.

    Raises:
        TuneError: one of them is a pipe or a device.
    """
    inputs = [job.data, *([job.held_out] if isinstance(job.held_out, Path) else [])]
    for file in inputs:
        if file.exists() and not file.is_file():
            raise TuneError(f"{file}: it is no regular file, and rows are read more than once")
    return inputs


def _read(job: Job) -> list[Path]:
    """Other files and folders that the run reads."""
    spec = job.teacher_spec
    teacher = None if spec is None or spec.remote else spec.target
    found = [job.base, job.settings.vision, None if teacher is None else Path(teacher), *job.reads]
    return [one for one in found if one is not None]


def _load(job: Job) -> Engine:
    if job.recipe.full and gguf_path(job.base) is not None:
        raise TuneError(
            f"{job.base}: --full is for checkpoint folders; an adapter can be trained on a GGUF file"
        )
    if job.recipe.full and job.settings.dtype != "float32":
        raise TuneError("all weights can only be trained in float32; an adapter can on any of them")
    if job.recipe.precision == "bfloat16" and job.settings.dtype == "float16":
        raise TuneError("--precision bfloat16 and --dtype float16 do not go together; leave one of them out")
    engine = load_engine(_plain(job.settings))
    if any(isinstance(one, FORWARD_ONLY) for one in engine.model.text.modules()):
        raise TuneError(
            f"the base's weights are in a form ({job.settings.dtype}) that this device only runs forward; an "
            "adapter can be trained with --dtype int8 or bfloat16"
        )
    return engine


def _plain(settings: Settings) -> Settings:
    """The base model and nothing on top: no adapter, no calibration, no prefix kept for later."""
    return settings.model_copy(update={"cache_bytes": 0, "adapters": {}, "calibrations": {}})


def _before(
    job: Job, place: Place, engine: Engine, work: Work, tell: Tell, stop: Callable[[], bool]
) -> dict[str, Any]:
    """Figures of the base model on the held-out part, measured once; empty if there is nothing to measure."""
    kept = place.training / "before.json"
    if kept.exists():
        return json.loads(kept.read_text(encoding="utf-8"))
    tell(Doing("measuring the base model"))
    found = measure(engine, work.held_out, job.options, done=_counter(tell, stop, "base")) or {}
    write_json(kept, found)
    return found


def _after(job: Job, work: Work, tell: Tell, stop: Callable[[], bool]) -> dict[str, Any] | None:
    """Figures of what was written, loaded anew as a server would."""
    if not any(one.row.gold for one in work.held_out):
        return None
    settings = _plain(job.settings)
    if job.recipe.full:
        engine, adapter = load_engine(settings.model_copy(update={"model": job.out, "name": None})), None
    else:
        engine = load_engine(settings.model_copy(update={"adapters": {ADAPTER: job.out}}))
        adapter = ADAPTER
    return measure(engine, work.held_out, job.options, adapter=adapter, done=_counter(tell, stop, "tuned"))


def _counter(tell: Tell, stop: Callable[[], bool], which: str) -> Callable[[int, int], None]:
    def done(count: int, total: int) -> None:
        tell(Doing(f"asking the {which} model about the held-out part", count, total))
        if stop():
            raise Stopped(f"stopped while the {which} model was measured")

    return done


def _train(
    job: Job, place: Place, engine: Engine, work: Work, group: Group, tell: Tell, stop: Callable[[], bool]
) -> tuple[Record, Mapping[str, torch.Tensor]]:
    model = engine.model
    parameters = trainable(model, job.recipe)
    if job.recipe.shard and group.world > 1:
        shard(model.text, group, model.device)
        if job.recipe.full:  # sharding has put others in their places
            parameters = {name: one for name, one in model.text.named_parameters() if name in parameters}

    def spans(images: tuple[PlacedImage, ...]) -> list[ImageSpan]:
        assert model.vision is not None or not images
        with torch.no_grad():
            return [ImageSpan(one.start, model.vision(one.patches)) for one in images]  # type: ignore[misc]

    trainer = Trainer(
        model,
        engine.context,
        parameters,
        [one.example for one in work.learned],
        [one.example for one in _looked_at(work.held_out, job.recipe.seed)],
        job.recipe,
        place.training,
        group=group,
        spans=spans,
        tell=tell,
        stop=stop,
        save_seconds=job.save_seconds,
    )
    record = trainer.run()
    return record, trainer.weights()


def _looked_at(held_out: Sequence[Laid], seed: int) -> list[Laid]:
    """Rows to look at while training: any of them, for a file may be in the order of its labels."""
    if len(held_out) <= LOOK_ROWS:
        return list(held_out)
    picked = Random(seed).sample(range(len(held_out)), LOOK_ROWS)  # noqa: S311 - no secret
    return [held_out[index] for index in sorted(picked)]


def _write(job: Job, engine: Engine, weights: Mapping[str, torch.Tensor]) -> None:
    base = checkpoint_name(job.base)
    if not job.recipe.full:
        save_adapter(
            job.out,
            adapter_from(weights, job.recipe),
            base_name=base,
            base_fingerprint=engine.fingerprint,
        )
        return
    write_full(
        job.out,
        weights,
        engine.model,
        job.base,
        name=job.name or job.out.resolve().name,
        description=f"{base}, tuned with jev {version('jev-server')}",
        stored=job.stored,
    )


def _told(job: Job, checked: Checked, work: Work) -> dict[str, Any]:
    teacher = job.teacher_spec
    return {
        "file": job.data.name,
        "held_out_file": job.held_out.name if isinstance(job.held_out, Path) else None,
        "teacher": None if teacher is None else teacher.shown,
        "learned_rows": checked.learned,
        "held_out_rows": checked.held_out,
        "looked_at_rows": min(LOOK_ROWS, checked.held_out),
        "weightless_rows": checked.weightless,
        "overlapping_rows": checked.overlap,
        "bad": [{"file": Path(one.file).name, "row": one.row, "reason": one.reason} for one in checked.bad],
        "questions": card.counts(work.learned, work.held_out),
    }
