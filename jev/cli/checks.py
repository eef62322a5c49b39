"""What `jev doctor` finds: one `Check` for each thing looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail", "none"]


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
        name: what was looked at.
        status: ok; warn: works, but not as well as it could; fail: decisions cannot be made;
            none: optional and not there.
        detail: what was found.
        fix: what to do about it, if anything.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""
