"""What must be set before torch is imported: how its CPU threads wait for each other, and how MKL sums.

By default OpenMP's threads spin while they wait. Alone on a machine that saves microseconds; beside any
other busy process each barrier costs a scheduling slice, and a read takes ten to a hundred times as long.

By default MKL also chooses a matmul's order of summation by where in memory its operands lie (seen on AMD
CPUs), so that the same read could differ in the last bits. Its reproducible mode costs nothing measurable.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("MKL_CBWR", "AUTO")
