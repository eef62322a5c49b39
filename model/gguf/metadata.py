"""The key/value part of a GGUF header, read from bytes that nobody has checked.

The `gguf` package's own reader makes two arrays of every string: 30 s and 1.4 GB for a vocabulary of 262,144
tokens with its merges. Here an array is its place in the file until it is asked for.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from jev.model.errors import CheckpointError

MOST_KEYS = 4096
LONGEST_KEY = 200
MOST_ELEMENTS = 2**22
"""Of an array: eight times the merges of the published tokenizer."""
MOST_TEXT = 2**24
"""Bytes of a string."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Formats of `struct` by GGUF's number of a type."""
_TEXT, _ARRAY = 8, 9

Scalar: TypeAlias = "bool | int | float | str"


class Cursor:
    """A place in a file's bytes that moves as values are read.

    Raises:
        CheckpointError: from every method, where the file ends too early or a count is absurd.
    """

    def __init__(self, name: str, data: mmap.mmap) -> None:
        self.name = name
        self.data = data
        self.at = 0

    def fail(self, what: str) -> NoReturn:
        """Refuse the file."""
        raise CheckpointError(f"{self.name} {what}")

    def skip(self, count: int) -> int:
        """Move on by `count` bytes; where they began."""
        start = self.at
        if count > len(self.data) - start:
            self.fail("is cut off: it ends within its header")
        self.at = start + count
        return start

    def skip_strings(self, count: int) -> None:
        """Move on by strings; the loop that reading a vocabulary takes its time for."""
        at, data = self.at, self.data
        size = len(data)
        for _ in range(count):
            start = at + 8
            at = start + int.from_bytes(data[at:start], "little")
            if at > size:
                break
        self.at = min(at, size)
        self.skip(at - self.at)

    def scalar(self, form: str) -> int | float | bool:
        """One little-endian value by its `struct` format."""
        start = self.skip(struct.calcsize(f"<{form}"))
        value = struct.unpack_from(f"<{form}", self.data, start)[0]
        return _shortest(value) if form == "f" else value

    def whole(self, form: str, what: str, most: int) -> int:
        """An unsigned count of at most `most`."""
        value = self.scalar(form)
        if value > most:
            self.fail(f"has {value} {what}, over the limit of {most}")
        return int(value)

    def text(self, what: str) -> str:
        """A string: its length in 8 bytes, then UTF-8."""
        length = self.whole("Q", f"bytes in {what}", MOST_TEXT)
        start = self.skip(length)
        try:
            return self.data[start : self.at].decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"has {what} that is not UTF-8")


@dataclass(frozen=True)
class Array:
    """An array that is still in the file: type number, length and where its first element begins."""

    kind: int
    count: int
    start: int


class Metadata:
    """Values by key, asked for by type.

    Every getter raises `CheckpointError`, one sentence with file and key, for a value of another type and for
    a key that is missing, unless it has a default.
    """

    def __init__(self, cursor: Cursor, count: int) -> None:
        """Read `count` pairs from where the cursor stands."""
        self._cursor = cursor
        self._values: dict[str, Scalar | Array] = {}
        for _ in range(count):
            key = cursor.text("a key")
            if not (key.isascii() and key.isprintable() and 0 < len(key) <= LONGEST_KEY):
                cursor.fail(f"has {key[:50]!r} where a key should be")
            if key in self._values:
                cursor.fail(f"has the key {key} twice")
            self._values[key] = self._value(key)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def is_array(self, key: str) -> bool:
        """Whether the key has several values."""
        return isinstance(self._values.get(key), Array)

    def _value(self, key: str) -> Scalar | Array:
        cursor = self._cursor
        kind = int(cursor.scalar("I"))
        if kind == _TEXT:
            return cursor.text(key)
        if kind in _SCALARS:
            return cursor.scalar(_SCALARS[kind])
        if kind != _ARRAY:
            cursor.fail(f"has the unknown type {kind} at {key}")
        element = int(cursor.scalar("I"))
        count = cursor.whole("Q", f"values in {key}", MOST_ELEMENTS)
        start = cursor.at
        if element == _TEXT:
            cursor.skip_strings(count)
        elif element in _SCALARS:
            cursor.skip(count * struct.calcsize(f"<{_SCALARS[element]}"))
        else:
            cursor.fail(f"has an array of the unsupported type {element} at {key}")
        return Array(element, count, start)

    def _scalar(self, key: str, types: tuple[type, ...], what: str, default: Scalar | None) -> Scalar:
        value = self._values.get(key, default)
        if value is None:
            self._cursor.fail(f"has no {key}")
        if not isinstance(value, types) or (bool not in types and isinstance(value, bool)):
            self._cursor.fail(f"has {_shown(value)} at {key}, expected {what}")
        assert not isinstance(value, Array)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        return str(self._scalar(key, (str,), "a string", default))

    def integer(self, key: str, default: int | None = None, *, least: int = 1, most: int = 2**20) -> int:
        """A whole number within limits, both included."""
        value = int(self._scalar(key, (int,), "a whole number", default))
        if not least <= value <= most:
            self._cursor.fail(f"has {value} at {key}, expected {least} to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above zero that is finite."""
        value = float(self._scalar(key, (int, float), "a number", default))
        if not 0 < value < float("inf"):
            self._cursor.fail(f"has {value} at {key}, expected a number above 0")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        return bool(self._scalar(key, (bool,), "true or false", default))

    def integers(self, key: str, *, least: int = 0, most: int = 2**20) -> list[int]:
        """An array of whole numbers (or booleans) within limits."""
        array = self._array(key)
        if array.kind not in _SCALARS or _SCALARS[array.kind] in "fd":
            self._cursor.fail(f"has other values than whole numbers at {key}")
        found = [int(one) for one in self._unpacked(array)]
        if wrong := [one for one in found if not least <= one <= most]:
            self._cursor.fail(f"has {wrong[0]} at {key}, expected {least} to {most}")
        return found

    def strings(self, key: str) -> list[str]:
        """An array of strings."""
        array = self._array(key)
        if array.kind != _TEXT:
            self._cursor.fail(f"has other values than strings at {key}")
        found, at, data = [], array.start, self._cursor.data
        try:
            for _ in range(array.count):
                end = at + 8 + int.from_bytes(data[at : at + 8], "little")
                found.append(data[at + 8 : end].decode("utf-8"))
                at = end
        except UnicodeDecodeError:
            self._cursor.fail(f"has a string that is not UTF-8 at {key}")
        return found

    def _array(self, key: str) -> Array:
        value = self._values.get(key)
        if not isinstance(value, Array):
            self._cursor.fail(
                f"has no {key}" if value is None else f"has one value at {key}, expected several"
            )
        return value

    def _unpacked(self, array: Array) -> tuple[int | float | bool, ...]:
        return struct.unpack_from(f"<{array.count}{_SCALARS[array.kind]}", self._cursor.data, array.start)


def _shortest(value: float) -> float:
    """The number with the fewest digits of the same fp32 value: 1e-06 where a file has 9.99999997e-07."""
    for digits in (6, 7, 8):
        found = float(f"{value:.{digits}g}")
        if abs(found) < 3.4e38 and struct.pack("<f", found) == struct.pack("<f", value):
            return found
    return value


def _shown(value: Scalar | Array) -> str:
    return f"{value.count} values" if isinstance(value, Array) else repr(value)[:200]
