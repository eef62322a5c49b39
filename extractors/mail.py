"""Mails (.eml): headers, text and attachments, which are read like any file."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from email import message_from_bytes, policy
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message
from typing import TypeAlias

from jev.extractors.builder import TextBuilder, one_line
from jev.extractors.detect import sniff
from jev.extractors.errors import ExtractError, LimitExceeded, Unreadable, UnsupportedType
from jev.extractors.evidence import Evidence, Picture, digest
from jev.extractors.html import check_markup, html_text
from jev.extractors.limits import Limits
from jev.extractors.textfile import decode, known_encoding, mark_of

ReadFile: TypeAlias = Callable[[bytes, str, int], Evidence]
"""Reads an attachment: bytes, name and picture slots left. Mails come here, not to it."""

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_NO_HEADERS = "It is not a mail: it has no headers such as From or Subject"
_WANTED = re.compile(rb"(?im)^(?:" + "|".join(_HEADERS).encode() + rb")[ \t]*:")
_HEAD = 256 * 1024
_PART = re.compile(rb"(?i)^content-type[ \t]*:", re.MULTILINE)
_NESTED = re.compile(rb"(?i)^content-type[ \t]*:\s*(?:multipart|message)/", re.MULTILINE)
# Each open container looks at every line: their number is bounded as well as the lines'.
_MAX_NESTED = 32
_ESCAPED = re.compile(r"\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")
_FOLD = re.compile(r"\r?\n[ \t]*|\r[ \t]*")


def read_mail(data: bytes, name: str, limits: Limits, *, picture_slots: int, read: ReadFile) -> Evidence:
    """Read a mail and what is attached to it.

    Attachments without a reader are named in the text and in a note; all others must be readable.

    Args:
        data: the mail.
        name: its name.
        limits: the limits.
        picture_slots: how many pictures its attachments may have.
        read: reads an attachment.

    Raises:
        LimitExceeded: for `max_email_depth`, `max_email_parts`, `max_email_lines`,
            `max_email_attachments`, `max_text_chars`, and any limit that an attachment is over.
        Unreadable: for mails without headers, and attachments that cannot be read.
    """
    _check_structure(data, limits)
    try:
        message = message_from_bytes(data, policy=policy.compat32)
    except RecursionError as error:
        raise Unreadable("Its parts are nested too deeply") from error
    reader = _Reader(limits, picture_slots, read)
    reader.mail(message, 0)
    return Evidence(name, "email", reader.out.text(), tuple(reader.pictures), reader.notes(), digest(data))


def _check_structure(data: bytes, limits: Limits) -> None:
    """Refuse what is no mail or would take long to take apart."""
    if not _WANTED.search(data[:_HEAD]):
        raise Unreadable(_NO_HEADERS)
    lines = data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n") + 1
    if lines > limits.max_email_lines:
        raise LimitExceeded("max_email_lines", limits.max_email_lines, lines, unit="lines")
    parts = sum(1 for _ in _PART.finditer(data))
    if parts > limits.max_email_parts:
        raise LimitExceeded("max_email_parts", limits.max_email_parts, parts, unit="parts")
    if sum(1 for _ in _NESTED.finditer(data)) > _MAX_NESTED:
        raise Unreadable(f"It has more than {_MAX_NESTED} containers of parts")


class _Reader:
    """Reads a mail into text, pictures and notes."""

    def __init__(self, limits: Limits, picture_slots: int, read: ReadFile) -> None:
        self.out = TextBuilder(limits)
        self.pictures: list[Picture] = []
        self._limits = limits
        self._slots = picture_slots
        self._read = read
        self._notes: dict[str, None] = {}
        self._attached = 0

    def notes(self) -> tuple[str, ...]:
        """Return the notes, each once."""
        count = f"Attachments: {self._attached}" if self._attached else "No attachments"
        return (count, *self._notes, *self.out.notes)

    def mail(self, message: Message, depth: int) -> None:
        """Add a mail's headers, text and attachments; `depth` counts the mails around it."""
        if depth > self._limits.max_email_depth:
            most = self._limits.max_email_depth
            raise LimitExceeded("max_email_depth", most, depth, unit="levels of mails within mails")
        headers = list(_headers(message, self._limits))
        if not headers:
            raise Unreadable(_NO_HEADERS)
        for header, value in headers:
            self.out.add(f"{header}: {value}")
        self.out.add("")
        self._part(message, depth, body=True)
        if any("Boundary" in type(defect).__name__ for part in message.walk() for defect in part.defects):
            self._note("The mail is malformed or cut short: some content may be missing")

    def _part(self, part: Message, depth: int, *, body: bool) -> None:
        """Add a part; `body` is whether text in it is the mail's text and not another version of it."""
        kind = part.get_content_type()
        if kind == "multipart/alternative" and part.is_multipart():
            self._alternatives(_parts(part), depth, body=body)
        elif part.get_content_maintype() == "multipart":
            if not part.is_multipart():
                raise Unreadable("It is not a well-formed mail: its parts cannot be told apart")
            for child in _parts(part):
                self._part(child, depth, body=body)
        elif kind == "message/rfc822" and part.is_multipart():
            self._attach(part, depth)
        elif part.is_multipart():
            self._note("A delivery report was not read")
        elif _is_text(part) and not _is_file(part):
            if body:
                self._text(part, kind)
        else:
            self._attach(part, depth)

    def _alternatives(self, parts: list[Message], depth: int, *, body: bool) -> None:
        """Add one version of the text: the plain one unless it is blank, else the last and richest."""
        chosen = None
        parts = [part for part in parts if part.get_content_type() != "text/x-amp-html"]
        if body and parts:
            texts = [p for p in parts if p.is_multipart() or (_is_text(p) and _payload(p).strip())]
            plain = [p for p in texts if p.get_content_type() == "text/plain"]
            # An invitation comes behind the text that it belongs to.
            chosen = plain[0] if plain else (texts or parts)[-1]
            if plain and len(parts) > 1:
                self._note("Of the text's versions the plain one was read")
        for part in parts:
            # Other versions may still hold attachments.
            self._part(part, depth, body=part is chosen)

    def _text(self, part: Message, kind: str) -> None:
        data = _payload(part)
        if kind == "text/html":
            check_markup(len(data), self._limits)
        text, notes = decode(data, part.get_content_charset())
        if kind == "text/html":
            text, more = html_text(text, self._limits, may_be_blank=True)
            notes = (*notes, *more)
        self.out.add(text.strip("\r\n"))
        for note in notes:
            self._note(note)

    def _attach(self, part: Message, depth: int) -> None:
        self._attached += 1
        if self._attached > self._limits.max_email_attachments:
            most = self._limits.max_email_attachments
            raise LimitExceeded("max_email_attachments", most, self._attached, unit="attachments of the mail")
        number = self._attached
        name = _file_name(part, self._limits) or f"attachment {number}"
        try:
            if part.get_content_type() == "message/rfc822":
                if (encoded := _encoded_mail(part)) is not None:
                    self._file(encoded, name, depth)
                    return
                self._heading(name, "email")
                for mail in _parts(part):
                    self.mail(mail, depth + 1)
                return
            self._file(_in_utf8(part), name, depth)
        except UnsupportedType as error:
            self._heading(name, "not read")
            self._note(f"Attachment {number} was not read: {error}")
        except ExtractError as error:
            raise error.inside(f"attachment {number}") from error

    def _file(self, data: bytes, name: str, depth: int) -> None:
        if not data:
            self._heading(name, "empty")
            return
        self._limits.check_size(len(data))
        # An attached .eml file is a mail within a mail too, however it is labelled.
        if sniff(data, name).kind == "email":
            self._heading(name, "email")
            _check_structure(data, self._limits)
            self.mail(message_from_bytes(data, policy=policy.compat32), depth + 1)
            return
        evidence = self._read(data, name, self._slots - len(self.pictures))
        self._heading(name, evidence.kind)
        if evidence.text:
            self.out.add(evidence.text)
        for picture in evidence.pictures:
            place = f"attachment {self._attached}" + (f", {picture.place}" if picture.place else "")
            self.pictures.append(replace(picture, place=place))
        for note in evidence.notes:
            self._note(f"Attachment {self._attached}: {note}")

    def _heading(self, name: str, kind: str) -> None:
        self.out.add(f"\nAttachment {json.dumps(name, ensure_ascii=False)} ({kind}):")

    def _note(self, note: str) -> None:
        self._notes[note] = None


