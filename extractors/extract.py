"""One file in, evidence out: finds the reader for the content and runs it, in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, TypeAlias

from jev.extractors.detect import Content, check_kind, sniff
from jev.extractors.errors import ExtractError, LimitExceeded, MissingReader, Unreadable
from jev.extractors.evidence import Evidence, Kind
from jev.extractors.limits import Limits, check_slots
from jev.extractors.options import Options

_log = logging.getLogger(__name__)

Stage: TypeAlias = Literal["transcribe", "ocr"]
"""Work that takes its own time and memory beyond decoding."""


def extract(
    data: bytes,
    name: str,
    limits: Limits,
    *,
    picture_slots: int,
    options: Options,
    field: str = "files",
    on_stage: Callable[[Stage], None] | None = None,
) -> Evidence:
    """Read one attachment, by its content.

    A pure function without isolation: a hostile file can make a decoder hang or take the process
    down. `jev.extractors.worker.Pool` runs it in processes of its own.

    Args:
        data: the file.
        name: its name; its extension decides only between text formats.
        limits: the limits.
        picture_slots: how many pictures (images, pages, frames) the request has left.
        options: whether to read pictures by OCR, and how to hear speech.
        field: where in the request it stands (`images`, `documents`, ...), which decides what it may be.
        on_stage: told before a stage begins.

    Raises:
        UnsupportedType: no reader for the content, or it does not belong in `field`.
        LimitExceeded: over a limit; nothing is cut.
        Unreadable: damaged, encrypted, empty or not what its name says.
        MissingReader: a package that the content needs is not installed.
        ServiceUnavailable: the transcription service failed.
    """
    if len(name) > limits.max_name_chars:
        raise LimitExceeded("max_name_chars", limits.max_name_chars, len(name), unit="characters in its name")
    limits.check_size(len(data))
    readers = _Readers(limits, options, on_stage or (lambda stage: None))
    try:
        content = sniff(data, name)
        # Before it is read: hearing a recording takes minutes, and may need what is not there.
        check_kind(field, content.kind)
        evidence = readers.read_as(content, data, name, picture_slots)
        check_slots(limits, len(evidence.pictures), picture_slots)
        return readers.with_ocr(evidence) if options.ocr and evidence.pictures else evidence
    except (ExtractError, MemoryError):
        raise
    except ModuleNotFoundError as error:
        message = f"Reading it needs the Python package {error.name}: pip install 'jev-server[server]'"
        raise MissingReader(message) from error
    except RecursionError as error:
        raise Unreadable("Its content is nested too deeply") from error
    # Readers meet every kind of damage; whatever they raise about it means the same to the sender.
    except Exception as error:
        if "failed to map segment" in str(error):
            # A library did not fit in the address space.
            raise MemoryError from error
        _log.info("Unreadable: %s raised %s", readers.format, type(error).__name__)
        raise Unreadable("Its content is damaged and cannot be read") from error


class _Readers:
    """Picks the reader for each content. Each is imported where it is needed: it brings a library."""

    def __init__(self, limits: Limits, options: Options, on_stage: Callable[[Stage], None]) -> None:
        self._limits = limits
        self._options = options
        self._on_stage = on_stage
        self.format = "sniffing"

    def read(self, data: bytes, name: str, slots: int) -> Evidence:
        return self.read_as(sniff(data, name), data, name, slots)

    def read_as(self, content: Content, data: bytes, name: str, slots: int) -> Evidence:
        self.format = content.format
        match content.kind:
            case "text":
                return self._text(data, name, content.format)
            case "email":
                from jev.extractors.mail import read_mail  # noqa: PLC0415

                return read_mail(data, name, self._limits, picture_slots=slots, read=self.read)
            case "document":
                return self._office(data, name, content.format)
            case "pdf":
                from jev.extractors.pdf import read_pdf  # noqa: PLC0415

                return read_pdf(data, name, self._limits, picture_slots=slots)
            case "image" | "video" | "audio":
                return self._media(data, name, content.kind, slots)

    def with_ocr(self, evidence: Evidence) -> Evidence:
        from jev.extractors.ocr import ocr_pictures  # noqa: PLC0415

        self._on_stage("ocr")
        return ocr_pictures(evidence, self._limits)

    def _text(self, data: bytes, name: str, format_: str) -> Evidence:
        if format_ == "html":
            from jev.extractors.html import read_html  # noqa: PLC0415

            return read_html(data, name, self._limits)
        from jev.extractors.textfile import read_text  # noqa: PLC0415

        return read_text(data, name, self._limits)

    def _media(self, data: bytes, name: str, kind: Kind, slots: int) -> Evidence:
        if kind == "audio":
            from jev.extractors.audio import read_audio  # noqa: PLC0415

            self._on_stage("transcribe")
            return read_audio(data, name, self._limits, self._options.audio)
        check_slots(self._limits, 1, slots)
        if kind == "video":
            from jev.extractors.video import read_video  # noqa: PLC0415

            return read_video(data, name, self._limits, slots)
        from jev.extractors.images import read_image  # noqa: PLC0415

        return read_image(data, name, self._limits)

    def _office(self, data: bytes, name: str, format_: str) -> Evidence:
        if format_ == "docx":
            from jev.extractors.docx import read_docx  # noqa: PLC0415

            return read_docx(data, name, self._limits)
        if format_ == "xlsx":
            from jev.extractors.xlsx import read_xlsx  # noqa: PLC0415

            return read_xlsx(data, name, self._limits)
        from jev.extractors.pptx import read_pptx  # noqa: PLC0415

        return read_pptx(data, name, self._limits)
