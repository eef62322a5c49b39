"""What a run is asked for, what makes it that run and no other, and what is told while it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from jev.backends import BackendSpec
from jev.backends.base import reading_of
from jev.engine import Engine
from jev.model import embedded
from jev.schemas import Question
from jev.settings import Settings
from jev.tune.data import Bad
from jev.tune.estimate import Memory
from jev.tune.gather import Laid
from jev.tune.output import Stored
from jev.tune.place import digest
from jev.tune.recipe import Recipe
from jev.tune.record import Event
from jev.tune.teacher import parsed, spec_of
from jev.tune.trainer import SAVE_SECONDS


@dataclass(frozen=True)
class Job:
    """What was asked for.

    Attributes:
        data: the file of rows.
        out: the result's folder.
        recipe: hyper-parameters.
        settings: the base model, its device, and how attachments are read.
        questions: of rows that have none of their own.
        held_out: share of the states, or a file of rows.
        teacher: a backend's spec, or the address of a server.
        teacher_key: bearer key of that server.
        limit: read the first rows only.
        strict: refuse to train while any row is bad.
        force: train although memory seems too small.
        restart: throw away what is in `out`, if it is ours.
        stored: precision of a full checkpoint's tensors.
        name: what a full checkpoint calls itself; None = the name of `out`.
        free: bytes of free memory; None = not known.
        save_seconds: see `trainer.SAVE_SECONDS`.
        reads: other files that it was made of, which `out` must not hold.
        teacher_settings: of a teacher that runs here; None = `settings`.
    """

    data: Path
    out: Path
    recipe: Recipe
    settings: Settings
    questions: Mapping[str, Question] | None = None
    held_out: float | Path = 0.1
    teacher: str | None = None
    teacher_key: str | None = field(default=None, repr=False)
    limit: int | None = None
    strict: bool = False
    force: bool = False
    restart: bool = False
    stored: Stored = "float32"
    name: str | None = None
    free: int | None = None
    save_seconds: float = SAVE_SECONDS
    reads: tuple[Path, ...] = ()
    teacher_settings: Settings | None = None

    @property
    def base(self) -> Path:
        """The base checkpoint's folder."""
        return self.settings.model or embedded.path()

    @property
    def teacher_spec(self) -> BackendSpec | None:
        """The teacher's spec, if there is a teacher; TuneError if it is none."""
        return None if self.teacher is None else parsed(spec_of(self.teacher))

    @property
    def options(self) -> dict[str, Any]:
        """Fields of every request that the model is asked with."""
        return {} if self.recipe.instructions is None else {"instructions": self.recipe.instructions}


@dataclass(frozen=True)
class Doing:
    """A stage of the run, and how much of it is done."""

    what: str
    done: int = 0
    total: int | None = None


@dataclass(frozen=True)
class Checked:
    """What came of the rows.

    Attributes:
        learned: rows to learn from.
        held_out: rows to measure with.
        bad: everything that was left out for a reason that a person should see.
        weightless: rows of weight 0.
        overlap: rows left out because their state is in the held-out file.
        resumed: whether an earlier run goes on.
    """

    learned: int
    held_out: int
    bad: tuple[Bad, ...]
    weightless: int
    overlap: int
    resumed: bool


@dataclass(frozen=True)
class Needs:
    """The memory estimate, beside what is free."""

    memory: Memory
    trained: int
    free: int | None


Told: TypeAlias = Doing | Checked | Needs | Event
Tell: TypeAlias = Callable[[Told], None]


@dataclass(frozen=True)
class Work:
    """What the first process found, for all of them."""

    learned: Sequence[Laid]
    held_out: Sequence[Laid]


def facts(job: Job, engine: Engine) -> dict[str, Any]:
    """What makes it this run and no other, in plain values."""
    held_out = digest(job.held_out) if isinstance(job.held_out, Path) else job.held_out
    questions = {name: one.model_dump(mode="json") for name, one in (job.questions or {}).items()}
    teacher = job.teacher_spec
    return {
        **job.recipe.effective(),
        "data": digest(job.data),
        "limit": job.limit,
        "questions": questions or None,
        "held_out": held_out,
        "teacher": None if teacher is None else teacher.shown,
        "base": engine.fingerprint,
        "dtype": engine.precision or job.settings.dtype,
        "reading": reading_of(job.settings) | {"max_context": engine.max_context},
        "prompts": engine.identity.prompt,
        **({"store": job.stored, "name": job.name} if job.recipe.full else {}),
    }