def _headers(message: Message, limits: Limits) -> Iterator[tuple[str, str]]:
    for wanted in _HEADERS:
        for name, value in message.raw_items():
            if name.lower() == wanted.lower():
                text = _decoded(str(value), limits)
                if text:
                    yield wanted, text


def _decoded(value: str, limits: Limits) -> str:
    """Return a header's text: unfolded, with encoded words and bare eight-bit text decoded."""
    if len(value) > limits.max_text_chars:
        raise LimitExceeded("max_text_chars", limits.max_text_chars, len(value), unit="characters of text")
    value = _FOLD.sub(" ", value)
    if not value.isascii():
        value = decode(value.encode("utf-8", "surrogateescape"))[0]
    try:
        chunks = decode_header(value)
    except (HeaderParseError, ValueError):
        return one_line(value)
    pieces: list[str] = []
    for chunk, charset in chunks:
        # Raw text between encoded words comes as bytes, in an escape for what is not Latin-1.
        if isinstance(chunk, str):
            pieces.append(chunk)
        elif charset is None:
            pieces.append(_ESCAPED.sub(_unescaped, chunk.decode("latin-1")))
        else:
            try:
                pieces.append(decode(chunk, charset)[0])
            except Unreadable:  # one cut character is no reason to lose the mail
                pieces.append(chunk.decode(known_encoding(charset) or "utf-8", "replace"))
    return one_line("".join(pieces))


