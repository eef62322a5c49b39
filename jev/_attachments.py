"""Files given to `decide`: from paths, bytes, file objects and pictures to entries of a request."""

from __future__ import annotations

import base64
import io
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias, cast

from jev.errors import InvalidRequestError
from jev.schemas import UploadedFile, is_plain_name
from jev.schemas.attachments import MAX_NAME

MAX_INLINE = 8 * 2**20
"""Most bytes of files that go inside a request; more are uploaded before it."""

MAX_STREAM = 256 * 2**20
"""Most bytes of what has no size, such as a pipe or a device, which may have no end."""

_PNG_MODES = frozenset({"1", "L", "LA", "I;16", "I;16B", "P", "RGB", "RGBA"})
_NEAREST = {**dict.fromkeys(("I", "I;16L", "I;16N"), "I;16"), "La": "LA", "PA": "RGBA", "RGBa": "RGBA"}
"""The mode that PNG has for one that it has not; for others it is RGB."""


class ByteReader(Protocol):
    """A file object that was opened in binary mode."""

    def read(self) -> bytes:
        """Everything from where it stands."""
        ...


class PILImage(Protocol):
    """A `PIL.Image.Image`; the SDK itself does not need Pillow."""

    @property
    def mode(self) -> str:
        """How its pixels are stored."""
        ...

    def save(self, fp: Any, format: str | None = None, **params: Any) -> None:
        """Write it."""
        ...

    def convert(self, mode: str) -> Any:
        """The same picture with its pixels stored otherwise."""
        ...

    def getexif(self) -> Any:
        """What the camera noted, such as which side is up."""
        ...


Content: TypeAlias = os.PathLike[str] | bytes | bytearray | memoryview | ByteReader | PILImage
"""What a file is read from. Bytes have no name; what they are is told by themselves."""

Attachable: TypeAlias = "Content | tuple[str, Content] | UploadedFile | LoadedFile"
"""What may stand in `attachments`: a path, bytes, a file object, a picture, one of these with a name
(`(name, content)`), or a file that was uploaded before."""


