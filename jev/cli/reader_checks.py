"""Checks of the readers of attachments: which kinds of files can be read here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from jev.cli.checks import Check
from jev.settings import Settings


@dataclass(frozen=True)
class Reader:
    """What reads one kind of file.

    Attributes:
        name: of the kind.
        use: what is read.
        packages: distributions that it needs; of alternatives with `|` between them one is enough.
        install: what to give to pip.
    """

    name: str
    use: str
    packages: tuple[str, ...]
    install: str = "'jev-server[server]'"


READERS = (
    Reader("pdf", "PDF files", ("pymupdf",)),
    Reader(
        "office",
        "Word, Excel and PowerPoint files, HTML pages",
        ("python-docx", "openpyxl", "python-pptx", "lxml"),
    ),
    Reader("images", "pictures", ("pillow",)),
    Reader("heic", "pictures of Apple devices", ("pillow-heif",)),
    Reader("video", "frames of videos", ("opencv-python-headless|opencv-python",)),
    Reader("speech", "recordings", ("faster-whisper", "av")),
    Reader("ocr", "text in pictures", ("rapidocr-onnxruntime",), "'jev-server[ocr]'"),
)


def reader_checks(settings: Settings) -> Iterator[Check]:
    """Say of each reader whether it is installed; none is needed for decisions about text."""
    for reader in READERS:
        yield _check(reader, settings)


def _check(reader: Reader, settings: Settings) -> Check:
    name = f"reader {reader.name}"
    if reader.name == "speech" and settings.speech_url:
        return Check(name, "ok", f"a transcription service is asked ({reader.use})")
    found = {package: _version(package) for package in reader.packages}
    missing = [package.split("|")[0] for package, number in found.items() if number is None]
    if missing:
        return Check(
            name,
            "none",
            f"{', '.join(missing)} not installed ({reader.use})",
            f"pip install {reader.install}",
        )
    detail = ", ".join(number for number in found.values() if number)
    if reader.name == "speech" and not settings.speech_model:
        return Check(
            name, "none", f"{detail}, but no speech model ({reader.use})", "set speech_model or speech_url"
        )
    return Check(name, "ok", f"{detail} ({reader.use})")


def _version(package: str) -> str | None:
    """Name and version of the first alternative that is installed."""
    for name in package.split("|"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return None
