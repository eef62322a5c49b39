"""One sentence that says what to install, for parts that need more than the bare SDK."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from jev.errors import MissingExtraError


@contextmanager
def extra_named(what: str, extra: str = "server") -> Generator[None]:
    """Name the extra to install when an import inside finds a package of it missing.

    Args:
        what: what needs the package, for the message.
        extra: the extra that installs it.

    Raises:
        MissingExtraError: in place of ModuleNotFoundError, unless the module is this package's own.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "jev").split(".")[0] == "jev":
            raise
        raise MissingExtraError(
            f"{what} needs {error.name}: pip install 'jev-server[{extra}]'", name=error.name
        ) from error
