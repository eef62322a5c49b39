"""An upload on its way to the disk: multipart/form-data, parsed and written as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers
from starlette.types import Receive

from jev.errors import InvalidRequestError, TooLargeError, UnsupportedMediaTypeError
from jev.extractors import ExtractError
from jev.schemas import BadRequestError, is_plain_name
from jev.schemas.attachments import MAX_NAME
from jev.server.errors import ClientGoneError, RequestTimeoutError
from jev.server.files import Batch

FILE_PART = "file"
PURPOSE = "purpose"
FORM_FIELDS = frozenset({PURPOSE, "expires_after[anchor]", "expires_after[seconds]"})
"""Form fields beside the files, as clients of OpenAI's API send them; only the purpose has a meaning here."""
MAX_FIELD = 256
"""Most bytes of one of them."""
MAX_FILES = 32
"""Most files of one upload."""
MAX_HEAD = 8 * 2**10
"""Most bytes of the head of one part."""
BLOCK = 2**20
"""Bytes that are gathered before they are written."""
TOTAL_TIMEOUTS = 20
"""An upload may take this many times as long as a body may be silent."""


def boundary_of(headers: Headers) -> bytes:
    """Return the boundary of a multipart body.

    Raises:
        UnsupportedMediaTypeError: it is not multipart/form-data, or it is compressed.
        BadRequestError: there is no boundary.
    """
    encoding = ",".join(headers.getlist("content-encoding")).strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMediaTypeError("Uploads are not decompressed: send them without an encoding")
    kind, options = parse_options_header(headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise UnsupportedMediaTypeError("Send multipart/form-data with parts named 'file'")
    if not options.get(b"boundary"):
        raise BadRequestError.at(msg="The multipart body names no boundary", type="multipart_invalid")
    return options[b"boundary"]


class UploadParser:
    """Feeds the parts of a body to a batch.

    Args:
        batch: where the files go.
        boundary: the body's.

    Attributes:
        fields: the form fields that came beside the files.

    Raises:
        BadRequestError: the boundary cannot be used.
    """

    def __init__(self, batch: Batch, boundary: bytes) -> None:
        self.fields: dict[str, str] = {}
        self._field_name: str | None = None
        self._field_value = bytearray()
        self._batch = batch
        self._count = 0
        self._name = ""
        self._ended = False
        self._head = 0
        self._field, self._value, self._disposition = bytearray(), bytearray(), b""
        try:
            self._parser = MultipartParser(boundary, self._callbacks())  # pyright: ignore[reportArgumentType]
        except FormParserError as error:
            raise _malformed(str(error)) from None

    def feed(self, data: bytes) -> None:
        """Take the next bytes; blocks while they are written.

        Raises:
            BadRequestError: the body is malformed.
            InvalidRequestError: a file has no name, a name with directories, or content that is not
                served; or a part is not a file.
            TooLargeError: there are too many files, one is too large, or all together are.
            OverloadedError: too much is arriving at once.
            ServerError: 503; they cannot be written.
        """
        if self._ended:
            return  # what follows the last boundary has no meaning
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(str(error)) from None

    @property
    def count(self) -> int:
        """How many files have arrived."""
        return self._count

    def finish(self) -> None:
        """End the body; BadRequestError if it is cut short or has no file."""
        if not self._ended:
            raise _malformed("it is cut short")
        if self._count == 0:
            raise BadRequestError.at(FILE_PART, msg="There is no part named 'file'", type="missing")

    def _callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": partial(self._gather, self._field),
            "on_header_value": partial(self._gather, self._value),
            "on_header_end": self._header,
            "on_headers_finished": self._open,
            "on_part_data": self._data,
            "on_part_end": self._close,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        if self._count >= MAX_FILES:
            raise TooLargeError(f"An upload has at most {MAX_FILES} files")
        self._head = 0
        self._disposition = b""

    def _gather(self, into: bytearray, data: bytes, start: int, end: int) -> None:
        self._head += end - start
        if self._head > MAX_HEAD:
            raise _malformed("the head of a part is too long")
        into += memoryview(data)[start:end]

    def _header(self) -> None:
        if bytes(self._field).lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._field.clear()
        self._value.clear()

    def _open(self) -> None:
        kind, options = parse_options_header(self._disposition)
        field = options.get(b"name", b"").decode("utf-8", "replace")
        if kind != b"form-data" or not field:
            raise _malformed("a part has no name")
        if field in FORM_FIELDS and b"filename" not in options:
            if field in self.fields:
                raise BadRequestError.at(field, msg="Two parts have this name", type="multipart_invalid")
            self._field_name = field
            self._field_value.clear()
            return
        if field != FILE_PART:
            raise BadRequestError.at(field[:64], msg="Only parts named 'file' are taken", type="unknown_part")
        self._name = self._plain_name(options.get(b"filename", b""))
        self._batch.start(self._name)

    def _plain_name(self, raw: bytes) -> str:
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._refused("The file's name is not UTF-8") from None
        if not name:
            raise self._refused("The part has no filename")
        if len(name) > MAX_NAME:
            raise self._refused(f"The file's name is longer than {MAX_NAME} characters")
        if not is_plain_name(name):
            raise self._refused("The file's name has directories or control characters in it")
        return name

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._field_name is None:
            self._batch.write(memoryview(data)[start:end])
            return
        self._field_value += memoryview(data)[start:end]
        if len(self._field_value) > MAX_FIELD:
            raise BadRequestError.at(
                self._field_name, msg=f"The field has more than {MAX_FIELD} bytes", type="too_long"
            )

    def _close(self) -> None:
        if self._field_name is not None:
            self.fields[self._field_name] = self._field_value.decode("utf-8", "replace")
            self._field_name = None
            return
        try:
            self._batch.finish()
        except ExtractError as error:
            raise self._refused(f"{self._name!r}: {error}") from None
        self._count += 1

    def _finish(self) -> None:
        self._ended = True

    def _refused(self, message: str) -> InvalidRequestError:
        # By the same name as in a request, whatever the part is called.
        return InvalidRequestError.at("files", self._count, msg=message, type="attachment")


async def receive_upload(
    receive: Receive,
    headers: Headers,
    parser: UploadParser,
    in_worker: Callable[[Callable[[], None]], Awaitable[None]],
    *,
    limit: int,
    idle_seconds: float,
) -> None:
    """Read a whole body into a parser, little by little.

    Args:
        receive: the ASGI channel.
        headers: the request's.
        parser: where the body goes.
        in_worker: runs blocking work in a thread.
        limit: most bytes of the body.
        idle_seconds: longest silence; the whole may take `TOTAL_TIMEOUTS` times as long.

    Raises:
        TooLargeError: `Content-Length`, or what arrived, is over `limit`.
        RequestTimeoutError: the client was silent or slow.
        ClientGoneError: it closed the connection.
        APIError, BadRequestError: what the parser raises.
    """
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    total = TOTAL_TIMEOUTS * idle_seconds
    gathered = bytearray()
    size = 0
    more = True
    try:
        async with asyncio.timeout(total):
            while more:
                chunk, more = await _next(receive, idle_seconds)
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                gathered += chunk
                if len(gathered) >= BLOCK or not more:
                    block = bytes(gathered)
                    gathered.clear()
                    await in_worker(partial(parser.feed, block))
    except TimeoutError:
        raise RequestTimeoutError(f"The upload did not arrive within {total:g} s") from None
    parser.finish()


async def _next(receive: Receive, seconds: float) -> tuple[bytes, bool]:
    """Return the next piece of a body, and whether more follows."""
    try:
        async with asyncio.timeout(seconds):
            message = await receive()
    except TimeoutError:
        raise RequestTimeoutError(f"Nothing of the upload arrived for {seconds:g} s") from None
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"The upload is over the limit of {limit} bytes")


def _malformed(why: str) -> BadRequestError:
    return BadRequestError.at(msg=f"The multipart body cannot be read: {why[:200]}", type="multipart_invalid")
