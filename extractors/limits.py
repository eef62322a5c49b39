"""Every limit on evidence as a setting, and the count of what a request has used of them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from jev.extractors.errors import LimitExceeded, Unreadable
from jev.extractors.evidence import Evidence

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Limits for one attachment and for all attachments of a request; over one is an error, never a cut.

    Sizes are bytes, times are seconds of wall time, texts are counted in characters (code points).
    """

    # One request
    max_attachments: int = 8
    max_total_bytes: int = 64 * MIB
    max_total_text_chars: int = 65_536
    max_images: int = 8
    """Inline images, PDF pages shown as pictures and video frames together."""

    # One attachment
    max_name_chars: int = 255
    max_file_bytes: int = 32 * MIB
    max_text_chars: int = 32_768
    max_image_bytes: int = 16 * MIB
    max_pixels: int = 16_777_216
    """Of one image, one frame, one PDF page or one picture inside it."""

    # Documents
    max_pdf_pages: int = 32
    max_pdf_objects: int = 100_000
    max_zip_entries: int = 2048
    max_expanded_bytes: int = 8 * MIB
    """Of the parts of an Office file; pictures inside it are not read and not counted."""
    max_expansion_ratio: int = 200
    """Of any part that expands to more than 1 MiB."""
    max_markup_bytes: int = 8 * MIB
    """Of an HTML page."""
    max_markup_nodes: int = 250_000
    """Tags of an HTML page or nodes of an Office file's XML."""
    max_email_depth: int = 2
    """Mails within mails: 1 is a mail attached to a mail."""
    max_email_parts: int = 256
    max_email_lines: int = 600_000
    max_email_attachments: int = 8

    # Video
    max_video_seconds: float = 600.0
    max_video_frames: int = 1_000_000
    max_frames_per_video: int = 4

    # Speech
    max_audio_seconds: float = 1800.0
    transcribe_seconds: float = 120.0
    transcribe_memory_bytes: int = 8 * 1024 * MIB
    max_transcript_bytes: int = 1 * MIB
    """Of a companion service's answer."""
    max_cached_transcripts: int = 16

    # Work
    decode_seconds: float = 20.0
    decode_memory_bytes: int = 1536 * MIB
    ocr_seconds: float = 60.0
    """Added to `decode_seconds` where pictures are read by OCR."""
    ocr_memory_bytes: int = 4 * 1024 * MIB

    def __post_init__(self) -> None:
        for field in fields(self):
            # Depth 0 (no mail in a mail) and no cache are choices; a limit of 0 elsewhere is a slip.
            least = 0 if field.name in ("max_email_depth", "max_cached_transcripts") else 1e-9
            if not getattr(self, field.name) >= least:
                raise ValueError(f"{field.name} must be a positive number")

    def check_size(self, size: int) -> None:
        """Refuse an attachment of `size` bytes that is empty or over `max_file_bytes`."""
        if size == 0:
            raise Unreadable("It is empty: an attachment must contain at least one byte")
        if size > self.max_file_bytes:
            raise LimitExceeded("max_file_bytes", self.max_file_bytes, size, unit="bytes")


class Budget:
    """What the files of one request use of its limits, counted in their order.

    `admit` counts files before they are read, `take` what came out of them; each has a budget of its own.

    Args:
        limits: the limits.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._attachments = 0
        self._bytes = 0
        self._chars = 0
        self._images = 0

    @property
    def picture_slots(self) -> int:
        """How many more pictures the request may have."""
        return self._limits.max_images - self._images

    def admit(self, size: int, *, attachment: bool = True) -> None:
        """Count a file of `size` bytes, or with `attachment` False a picture that stands in the request.

        Raises:
            LimitExceeded: for `max_attachments`, `max_images` or `max_total_bytes`.
        """
        self._attachments += attachment
        self._check("max_attachments", self._attachments, "attachments")
        self._take_images(0 if attachment else 1)
        self._bytes += size
        self._check("max_total_bytes", self._bytes, "bytes of files")

    def take(self, evidence: Evidence) -> None:
        """Count what a file became.

        Raises:
            LimitExceeded: for `max_total_text_chars` or `max_images`.
        """
        self._chars += len(evidence.text)
        self._check("max_total_text_chars", self._chars, "characters of combined extracted text")
        self._take_images(len(evidence.pictures))

    def _take_images(self, count: int) -> None:
        self._images += count
        self._check("max_images", self._images, "pictures")

    def _check(self, name: str, count: int, unit: str) -> None:
        most = getattr(self._limits, name)
        if count > most:
            raise LimitExceeded(name, most, count, unit=unit, together=True)


def check_slots(limits: Limits, found: int, slots: int) -> None:
    """Refuse `found` pictures of one attachment where only `slots` of the request are left.

    Raises:
        LimitExceeded: for `max_images`; the numbers count the pictures of the whole request.
    """
    if found > slots:
        used = limits.max_images - slots
        raise LimitExceeded("max_images", limits.max_images, used + found, unit="pictures", together=True)
