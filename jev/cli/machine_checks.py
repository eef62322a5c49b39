"""Checks of the machine: Python, processor, memory, torch, accelerators, extras and the port."""

from __future__ import annotations

import math
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jev.cli.checks import Check
from jev.cli.console import size
from jev.machine import EXTRAS, cpu_flags, cpu_name, memory, missing_packages, usable_cores
from jev.settings import Settings

if TYPE_CHECKING:
    import torch

TIGHT_MEMORY = 2**30
"""Free memory below which even a small model may not fit beside other programs."""

WORTH = 1.2
"""How much faster bfloat16 must be before it is the sensible type on a CPU."""

_USES = {
    "server": "decisions here, the server and this command line",
    "ocr": "text in images",
    "ray": "batches over many machines",
}


def machine_checks(settings: Settings) -> Iterator[Check]:
    """Look at everything but the model; slow only where torch is loaded."""
    yield Check("python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Check("processor", "ok", ", ".join([cpu_name(), f"{usable_cores():g} cores", *cpu_flags()]))
    yield _memory()
    try:
        import torch  # noqa: PLC0415 - it may be missing or broken, which is what is asked here
    except (ImportError, OSError) as error:
        yield Check("torch", "fail", f"cannot be loaded: {error}", _pip("server"))
    else:
        yield _torch(torch.__version__)
        yield _dtype()
        yield _cuda()
        yield _mps()
    for extra in EXTRAS:
        yield _extra(extra)
    yield _port(settings)


def _memory() -> Check:
    total, free = memory()
    detail = f"{size(total)} in all" + (f", {size(free)} free" if free is not None else "")
    if free is not None and free < TIGHT_MEMORY:
        return Check("memory", "warn", detail, "end other programs before a model is loaded")
    return Check("memory", "ok", detail)


def _torch(version: str) -> Check:
    import torch  # noqa: PLC0415

    threads, cores = torch.get_num_threads(), usable_cores()
    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    units = torch.backends.cpu.get_cpu_capability()
    detail = f"{version}, {threads} threads, BLAS {blas[1] if blas else 'unknown'}, {units}"
    if threads > max(1, math.ceil(cores)):
        fix = f"--threads {max(1, int(cores))} (threads without a core slow each other down)"
        return Check("torch", "warn", f"{detail}; only {cores:g} cores may be used", fix)
    return Check("torch", "ok", detail)


def _dtype() -> Check:
    """Compare the types by the work that takes most of a read: a matrix product."""
    import torch  # noqa: PLC0415

    took = {dtype: _product_seconds(dtype) for dtype in (torch.float32, torch.bfloat16)}
    ratio = took[torch.float32] / took[torch.bfloat16]
    detail = ", ".join(f"{str(dtype).removeprefix('torch.')} {s * 1e3:.1f} ms" for dtype, s in took.items())
    if ratio >= WORTH:
        advice = f"bfloat16 is {ratio:.1f}x as fast and takes half the memory: for large models"
    else:
        advice = "float32 is the type to use on this CPU"
    return Check("cpu dtype", "ok", f"{detail} a 1024 x 1024 product; {advice}")


def _product_seconds(dtype: torch.dtype) -> float:
    import torch  # noqa: PLC0415

    matrix = torch.ones(1024, 1024, dtype=dtype)
    best = math.inf
    for _ in range(4):  # the first one also sets the kernels up
        started = time.perf_counter()
        _ = matrix @ matrix
        best = min(best, time.perf_counter() - started)
    return best


def _cuda() -> Check:
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        reason = "no GPU that this torch can use" if built else "this torch is built without CUDA"
        return Check("cuda", "none", reason)
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found.append(
            f"cuda:{index} {torch.cuda.get_device_name(index)}, {size(free)} of {size(total)} free"
            f"{', bfloat16' if torch.cuda.is_bf16_supported() else ''}"
        )
    return Check("cuda", "ok", "; ".join(found))


def _mps() -> Check:
    import torch  # noqa: PLC0415

    if torch.backends.mps.is_available():
        return Check("mps", "ok", f"{size(torch.mps.recommended_max_memory())} for the GPU")
    return Check("mps", "none", "only on Macs with Apple silicon")


def _extra(extra: str) -> Check:
    missing = missing_packages(extra)
    name = f"extra {extra}"
    if not missing:
        return Check(name, "ok", f"installed ({_USES[extra]})")
    status = "fail" if extra == "server" else "none"
    return Check(name, status, f"{', '.join(missing)} not installed ({_USES[extra]})", _pip(extra))


def _pip(extra: str) -> str:
    return f"pip install 'jev-server[{extra}]'"


def _port(settings: Settings) -> Check:
    name, where = f"port {settings.port}", f"{settings.host}:{settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            if os.name == "posix":  # as the server does, so that connections just closed do not count
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        return Check(name, "warn", f"{where} cannot be listened on: {reason}", "jev serve --port 0")
    return Check(name, "ok", f"{where} is free")
