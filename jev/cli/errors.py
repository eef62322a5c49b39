"""Every failure on purpose as one line on stderr and an exit code: 2 is the caller's to fix, 1 is not."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from jev.cli.console import one_line
from jev.errors import APIError, ConnectionError, JevError, ResponseError
from jev.model.errors import CheckpointError
from jev.schemas import Issue

MAX_ISSUES = 5

NO_PATH = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP, errno.ENOTDIR)
"""What is wrong with a path that cannot even be looked for."""


class UsageError(JevError, ValueError):
    """What was typed, or a file that it names, cannot be used."""


class FailureError(JevError):
    """Something outside the request failed, such as the model or its device."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn the errors that jev raises on purpose into one line on stderr and an exit code."""
    try:
        yield
    except (JevError, CheckpointError) as error:
        typer.echo(f"error: {one_line(message_of(error))}", err=True)
        raise typer.Exit(exit_code(error)) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, *NO_PATH):  # a broken pipe is Typer's
            raise
        where = "" if error.filename is None else f"{str(error.filename)[:200]}: "
        typer.echo(f"error: {one_line(where)}{error.strerror}", err=True)
        if error.errno == errno.ENOSPC:
            _drop_output()
            raise typer.Exit(1) from None
        raise typer.Exit(2) from None


def _drop_output() -> None:
    """Let what standard output still holds go nowhere: Python would try to write it once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def exit_code(error: Exception) -> int:
    """The exit code that an error stands for."""
    if isinstance(error, APIError):
        # Too slow (408) and too many (429) pass when tried again: nothing in the request is wrong.
        return 2 if error.status < 500 and error.status not in (408, 429) else 1
    return 1 if isinstance(error, (ConnectionError, ResponseError, FailureError, MemoryError)) else 2


def message_of(error: BaseException) -> str:
    """What an error says, on one or more lines; paths begin below the body."""
    if not isinstance(error, APIError):
        return str(error)
    message = _listed(error.issues) if error.issues else error.message
    notes = [] if error.request_id is None else [f"request {error.request_id}"]
    if error.retry_after is not None:
        notes.append(f"try again in {error.retry_after:g} s")
    return f"{message} ({', '.join(notes)})" if notes else message


def _listed(issues: Sequence[Issue]) -> str:
    """The issues with their paths below the body, such as `questions.team.criteria: ...`."""
    parts = []
    for issue in issues[:MAX_ISSUES]:
        path = issue.loc[1:] if issue.loc[:1] == ["body"] else issue.loc
        where = ".".join(map(str, path))
        parts.append(f"{where}: {issue.msg}" if where else issue.msg)
    if len(issues) > MAX_ISSUES:
        parts.append(f"and {len(issues) - MAX_ISSUES} more")
    return "; ".join(parts)
