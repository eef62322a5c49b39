"""Why a file could not be turned into evidence.

    ExtractError            (a ValueError: the file is at fault, unless said otherwise)
    ├── UnsupportedType     no reader for this kind of content, or not where it was put
    ├── LimitExceeded       over a limit; names the limit, its value and the actual number
    ├── Unreadable          damaged, encrypted, empty or not what its name says
    ├── MissingReader       an optional package is not installed; names it
    └── ServiceUnavailable  not the file's fault: a companion service or a worker failed

Every message is one sentence and never repeats content of the file.
"""

from __future__ import annotations

import copy
from typing import Any


class ExtractError(ValueError):
    """A file could not be turned into evidence; the message is one sentence."""

    def inside(self, where: str) -> ExtractError:
        """Return the same error with the part of the file that it is about, such as "attachment 2"."""
        copied = copy.copy(self)
        copied.args = (f"In {where}: {self}",)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        # By state: a subclass's arguments make up its message, which `inside` then changes.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[ExtractError], args: tuple[str], state: dict[str, Any]) -> ExtractError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class UnsupportedType(ExtractError):
    """There is no reader for this kind of content, or it does not belong where it was put."""


class Unreadable(ExtractError):
    """The file is damaged, encrypted, empty, or not what its name says."""


class MissingReader(ExtractError):
    """A reader needs a package that is not installed; the message names what to install."""


class ServiceUnavailable(ExtractError):
    """Something other than the file failed: a companion service, or the workers themselves."""


class LimitExceeded(ExtractError):
    """The file is over a limit.

    Attributes:
        limit: name of the field of `Limits`.
        allowed: its value.
        actual: the number found, or None where it is not known (a job stopped half-way).
        at_least: whether counting stopped at `actual`, so that the true number may be higher.
        together: whether `actual` counts the whole request up to the file, and not the file alone.
    """

    def __init__(
        self,
        limit: str,
        allowed: float,
        actual: float | None = None,
        *,
        unit: str = "",
        at_least: bool = False,
        together: bool = False,
    ) -> None:
        self.limit = limit
        self.allowed = allowed
        self.actual = actual
        self.unit = unit
        self.at_least = at_least
        self.together = together
        if actual is None:
            text = f"It needs more than the limit of {_number(allowed)} {unit}".rstrip() + f" ({limit})"
        else:
            more = "at least " if at_least else ""
            whose = "With it the request has" if together else "It has"
            found = f"{whose} {more}{_number(actual)} {unit}".rstrip()
            text = f"{found}, which exceeds the limit of {_number(allowed)} ({limit})"
        super().__init__(text)


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) and not value.is_integer() else f"{int(value):,}"
