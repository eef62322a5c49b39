"""The calibration file: temperatures by question signature, with what they were measured on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from jev.errors import JevError
from jev.schemas import BadRequestError, issues_of, parse_json

VERSION = 1
MAX_BYTES = 64 * 2**20
"""Largest calibration file that is read."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class CalibrationError(JevError, ValueError):
    """A calibration that cannot be fitted or used; the message is one sentence that says why."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figures(_Part):
    """How good probabilities are: nats, shares in [0, 1]; see docs/quality.md."""

    nll: Finite
    ece: Finite
    brier: Finite
    accuracy: Finite


class Entry(_Part):
    """One question's calibration.

    Attributes:
        signature: what the question is known by (`jev.calibration.signature`).
        ids: the ids it had in the data, for people.
        type: noul, choice or score.
        labels: names of its alternatives in order.
        method: none = cross-validation found that nothing helps, so the probabilities stay as they are.
        temperature: what the logarithms of the probabilities are divided by.
        bias: nats that are then added by label; None = nothing.
        pooled: whether the temperature is that of all questions of the type.
        rows: labelled rows of the question itself.
        states: how many different states these have.
        before: on these rows without calibration.
        after: on these rows, each calibrated by a fit that has not seen its state.
        notes: what else to know, one sentence each.
    """

    signature: Digest
    ids: tuple[str, ...]
    type: Literal["noul", "choice", "score"]
    labels: tuple[str, ...] = Field(min_length=2)
    method: Literal["none", "temperature", "temperature+bias"]
    temperature: float = Field(default=1.0, ge=0.01, le=100, allow_inf_nan=False)
    bias: tuple[Annotated[float, Field(ge=-100, le=100)], ...] | None = None
    pooled: bool = False
    rows: int = Field(ge=0)
    states: int = Field(ge=0)
    before: Figures | None = None
    after: Figures | None = None
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _bias_for_each_label(self) -> Entry:
        if self.bias is not None and len(self.bias) != len(self.labels):
            raise ValueError(f"bias has {len(self.bias)} numbers for {len(self.labels)} labels")
        return self


class Calibration(_Part):
    """A calibration file.

    Attributes:
        version: of the format.
        name: what whoever made it called it; it is served by the name that the server gives it.
        created: UTC, ISO 8601.
        model: name of the model that it was fitted with.
        weights: digest of that model's config and weights.
        prompt: digest of the prompts that it was asked with.
        precision: that it was fitted in, as the setting `dtype`; "" if not known.
        backend: what answered, such as "torch:bf16", for people.
        options: request fields of the fit, such as layout and samples.
        questions: the calibrated questions.
    """

    version: Literal[1] = VERSION
    name: str = Field(min_length=1)
    created: str
    model: str
    weights: Digest
    prompt: Digest
    precision: str = ""
    backend: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    questions: tuple[Entry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_entry_a_question(self) -> Calibration:
        signatures = [entry.signature for entry in self.questions]
        for index, signature in enumerate(signatures):
            if signature in signatures[:index]:
                raise ValueError(f"questions.{index}.signature: it is there twice")
        return self

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a calibration file.

        Raises:
            CalibrationError: naming the file and what is wrong with it.
        """
        try:
            with Path(path).open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise CalibrationError(f"{path}: cannot be read ({error.strerror})") from None
        if len(raw) > MAX_BYTES:
            raise CalibrationError(f"{path}: it has more than {MAX_BYTES} bytes")
        try:
            return cls.model_validate(parse_json(raw))
        except BadRequestError as error:
            raise CalibrationError(f"{path}: is no calibration ({error.issues[0].msg})") from None
        except ValidationError as error:
            issue = issues_of(error, ())[0]
            where = ".".join(map(str, issue.loc)) or "the file"
            raise CalibrationError(f"{path}: is no calibration ({where}: {issue.msg})") from None

    def save(self, path: str | Path) -> None:
        """Write the file, readable, whole or not at all.

        Raises:
            CalibrationError: naming the file and why it cannot be written.
        """
        file = Path(path)
        partial = file.with_name(f".{file.name}.partial")
        try:
            partial.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
            partial.replace(file)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise CalibrationError(f"{path}: cannot be written ({error.strerror})") from None


def load_calibrations(paths: Mapping[str, str | Path]) -> dict[str, Calibration]:
    """Read calibration files by the names that they are served under.

    Raises:
        CalibrationError: naming the calibration, the file and what is wrong with it.
    """
    found = {}
    for name, path in paths.items():
        if not name:
            raise CalibrationError(f"calibrations: the name for {path} is empty")
        try:
            found[name] = Calibration.load(path)
        except CalibrationError as error:
            raise CalibrationError(f"calibration {name!r}: {error}") from None
    return found
