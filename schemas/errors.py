"""Error bodies: a list of issues for a bad request, a type and a message for anything else."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ValidationError

QUESTION_TYPES = frozenset({"noul", "choice", "score"})

_MAPPINGS = ("questions", "assets", "criteria")

MAX_ISSUES = 100
"""Most issues that one error names; a last one counts the rest."""


class Issue(BaseModel):
    """One thing wrong with a request body; `loc` is the path to it and starts with "body"."""

    loc: list[str | int]
    msg: str
    type: str


class IssueList(BaseModel):
    """The body of a 422."""

    detail: list[Issue]


class ErrorDetail(BaseModel):
    """What went wrong, for programs (`error_type`) and for people (`message`)."""

    error_type: str
    message: str


class ErrorBody(BaseModel):
    """The body of every other error."""

    detail: ErrorDetail


def issues_of(error: ValidationError, prefix: Sequence[str | int] = ("body",)) -> list[Issue]:
    """Turn a pydantic error into issues whose `loc` is the path in the JSON the caller sent.

    Input values are left out: they may be large or private.
    """
    issues: list[Issue] = []
    rows = error.errors(include_url=False, include_context=False, include_input=False)
    for row in rows:
        loc = _wire_path(row["loc"])
        message = row["msg"].removeprefix("Value error, ")
        if row["type"] == "union_tag_invalid":  # pydantic's own message repeats the value
            message = "The type of a question should be 'noul', 'choice' or 'score'"
        issues.append(Issue(loc=[*prefix, *loc], msg=message, type=row["type"]))
    return issues


def capped(issues: Sequence[Issue]) -> list[Issue]:
    """The first `MAX_ISSUES` issues and, if there are more, one that counts them."""
    more = len(issues) - MAX_ISSUES
    if more <= 0:
        return list(issues)
    rest = Issue(loc=["body"], msg=f"{more} more issues are not listed", type="more_issues")
    return [*issues[:MAX_ISSUES], rest]


def _wire_path(loc: tuple[int | str, ...]) -> list[int | str]:
    """Drop what pydantic adds to a path: union tags, and `[key]` behind a bad key."""
    path = list(loc)
    if len(path) > 2 and path[0] == "questions" and path[2] in QUESTION_TYPES:
        del path[2]
    if path and path[0] in ("samples", "diagnostics"):
        del path[1:]
    # `[key]` stands behind the key of a mapping; in the key's own place it is a name like any other.
    for key in (1, 3):
        if len(path) > key + 1 and path[key + 1] == "[key]" and path[key - 1] in _MAPPINGS:
            del path[key + 1]
    return path
