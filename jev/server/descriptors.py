"""How many connections and files the process may hold open."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger(__name__)

WANTED = 2**16
"""Open files that are asked for, where the system lets the process have so many."""
ENOUGH = 2048
"""Fewer than that are worth a warning: a thousand idle connections should hinder nobody."""


def allow_many() -> int | None:
    """Raise the limit on open files as far as the system lets a process, and warn if that is not far.

    Many systems start processes with 1,024. Returns the limit; None where there is none to ask for.
    """
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415 - Unix only

    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    wanted = WANTED if most == endless else min(WANTED, most)
    if now != endless and now < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        except (OSError, ValueError) as error:
            logger.debug("the limit on open files stays as it is: %s", error)
        now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if now == endless:
        return None
    if now < ENOUGH:
        logger.warning(
            "at most %d files and connections can be open at once; raise the limit (ulimit -n) to %d or more",
            now,
            ENOUGH,
        )
    return now
