"""What became of a row: answers or a reason, as they are kept in the ledger and written to the output."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jev.batch.readers import RowError
from jev.decide import choice_confidence, score_confidence
from jev.errors import APIError, JevError
from jev.schemas import SystemOneResponse

DECIMALS = 6
"""Decimals that the output has. What follows them depends on how the arithmetic was split up."""


@dataclass(frozen=True)
class Outcome:
    """What became of one row.

    Attributes:
        number: the row's number, from 1.
        id: the caller's name for it.
        body: `{"answers", "usage", "model"}` as on the wire, or `{"error": {...}}`.
        key: what the row asks, as a digest; None where it asks nothing that can be asked.
        certainty: probability of the least certain answer's winner; None without answers.
        copied: whether the answers are those of an equal row, for which nothing was read.
    """

    number: int
    id: str | None
    body: Mapping[str, Any]
    key: bytes | None = None
    certainty: float | None = None
    copied: bool = False

    @property
    def answered(self) -> bool:
        """Whether there are answers."""
        return "error" not in self.body

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens read for it: prompt and canvas; none for a copy."""
        if not self.answered or self.copied:
            return 0, 0
        usage = self.body["usage"]
        return usage["input_tokens"], usage["output_tokens"]


def answered(number: int, id: str | None, key: bytes | None, response: SystemOneResponse) -> Outcome:
    """The outcome of a row that was answered."""
    body: dict[str, Any] = {
        "answers": {name: answer.model_dump(mode="json") for name, answer in response.answers.items()},
        "usage": response.usage.model_dump(),
        "model": response.model,
    }
    sure = min(map(certainty_of, body["answers"].values()), default=None)
    return Outcome(number, id, body, key, sure)


def failed(
    number: int, id: str | None, error: RowError | JevError | OSError, key: bytes | None = None
) -> Outcome:
    """The outcome of a row that was not answered."""
    return Outcome(number, id, {"error": reason(error)}, key)


def reason(error: RowError | JevError | OSError) -> dict[str, Any]:
    """An error as it is kept: `type`, `message`, `status`, and `loc` where there is one."""
    if isinstance(error, RowError):
        found: dict[str, Any] = {"type": error.type, "message": error.message, "status": error.status}
        return found | ({"loc": list(error.loc)} if error.loc else {})
    if isinstance(error, APIError):
        found = {"type": error.error_type, "message": _message(error), "status": error.status}
        return found | ({"loc": error.issues[0].loc[1:]} if error.issues else {})
    kind = "connection_error" if isinstance(error, OSError) else "response_error"
    return {"type": kind, "message": str(error) or type(error).__name__, "status": 502}


def _message(error: APIError) -> str:
    """The first thing that is wrong with its path in the row, or what the error says."""
    if not error.issues:
        return error.message
    issue = error.issues[0]
    where = ".".join(map(str, issue.loc[1:]))
    return f"{where}: {issue.msg}" if where else issue.msg


def certainty_of(answer: Mapping[str, Any]) -> float:
    """Probability of a wire answer's winner: max(p, 1 - p) for a noul, else the largest probability."""
    if answer["type"] == "noul":
        return max(answer["noul"], 1.0 - answer["noul"])
    return max(answer["probabilities"].values())


def output_row(
    number: int, id: str | None, body: Mapping[str, Any], *, decimals: int | None = DECIMALS
) -> dict[str, Any]:
    """A row of the output: `{"row", "id"?, "answers", "usage", "model"}` or `{"row", "id"?, "error"}`.

    Args:
        number: the row's number.
        id: the caller's name for it.
        body: of the outcome.
        decimals: of probabilities and what follows from them; None = all.
    """
    row: dict[str, Any] = {"row": number}
    if id is not None:
        row["id"] = id
    if "error" in body:
        return row | {"error": {name: value for name, value in body["error"].items() if name != "status"}}
    answers = body["answers"]
    if decimals is not None:
        answers = {name: rounded(answer, decimals) for name, answer in answers.items()}
    return row | {"answers": answers, "usage": body["usage"], "model": body["model"]}


def rounded(answer: Mapping[str, Any], decimals: int) -> dict[str, Any]:
    """A wire answer with rounded probabilities; score and confidence are of the rounded numbers."""
    if answer["type"] == "noul":
        return {**answer, "noul": round(answer["noul"], decimals)}
    given = answer["probabilities"]
    kept = {name: round(p, decimals) for name, p in given.items()}
    found = {**answer, "probabilities": kept}
    values = list(kept.values())
    if kept == given:  # what has as few decimals already is passed on as it is
        return found
    if answer["type"] == "choice":
        found["confidence"] = round(choice_confidence(values), decimals)
    else:
        found["score"] = round(math.fsum(i * p for i, p in enumerate(values)), decimals)
        found["confidence"] = round(score_confidence(values), decimals)
    return found


def dumps(value: Any) -> str:
    """Compact JSON on one line; equal values give equal bytes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
