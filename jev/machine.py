"""Facts about this machine: processor, memory and packages, without loading torch."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

DISTRIBUTION = "jev-server"
EXTRAS = ("server", "ocr", "ray")

_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")
_REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+).*extra\s*==\s*["'](?P<extra>[\w-]+)["']""")


def cpu_flags() -> list[str]:
    """The vector units that the arithmetic can use, as Linux names them; empty where it does not say."""
    text = _read("/proc/cpuinfo")
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    present = set(found[1].split()) if found else set()
    return [flag for flag in _FLAGS if flag in present]


def cpu_name() -> str:
    """The processor's name, where Linux says it."""
    found = re.search(r"^model name\s*:\s*(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else "unknown"


def usable_cores() -> float:
    """Cores that this process may use: its affinity, and what a container allows it."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdecimal():
        return min(cores, int(quota[0]) / int(quota[1]))
    return cores


def memory() -> tuple[int, int | None]:
    """Bytes of memory: all of it, and what is free for use (None where the system does not say)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    free = int(found[1]) * 1024 if found else None
    limit, used = _read("/sys/fs/cgroup/memory.max").strip(), _read("/sys/fs/cgroup/memory.current").strip()
    if limit.isdecimal() and used.isdecimal():
        total = min(total, int(limit))
        # Pages of files, such as a model's that was read before, count as used but are given up when needed.
        cached = re.findall(r"^(?:in)?active_file (\d+)$", _read("/sys/fs/cgroup/memory.stat"), re.MULTILINE)
        left = max(0, int(limit) - int(used) + sum(map(int, cached)))
        free = left if free is None else min(free, left)
    return total, free


def resident_bytes() -> int:
    """Memory that this process occupies now; its highest where the system only knows that."""
    pages = _read("/proc/self/statm").split()
    if len(pages) > 1:
        return int(pages[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource  # noqa: PLC0415 - not on every system

    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024


def missing_packages(extra: str) -> list[str]:
    """Packages of an extra that are not installed."""
    names = [
        match["name"]
        for line in requires(DISTRIBUTION) or ()
        if (match := _REQUIREMENT.match(line)) and match["extra"] == extra
    ]
    return [name for name in names if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
