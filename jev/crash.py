"""What the log says of an error that nobody expected."""

from __future__ import annotations

import traceback


def crash_report(error: BaseException) -> str:
    """Say what was raised and where, causes first, without the messages: those may quote a request."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(parts) < 8:
        parts.append(f"{type(seen).__qualname__}\n{''.join(traceback.format_tb(seen.__traceback__))}")
        seen = seen.__cause__ or seen.__context__
    return "followed by ".join(reversed(parts)).rstrip()
