"""Where the placeholders of assets stand in a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator


def find_placeholders(text: str, placeholders: Iterable[str]) -> Iterator[re.Match[str]]:
    """Find placeholders from left to right; the longest wins where several begin at one place.

    So a placeholder may stand nowhere although its characters do: where a longer one covers them.
    """
    longest_first = sorted(placeholders, key=len, reverse=True)
    return re.finditer("|".join(map(re.escape, longest_first)), text) if longest_first else iter(())
