"""multipart/form-data: the JSON part `request` and the image parts beside it."""

from __future__ import annotations

from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from jev.assets import MAX_ASSETS
from jev.errors import TooLargeError
from jev.schemas import BadRequestError

REQUEST_PART = "request"
MAX_ASSET_BYTES = 16 * 2**20
"""Largest of them."""


@dataclass(slots=True)
class _Part:
    disposition: bytes = b""
    header: bytearray = field(default_factory=bytearray)
    value: bytearray = field(default_factory=bytearray)
    data: bytearray = field(default_factory=bytearray)


def parse_multipart(body: bytes, boundary: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Split a body into its JSON and its other parts by name.

    Raises:
        BadRequestError: the body is malformed or cut short, a part has no name, a name occurs twice
            or the part `request` is missing.
        TooLargeError: there are too many parts, or one is too large.
    """
    collector = _Collector()
    try:
        parser = MultipartParser(boundary, collector.callbacks())  # pyright: ignore[reportArgumentType]
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise _malformed(str(error)) from None
    if not collector.ended:
        raise _malformed("it is cut short")
    parts = collector.parts
    if REQUEST_PART not in parts:
        raise BadRequestError.at(
            REQUEST_PART, msg="The multipart body has no part named 'request'", type="missing"
        )
    request = parts.pop(REQUEST_PART)
    return request, parts


class _Collector:
    """Gathers what the parser reports, within the limits."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self.ended = False
        self._part = _Part()

    def callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._part.header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._part.value.extend(data[start:end]),
            "on_header_end": self._header,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        if len(self.parts) > MAX_ASSETS:
            raise TooLargeError(f"The multipart body has more than {MAX_ASSETS} parts beside the request")
        self._part = _Part()

    def _header(self) -> None:
        if bytes(self._part.header).lower() == b"content-disposition":
            self._part.disposition = bytes(self._part.value)
        self._part.header.clear()
        self._part.value.clear()

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._part.data += memoryview(data)[start:end]

    def _end(self) -> None:
        kind, options = parse_options_header(self._part.disposition)
        name = options.get(b"name")
        if kind != b"form-data" or not name:
            raise _malformed("a part has no name")
        try:
            text = name.decode("utf-8")
        except UnicodeDecodeError:
            raise _malformed("a part's name is not UTF-8") from None
        if text in self.parts:
            raise BadRequestError.at(text, msg="Two parts have this name", type="multipart_invalid")
        if text != REQUEST_PART and len(self._part.data) > MAX_ASSET_BYTES:
            raise TooLargeError(f"A part beside the request is over the limit of {MAX_ASSET_BYTES} bytes")
        self.parts[text] = bytes(self._part.data)

    def _finish(self) -> None:
        self.ended = True


def _malformed(why: str) -> BadRequestError:
    return BadRequestError.at(msg=f"The multipart body cannot be read: {why[:200]}", type="multipart_invalid")
