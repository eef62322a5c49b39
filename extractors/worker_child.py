"""The child's side of a worker process: limits on itself, then one job after the other."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import pickle
import resource
import shutil
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from jev.extractors.errors import ExtractError, LimitExceeded, Unreadable
from jev.extractors.evidence import Evidence
from jev.extractors.limits import Limits
from jev.extractors.options import Options

# The parent's clock decides; these end a worker whose parent is gone.
_GRACE_SECONDS = 10


def allowance(stage: str, limits: Limits) -> tuple[str, float]:
    """Return the name and the seconds of the time limit that a stage brings with it."""
    name = {"transcribe": "transcribe_seconds", "ocr": "ocr_seconds"}.get(stage, "decode_seconds")
    return name, getattr(limits, name)


def _memory(stage: str, limits: Limits) -> tuple[str, int]:
    names = {"transcribe": "transcribe_memory_bytes", "ocr": "ocr_memory_bytes"}
    name = names.get(stage, "decode_memory_bytes")
    return name, getattr(limits, name)


def serve(fd: int, target: str, folder: str) -> None:
    """Answer jobs from the pipe `fd` until it closes, then remove `folder`. Called in a fresh interpreter."""
    pipe = Connection(fd)
    # No file of a customer's content is left behind by a crash.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        module, _, function = target.partition(":")
        job = getattr(importlib.import_module(module), function)
    except Exception as error:
        _send(pipe, {"unstarted": f"{type(error).__name__}: {error}"})
        return
    _send(pipe, {"ready": True})
    try:
        while True:
            request = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from the parent only
            _answer(pipe, job, *request)
            signal.alarm(0)
    except (EOFError, OSError):
        # Whoever started this is gone, perhaps killed: then nobody else removes what is left.
        shutil.rmtree(folder, ignore_errors=True)


def _answer(
    pipe: Connection,
    job: Callable[..., Evidence],
    data: bytes,
    name: str,
    limits: Limits,
    slots: int,
    options: Options,
    field: str,
) -> None:
    allowed = limits.decode_seconds
    memory = _memory("decode", limits)
    stages: set[str] = set()

    def on_stage(stage: str) -> None:
        nonlocal allowed, memory
        if stage in stages:
            return
        stages.add(stage)
        allowed += allowance(stage, limits)[1]
        _limit_time(allowed)
        memory = _memory(stage, limits)
        _limit_memory(memory[1])
        _send(pipe, {"stage": stage})

    _limit_time(allowed)
    _limit_memory(memory[1])
    try:
        evidence = job(
            data, name, limits, picture_slots=slots, options=options, field=field, on_stage=on_stage
        )
    except ExtractError as error:
        _send(pipe, {"error": _encoded(error)})
    except MemoryError:
        _limit_memory(None)
        _send(pipe, {"error": _encoded(LimitExceeded(*memory, unit="bytes of memory")), "spent": True})
    except Exception:
        _send(pipe, {"error": _encoded(Unreadable("Its content cannot be read")), "spent": True})
    else:
        pictures = [{"width": p.width, "height": p.height, "place": p.place} for p in evidence.pictures]
        answer = {"kind": evidence.kind, "text": evidence.text, "notes": evidence.notes}
        _send(pipe, {"evidence": answer, "sampled": evidence.sampled, "pictures": pictures})
        for picture in evidence.pictures:
            pipe.send_bytes(picture.png)


def _send(pipe: Connection, message: dict[str, Any]) -> None:
    pipe.send_bytes(json.dumps(message).encode())


def _encoded(error: ExtractError) -> dict[str, Any]:
    encoded: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, LimitExceeded):
        names = ("limit", "allowed", "actual", "unit", "at_least", "together")
        encoded["fields"] = {name: getattr(error, name) for name in names}
    return encoded


def _limit_time(seconds: float) -> None:
    whole = math.ceil(seconds) + _GRACE_SECONDS
    signal.alarm(whole)
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Decoders use several threads; the limit counts the time of all of them over all jobs.
    processors = min(8, os.cpu_count() or 1)
    total = math.ceil(used.ru_utime + used.ru_stime) + whole * processors
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (total, hard))


_reserved = 0


def _limit_memory(size: int | None) -> None:
    """Bound the address space, never below an earlier job's bound: a model that was loaded stays."""
    global _reserved  # noqa: PLW0603 - as long as the process, as the limit itself
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if size is not None:
        _reserved = size = max(_reserved, size)
    # Not every system has this limit.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (hard if size is None else size, hard))
