"""Puts this folder's queue lines, and the material of the documents' tests, where its tests find them."""

from __future__ import annotations

import sys
from pathlib import Path

# pytest's importlib mode puts no test folder on the path; `queue_lines` lies here, `docs_pages` above.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
