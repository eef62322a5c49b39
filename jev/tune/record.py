"""What training tells while it goes, and what it keeps of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

End: TypeAlias = Literal["steps", "time", "patience"]


@dataclass(frozen=True)
class Step:
    """One optimizer step: mean loss in nats and accuracy of its reads, its rate, rows and seconds."""

    step: int
    loss: float
    accuracy: float
    lr: float
    rows: int
    seconds: float


@dataclass(frozen=True)
class Look:
    """The held-out part after `step` steps: mean loss in nats and accuracy, without augmentation."""

    step: int
    loss: float
    accuracy: float
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """What the run will take, measured on a step and a look; None where only time ends it.

    Attributes:
        step_seconds: of one step.
        look_seconds: of one look at the held-out part.
        steps: that are left.
        seconds: that are left.
    """

    step_seconds: float
    look_seconds: float
    steps: int | None
    seconds: float


@dataclass
class Record:
    """How far a run is; all of it is saved.

    Attributes:
        step: optimizer steps taken.
        seconds: of training so far, over all of its processes' lives.
        steps: every step.
        looks: every look.
        best: the look with the least loss; its weights are the result.
        stale: looks since then.
        end: what ended it; None = it goes on.
    """

    step: int = 0
    seconds: float = 0.0
    steps: list[Step] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    best: Look | None = None
    stale: int = 0
    end: End | None = None

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Record:
        """Read what `asdict` made."""
        return cls(
            step=saved["step"],
            seconds=saved["seconds"],
            steps=[Step(**one) for one in saved["steps"]],
            looks=[Look(**one) for one in saved["looks"]],
            best=None if saved["best"] is None else Look(**saved["best"]),
            stale=saved["stale"],
            end=saved["end"],
        )


Event: TypeAlias = Forecast | Step | Look
