"""What decides a tuned model besides its data and its base: every hyper-parameter, in one object."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from jev.errors import JevError
from jev.schemas import Text, issues_of
from jev.tune.augment import Augmentation

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

LORA_LR = 1e-3
FULL_LR = 1e-4
STEPS = 500
"""What is trained when neither steps nor epochs nor minutes are given."""


class TuneError(JevError, ValueError):
    """A tuning run that cannot be; the message is one sentence that names what to change."""


class Recipe(BaseModel):
    """Hyper-parameters of a run.

    Attributes:
        full: train every weight of the text model; else a LoRA adapter.
        rank: of the adapter.
        alpha: the adapter's scale is alpha / rank; None = twice the rank.
        targets: projections that get an adapter; empty = all that can have one.
        lr: largest learning rate; None = 1e-3 for an adapter, 1e-4 for all weights.
        batch: states a step, in each process.
        rows: most rows (tokens) of one forward; a step's states are spread over as many as it takes.
        steps: optimizer steps.
        epochs: looks at every state.
        minutes: time, evaluations included. The least of these three ends the run.
        warmup: share of the run in which the learning rate rises; then it falls as a cosine.
        weight_decay: of matrices, as in AdamW.
        clip: largest norm of the gradient.
        draws: canvases of every question, with slot noise of their own.
        shuffle: see `Augmentation`.
        subset: see `Augmentation`.
        undescribed: see `Augmentation`.
        soft_weight: share of soft labels or a teacher where there is a reviewed answer as well.
        precision: bfloat16 = the forward's matmuls are in bf16, the weights stay as they are.
        every: steps from one look at the held-out part to the next; None = a tenth of the run, or
            more where `minutes` ends it and looks would take over a fifth of the time.
        patience: looks without a lower held-out loss after which the run ends; 0 = never.
        seed: decides the order of states, the augmentation, the slot noise and the adapter's start.
        instructions: request-wide instructions that the model will be served with.
        processes: that share each step; a step has `batch` states of each.
        shard: spread the weights over the processes (FSDP).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    full: bool = False
    rank: int = Field(default=16, ge=1, le=4096)
    alpha: Positive | None = None
    targets: tuple[str, ...] = ()
    lr: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    batch: int = Field(default=16, ge=1, le=65536)
    rows: int = Field(default=2048, ge=1)
    steps: int | None = Field(default=None, ge=0)
    epochs: Annotated[float, Field(gt=0, le=1e6)] | None = None
    minutes: Annotated[float, Field(gt=0, le=1e6)] | None = None
    warmup: Share = 0.05
    weight_decay: float = Field(default=0.01, ge=0, le=100, allow_inf_nan=False)
    clip: Positive = 1.0
    draws: int = Field(default=1, ge=1, le=32)
    shuffle: bool = True
    subset: Share = 0.3
    undescribed: Share = 0.2
    soft_weight: Share = 0.5
    precision: Literal["float32", "bfloat16"] = "float32"
    every: int | None = Field(default=None, ge=1)
    patience: int = Field(default=5, ge=0)
    seed: int = Field(default=0, ge=0, lt=2**32)
    instructions: Text | None = None
    processes: int = Field(default=1, ge=1, le=4096)
    shard: bool = False

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Make one of what was given; None counts as not given.

        Raises:
            TuneError: naming the field.
        """
        try:
            return cls(**{name: value for name, value in given.items() if value is not None})
        except ValidationError as error:
            issue = issues_of(error, prefix=())[0]
            raise TuneError(f"{'.'.join(map(str, issue.loc)) or 'options'}: {issue.msg}") from None

    @model_validator(mode="after")
    def _some_end(self) -> Self:
        if self.steps is None and self.epochs is None and self.minutes is None:
            object.__setattr__(self, "steps", STEPS)  # frozen, and not handed out yet
        return self

    @property
    def learning_rate(self) -> float:
        """The largest learning rate."""
        return self.lr if self.lr is not None else FULL_LR if self.full else LORA_LR

    @property
    def scale(self) -> float:
        """The adapter's alpha."""
        return self.alpha if self.alpha is not None else 2.0 * self.rank

    @property
    def augmentation(self) -> Augmentation:
        """How questions change from look to look."""
        return Augmentation(shuffle=self.shuffle, subset=self.subset, undescribed=self.undescribed)

    def effective(self) -> dict[str, Any]:
        """All of it as plain values, with what its defaults stand for; None where it has no meaning."""
        adapter = {"rank": self.rank, "alpha": self.scale, "targets": list(self.targets)}
        return {
            **self.model_dump(mode="json"),
            **(dict.fromkeys(adapter) if self.full else adapter),
            "lr": self.learning_rate,
        }

    def last_step(self, examples: int) -> int | None:
        """Steps that `steps` and `epochs` allow; None where only time ends the run.

        Args:
            examples: states to learn from.
        """
        ends = [] if self.steps is None else [self.steps]
        if self.epochs is not None:
            ends.append(max(1, round(self.epochs * examples / (self.batch * self.processes))))
        return min(ends) if ends else None
