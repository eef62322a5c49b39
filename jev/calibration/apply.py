"""A calibration at work: which one a request means, whether it fits, what it makes of probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from jev.calibration.file import Calibration, Entry
from jev.calibration.signature import signatures
from jev.errors import InvalidRequestError
from jev.schemas import Issue, Question, SystemOneRequest, Warning, alternatives


class Identified(Protocol):
    """A model that says who it is (`jev.calibration.identity.Identity` does)."""

    @property
    def model(self) -> str:
        """Its name."""
        ...

    @property
    def weights(self) -> str:
        """Digest of its weights."""
        ...

    @property
    def prompt(self) -> str:
        """Digest of its prompts."""
        ...

    @property
    def precision(self) -> str:
        """Precision that it computes in; "" if that is not known."""
        ...


@dataclass(frozen=True)
class Active:
    """The calibration of one request.

    Attributes:
        name: as the request says it.
        entries: by question id; a question that is not in it is answered as it is.
        warnings: one for each question that could have been calibrated and is not.
    """

    name: str
    entries: Mapping[str, Entry]
    warnings: tuple[Warning, ...] = ()

    def probabilities(self, question: str, raw: Sequence[float]) -> list[float]:
        """The question's probabilities, calibrated if there is an entry for it."""
        entry = self.entries.get(question)
        return list(raw) if entry is None else calibrated(raw, entry)


def activate(
    request: SystemOneRequest, loaded: Mapping[str, Calibration], identity: Identified
) -> Active | None:
    """The calibration that `request` asks for, checked against the model; None if it asks for none.

    Raises:
        InvalidRequestError: no calibration has that name, it was fitted with another model or other
            prompts, or, with `strict`, it does not cover a question.
    """
    name = request.calibration
    if name is None:
        return None
    shown = repr(name[:200])
    if name not in loaded:
        there = f"; loaded: {', '.join(sorted(loaded))[:500]}" if loaded else ""
        raise InvalidRequestError.at("calibration", msg=f"No calibration named {shown} is loaded{there}")
    calibration = loaded[name]
    reason = mismatch(calibration, identity)
    if reason is not None:
        raise InvalidRequestError.at("calibration", msg=f"Calibration {shown} {reason}")
    entries = {entry.signature: entry for entry in calibration.questions}
    known = signatures(request)
    covered = {key: entries[sign] for key, sign in known.items() if sign in entries}
    for key, entry in covered.items():
        check_labels(entry, request.questions[key], name)
    missing = [
        key
        for key, question in request.questions.items()
        if key not in covered and len(alternatives(question)) > 1
    ]
    warnings = tuple(
        Warning(
            loc=["questions", key],
            msg=f"Calibration {shown} does not cover this question; its probabilities are uncalibrated",
            type="uncalibrated",
        )
        for key in missing
    )
    if warnings and request.strict:
        raise InvalidRequestError.of(
            [
                Issue(
                    loc=["body", *w.loc], msg=f"Calibration {shown} does not cover this question", type=w.type
                )
                for w in warnings
            ]
        )
    return Active(name, covered, warnings)


def mismatch(calibration: Calibration, identity: Identified) -> str | None:
    """Why a calibration does not belong to a model: what it was fitted with and what is here."""
    if calibration.weights != identity.weights:
        return (
            f"was fitted with model {calibration.model!r} (weights {calibration.weights[:12]}), "
            f"this is {identity.model!r} (weights {identity.weights[:12]})"
        )
    if calibration.prompt != identity.prompt:
        return (
            f"was fitted with other prompts (expected {calibration.prompt[:12]}, "
            f"found {identity.prompt[:12]}); fit it again"
        )
    return None


def check_labels(entry: Entry, question: Question, name: str) -> None:
    """Refuse an entry whose labels are not its question's, as in a file that was changed by hand.

    Raises:
        InvalidRequestError: naming the calibration and the question.
    """
    if entry.labels != alternatives(question):
        raise InvalidRequestError.at(
            "calibration",
            msg=f"Calibration {name[:200]!r} has other labels for question {', '.join(entry.ids)[:200]!r} "
            "than the question; the file was changed",
        )


def other_precision(calibration: Calibration, identity: Identified) -> str | None:
    """What to warn of where a model computes in another precision than the fit; None if it does not."""
    if calibration.precision in ("", identity.precision) or not identity.precision:
        return None
    return f"was fitted in {calibration.precision}, this is {identity.precision}"


def calibrated(raw: Sequence[float], entry: Entry) -> list[float]:
    """p^(1/T) exp(b), normalised to sum 1, in float64; what has probability 0 keeps it.

    Temperature scaling of Guo et al. 2017, section 4.2, on the logarithms of the mean distribution.
    """
    if entry.temperature == 1 and entry.bias is None:
        return list(raw)
    bias = entry.bias or (0.0,) * len(raw)
    scaled = [
        math.log(p) / entry.temperature + b if p > 0 else -math.inf for p, b in zip(raw, bias, strict=True)
    ]
    top = max(scaled)
    weights = [math.exp(value - top) for value in scaled]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
