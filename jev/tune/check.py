"""Before anything is trained: rows read and checked, a teacher asked, memory estimated."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from jev.backends import open_backend
from jev.engine import Engine
from jev.errors import ResponseError
from jev.quality.cache import ReplyCache
from jev.quality.data import LabelledRow
from jev.tune import data
from jev.tune.data import Bad
from jev.tune.estimate import memory
from jev.tune.gather import Laid, lay_out, materials
from jev.tune.group import Group
from jev.tune.job import Checked, Doing, Job, Needs, Tell, Work
from jev.tune.keep import STATE
from jev.tune.place import TEACHER, Place
from jev.tune.recipe import TuneError
from jev.tune.teacher import Lesson, lessons
from jev.tune.trained import count, weight_bytes
from jev.tune.trainer import Stopped
from jev.unless import unless

T = TypeVar("T")

STOP_SECONDS = 0.2
"""How often it is asked whether to stop."""


def check(
    job: Job, place: Place, engine: Engine, tell: Tell, stop: Callable[[], bool] = lambda: False
) -> tuple[Checked, Work]:
    """Read all rows and find everything that is wrong with them; `tell` gets a `Checked`.

    Raises:
        Stopped: `stop` said so.
        TuneError: a row is bad and the job is strict, or none is left.
        DataError: a file cannot be read.
        ConnectionError, APIError, ResponseError: the teacher cannot be asked, or answers nothing.
    """
    tell(Doing("reading the rows"))
    found = data.read(job.data, job.questions, unanswered=job.teacher is not None, limit=job.limit)
    bad, weightless, overlap = list(found.bad), found.weightless, 0
    if isinstance(job.held_out, Path):
        others = data.read(job.held_out, job.questions)
        bad += others.bad
        learned, overlap = data.without_states_of(found.good, others.good)
        held_rows, held_file = others.good, others.file
    else:
        # Only reviewed answers can be measured; soft labels alone still show when to stop.
        answered = [row for row in found.good if row.gold] or [row for row in found.good if row.row.soft]
        _, held_rows = data.split(answered, job.held_out, job.recipe.seed)
        learned, _ = data.without_states_of(found.good, held_rows)
        held_file = found.file
    if bad and job.strict and job.teacher is not None:  # a teacher may cost money
        tell(Checked(len(learned), len(held_rows), tuple(bad), weightless, overlap, resumed=False))
        raise TuneError(f"{_rows(len(bad))} bad, and --strict was given; nothing was asked or trained")
    taught = _ask_teacher(job, place, learned, tell, stop)
    laid, worse = _lay_out(job, engine, learned, taught, found.file, tell, stop)
    held, worst = _lay_out(job, engine, held_rows, [Lesson({})] * len(held_rows), held_file, tell, stop)
    bad = sorted([*bad, *worse, *worst], key=lambda one: (one.file, one.row))
    checked = Checked(
        len(laid), len(held), tuple(bad), weightless, overlap, (place.training / STATE).exists()
    )
    tell(checked)
    if bad and job.strict:
        raise TuneError(f"{_rows(len(bad))} bad, and --strict was given; nothing was trained")
    if not laid:
        raise TuneError(f"{job.data}: no row is left to learn from")
    if not held and isinstance(job.held_out, Path):
        raise TuneError(f"{job.held_out}: no row is left to measure with; --held-out 0 holds nothing out")
    return checked, Work(laid, held)


def content(work: Work) -> str:
    """A digest of all that is learned and measured: states, attachments, questions, targets, order."""
    digest = hashlib.sha256()
    for part in (work.learned, work.held_out):
        digest.update(b"\0")
        for one in part:
            digest.update(f"{one.row.number} {one.row.state_key}".encode())
            for name, labelled in one.example.questions.items():
                asked = labelled.question.model_dump_json()
                digest.update(f"{name}\0{asked}\0{labelled.target}\0{labelled.weight}\0".encode())
    return digest.hexdigest()


def _lay_out(
    job: Job,
    engine: Engine,
    rows: Sequence[LabelledRow],
    taught: Sequence[Lesson],
    file: str,
    tell: Tell,
    stop: Callable[[], bool],
) -> tuple[list[Laid], list[Bad]]:
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if done % 100 == 0 or done == len(rows):
            tell(Doing("reading attachments and prompts", done, len(rows)))

    reading = materials(rows, job.settings, has_vision=engine.has_vision, done=tick)
    read = _run(reading, stop)
    return lay_out(rows, read, taught, engine.context, job.recipe, file)


def _ask_teacher(
    job: Job, place: Place, rows: Sequence[LabelledRow], tell: Tell, stop: Callable[[], bool]
) -> list[Lesson]:
    spec = job.teacher_spec
    if spec is None:
        return [Lesson({})] * len(rows)
    keyed = job.teacher_key is not None and spec.remote
    options = {"api_key": job.teacher_key} if keyed else {}
    try:
        backend = open_backend(spec.text, job.teacher_settings or job.settings, **options)
    except ValueError as error:
        raise TuneError(f"--teacher: {error}") from None
    place.hold()
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        tell(Doing("asking the teacher", done, len(rows)))

    async def ask() -> list[Lesson]:
        try:
            with ReplyCache(place.training / TEACHER, ours=True) as cache:
                return await lessons(
                    rows, backend, options=job.options, cache=cache, done=tick, known=place.begun
                )
        finally:
            await backend.aclose()

    taught = _run(ask(), stop)
    failures = [one.failure for one in taught if one.failure is not None]
    if failures and not any(one.soft for one in taught):
        raise ResponseError(f"--teacher: it answered none of {len(failures):,} rows: {failures[0]}")
    return taught


async def _stopped(stop: Callable[[], bool]) -> None:
    """Return once `stop` says so; it is asked now and then."""
    await asyncio.sleep(STOP_SECONDS)
    while not stop():  # noqa: ASYNC110 - a signal sets it, on any thread
        await asyncio.sleep(STOP_SECONDS)


def _run(work: Awaitable[T], stop: Callable[[], bool]) -> T:
    """What comes of some work; whatever it waits for is given up when it is to stop.

    Raises:
        Stopped: `stop` said so.
    """
    return asyncio.run(unless(_stopped(stop), work, Stopped("stopped before the first step")))


def estimate(job: Job, engine: Engine, work: Work, group: Group, tell: Tell) -> None:
    """Say what memory training will take; refuse what cannot fit.

    Raises:
        TuneError: naming both numbers.
    """
    trained = count(engine.model, job.recipe)
    low = job.recipe.precision == "bfloat16" or job.settings.dtype in ("bfloat16", "float16")
    needed = memory(
        engine.model.config.text,
        [one.size for one in work.learned],
        weight_bytes=weight_bytes(engine.model),
        trained=trained,
        rows=job.recipe.rows,
        batch=job.recipe.batch,
        bytes_each=2 if low else 4,
        shards=group.world if job.recipe.shard else 1,
    )
    if engine.model.device.type == "cuda":
        free = torch.cuda.mem_get_info(engine.model.device)[0]
        more = needed.total - needed.weights  # these are in memory already
    else:
        free = job.free  # from before the model was loaded
        more = group.world * needed.total  # they share the machine's memory
    tell(Needs(needed, trained, free))
    if free is not None and more > free and not job.force:
        raise TuneError(
            f"training needs about {more / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free: fewer "
            f"--rows take less (the largest forward has {needed.largest} of them); --force tries it anyway"
        )


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count} rows are"