@dataclass(frozen=True)
class LoadedFile:
    """A file that can be sent, as often as needed.

    Attributes:
        name: its name.
        size: bytes.
        data: its bytes; None for a large file on disk, which is read as it is sent.
        path: where it is, if `data` is None.
    """

    name: str
    size: int
    data: bytes | None = field(default=None, repr=False)
    path: Path | None = None

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open it at its beginning; OSError if it cannot be read any more."""
        if self.path is None:
            yield io.BytesIO(self.data or b"")
            return
        with self.path.open("rb") as stream:
            yield stream

    def inline(self) -> dict[str, str]:
        """The entry of a request that holds all of it."""
        with self.opened() as stream:
            return {"name": self.name, "data": base64.b64encode(stream.read()).decode()}


def listed(attachments: object) -> Sequence[Attachable]:
    """What was given as `attachments`, if it is a list; TypeError if it is not."""
    if attachments is None:
        return ()
    single = (str, bytes, bytearray, memoryview, os.PathLike)
    if isinstance(attachments, single) or not isinstance(attachments, Sequence):
        raise TypeError(f"attachments must be a list of files, got {type(attachments).__name__}")
    return cast("Sequence[Attachable]", attachments)


def load_all(attachments: Sequence[Attachable]) -> tuple[LoadedFile | UploadedFile, ...]:
    """Read attachments, in their order; of a large file on disk only the size.

    Raises:
        TypeError: for what is not a file.
        OSError: for a path that cannot be read, such as `FileNotFoundError`.
        InvalidRequestError: for a name that is not one.
    """
    return tuple(
        one if isinstance(one, UploadedFile) else load(one, number=number)
        for number, one in enumerate(attachments, 1)
    )


def load(
    file: Content | tuple[str, Content] | LoadedFile, name: str | None = None, number: int = 1
) -> LoadedFile:
    """Read one file; errors as in `load_all`.

    Args:
        file: the file.
        name: its name, instead of the one that it has.
        number: its place in the request, which is the name of one that has none.
    """
    if isinstance(file, LoadedFile):
        loaded = file
    elif isinstance(file, tuple):
        pair = cast("tuple[Any, ...]", file)
        if len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"attachment {number}: a tuple must be (name, content)")
        name, loaded = name or pair[0], _load(pair[1], number)
    else:
        loaded = _load(file, number)
    if name is not None:
        loaded = replace(loaded, name=name)
    _check_name(loaded.name, number)
    return loaded


def _load(content: object, number: int) -> LoadedFile:
    if isinstance(content, os.PathLike):
        return _from_path(Path(cast("os.PathLike[str]", content)), number)
    if isinstance(content, (bytes, bytearray, memoryview)):
        return _from_bytes(bytes(content), f"attachment-{number}")
    if _is_picture(content):
        return _from_bytes(_png(cast(PILImage, content)), f"attachment-{number}.png")
    if callable(getattr(content, "read", None)):
        return _from_reader(cast(ByteReader, content), number)
    if isinstance(content, str):
        raise TypeError(f"attachment {number} is a str; a file's path is written as Path({content[:80]!r})")
    kind = type(content).__name__
    raise TypeError(f"attachment {number} must be a path, bytes, a file object or a picture, got {kind}")


def _from_path(path: Path, number: int) -> LoadedFile:
    name = _clean(path.name) or f"attachment-{number}"
    with path.open("rb") as stream:
        status = os.fstat(stream.fileno())
        # A pipe can be read only once, and a small file is best not read again.
        if stat.S_ISREG(status.st_mode) and status.st_size > MAX_INLINE:
            return LoadedFile(name, status.st_size, path=path)
        data = stream.read(MAX_STREAM + 1)
    if len(data) > MAX_STREAM:
        raise InvalidRequestError.at(
            "files",
            number - 1,
            msg=f"Attachment {name!r}: It has more than {MAX_STREAM} bytes, and no known size",
        )
    return _from_bytes(data, name)


def _from_reader(reader: ByteReader, number: int) -> LoadedFile:
    data: object = reader.read()
    if not isinstance(data, bytes):
        kind = type(data).__name__
        raise TypeError(f"attachment {number}: its read() gave {kind}, not bytes; open files in mode 'rb'")
    name = getattr(reader, "name", None)
    # Files without a name have a number or something like "<stdin>" there.
    own = _clean(Path(name).name) if isinstance(name, str) and not name.startswith("<") else ""
    return _from_bytes(data, own or f"attachment-{number}")


def _from_bytes(data: bytes, name: str) -> LoadedFile:
    return LoadedFile(name, len(data), data)


def _is_picture(content: object) -> bool:
    """Whether it is a PIL image, found out without importing Pillow."""
    return any((base.__module__, base.__name__) == ("PIL.Image", "Image") for base in type(content).__mro__)


def _png(image: PILImage) -> bytes:
    """A picture as PNG; which side is up goes with it."""
    stream = io.BytesIO()
    exif = image.getexif() or None
    if image.mode in _PNG_MODES:
        image.save(stream, "PNG", exif=exif)
    else:
        # Its colour profile is about the numbers that it had before.
        image.convert(_NEAREST.get(image.mode, "RGB")).save(stream, "PNG", exif=exif, icc_profile=None)
    return stream.getvalue()


def _clean(name: str) -> str:
    """A file's name without what a name in a request may not have."""
    sendable = name.encode("utf-8", "replace").decode()
    return "".join(c if is_plain_name(f"{c}x") else "_" for c in sendable)[-MAX_NAME:]


def _check_name(name: str, number: int) -> None:
    where = ("files", number - 1, "name")
    if not 0 < len(name) <= MAX_NAME:
        raise InvalidRequestError.at(*where, msg=f"A name has 1 to {MAX_NAME} characters")
    if not is_plain_name(name):
        raise InvalidRequestError.at(*where, msg="A name has no slashes and no control characters")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError.at(*where, msg=f"Input cannot be sent: {error}") from None
