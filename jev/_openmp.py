"""How torch's CPU threads wait for each other; to be imported before torch is.

By default OpenMP's threads spin while they wait. Alone on a machine that saves microseconds; beside any
other busy process each barrier costs a scheduling slice, and a read takes ten to a hundred times as long.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