def _unescaped(found: re.Match[str]) -> str:
    """A character that `decode_header` has escaped; a backslash of the header's own stays."""
    code = int(found[1] or found[2], 16)
    return chr(code) if 0xFF < code <= 0x10FFFF else found[0]


def _encoded_mail(part: Message) -> bytes | None:
    """A mail that is attached in an encoding, which the standard forbids and some senders use."""
    encoding = str(part.get("content-transfer-encoding", "")).strip().lower()
    inner = _parts(part)
    if encoding != "base64" or len(inner) != 1 or inner[0].keys():
        return None
    text = inner[0].get_payload()
    try:
        return base64.b64decode(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _in_utf8(part: Message) -> bytes:
    """What a part holds; text in the encoding that only the part names is made UTF-8."""
    data, charset = _payload(part), part.get_content_charset()
    encoding = known_encoding(charset) if charset is not None else None
    if part.get_content_maintype() != "text" or encoding is None or mark_of(data) is not None:
        return data
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        try:
            return data.decode(encoding).encode()
        except UnicodeDecodeError:
            pass
    return data


def _is_text(part: Message) -> bool:
    return part.get_content_type() in ("text/plain", "text/html")


def _file_name(part: Message, limits: Limits) -> str:
    """Return the name that a part gives its file, without folders and control characters."""
    try:
        name = _decoded(part.get_filename() or "", limits)
    except (UnicodeError, LookupError, ValueError, TypeError) as error:
        if isinstance(error, ExtractError):
            raise
        return ""
    name = re.split(r"[\\/]", name)[-1]
    return "".join(c for c in name if c.isprintable())[: limits.max_name_chars].strip()


def _is_file(part: Message) -> bool:
    return part.get_content_disposition() == "attachment" or part.get_filename() is not None


def _payload(part: Message) -> bytes:
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _parts(part: Message) -> list[Message]:
    payload = part.get_payload()
    return [child for child in payload if isinstance(child, Message)] if isinstance(payload, list) else []
