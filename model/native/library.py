"""The compiled library and its C functions; None where it was not built."""

from __future__ import annotations

import os
import warnings
from ctypes import CDLL, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from torch import Tensor

KERNELS = "JEV_KERNELS"
"""Environment variable that forces a kernel: avx512, avxvnni, avx2, neon, generic, or off for none."""


class Part(Structure):
    """Keys and values that a row may ask; see floats.cpp."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("bias", c_void_p),
        ("count", c_int64),
        ("bias_step", c_int64),
    )


_SIGNATURES = {
    "jev_select": (c_char_p, [c_char_p]),
    "jev_packed_bytes": (c_int64, [c_int, c_int64, c_int64]),
    "jev_large_pages": (None, [c_void_p, c_int64]),
    "jev_pack": (None, [c_int, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int]),
    "jev_rows": (c_int, [c_int, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p]),
    "jev_linear": (c_int, [c_int, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_int]),
    "jev_experts": (
        c_int,
        [
            *(c_int, c_void_p, c_int, c_void_p, c_int64, c_int64, c_int64),
            *(c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_int),
        ],
    ),
    "jev_dense": (c_int, [c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_int]),
    "jev_gate": (c_int, [c_void_p, c_void_p, c_int64, c_void_p, c_int]),
    "jev_attend": (
        c_int,
        [c_void_p, c_int64, c_int64, c_int64, c_int64, POINTER(Part), c_int64, c_void_p, c_int],
    ),
}


def load() -> CDLL | None:
    """Load the library; None where it was not built, cannot be loaded or is switched off."""
    if os.environ.get(KERNELS) == "off":
        return None
    for suffix in EXTENSION_SUFFIXES:
        file = Path(__file__).with_name(f"_kernels{suffix}")
        if file.exists():
            try:
                library = CDLL(str(file))
            except OSError:
                continue
            if missing := [name for name in _SIGNATURES if not hasattr(library, name)]:
                warnings.warn(
                    f"the compiled kernels are not used: {file.name} has no {missing[0]}, it is of another "
                    "version; install the package again",
                    RuntimeWarning,
                    stacklevel=2,
                )
                continue
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
            return library
    return None


def select(library: CDLL, name: str) -> str:
    """Use the kernels of a name ("": the best of this machine); returns their name.

    Raises:
        ValueError: if this machine or this build has none of that name.
    """
    found = library.jev_select(name.encode())
    if found is None:
        raise ValueError(
            f"this machine has no kernels {name!r}; there are avx512, avxvnni, avx2, neon and generic"
        )
    return found.decode()


def select_first(library: CDLL) -> str:
    """Use the kernels that the environment names, or the best; returns their name."""
    name = os.environ.get(KERNELS, "")
    try:
        return select(library, name)
    except ValueError as error:
        warnings.warn(f"{KERNELS} is ignored: {error}", RuntimeWarning, stacklevel=2)
        return select(library, "")


def pointer(tensor: Tensor) -> int:
    """Address of a contiguous tensor on the CPU."""
    assert tensor.is_contiguous()
    assert tensor.device.type == "cpu"
    return tensor.data_ptr()


def check(status: int) -> None:
    """Raise what a status of the library means."""
    if status == 1:
        raise MemoryError("no memory for what a kernel works on")
    if status == 2:
        raise IndexError("index out of range")
