"""Limits count a request's attachments together, name themselves, and hand out picture slots in order."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys

import pytest

from jev.extractors import (
    Budget,
    Evidence,
    ExtractError,
    LimitExceeded,
    Limits,
    MissingReader,
    Picture,
    Unreadable,
)
from jev.extractors.extract import extract
from jev.extractors.limits import check_slots
from jev.extractors.options import Options

MIB = 2**20


def evidence(chars: int = 1, pictures: int = 0) -> Evidence:
    picture = Picture.of(b"png", 1, 1)
    return Evidence("a", "text", "x" * chars, (picture,) * pictures, (), "0" * 64)


def test_the_defaults_are_the_documented_ones() -> None:
    limits = Limits()
    assert (limits.max_attachments, limits.max_images) == (8, 8)
    assert (limits.max_file_bytes, limits.max_image_bytes) == (32 * MIB, 16 * MIB)
    assert limits.max_total_bytes == 64 * MIB
    assert (limits.max_text_chars, limits.max_total_text_chars) == (32_768, 65_536)
    assert (limits.max_pdf_pages, limits.max_pixels) == (32, 16_777_216)
    assert (limits.max_zip_entries, limits.max_expanded_bytes) == (2048, 8 * MIB)
    assert (limits.max_video_seconds, limits.max_video_frames) == (600, 1_000_000)
    assert (limits.max_frames_per_video, limits.max_email_depth) == (4, 2)
    assert (limits.transcribe_seconds, limits.max_transcript_bytes) == (120, MIB)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Limits)])
@pytest.mark.parametrize("value", [-1, float("nan")])
def test_every_limit_must_be_positive(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be a positive number"):
        Limits(**{field: value})


def test_zero_is_allowed_where_it_means_none() -> None:
    assert Limits(max_email_depth=0, max_cached_transcripts=0).max_email_depth == 0
    with pytest.raises(ValueError, match="max_images"):
        Limits(max_images=0)


def test_files_are_counted_before_anything_is_read() -> None:
    budget = Budget(Limits())
    for _ in range(8):
        budget.admit(4 * MIB)
        budget.admit(4 * MIB, attachment=False)
    assert budget.picture_slots == 0
    with pytest.raises(LimitExceeded, match=r"With it the request has 9 pictures.*limit of 8 \(max_images\)"):
        budget.admit(1, attachment=False)
    with pytest.raises(LimitExceeded, match=r"request has 9 attachments.*limit of 8 \(max_attachments\)"):
        budget.admit(1)
    budget = Budget(Limits())
    budget.admit(32 * MIB)
    budget.admit(32 * MIB, attachment=False)
    with pytest.raises(LimitExceeded, match=r"67,108,865 bytes of files.*67,108,864") as error:
        budget.admit(1)
    assert (error.value.limit, error.value.actual) == ("max_total_bytes", 64 * MIB + 1)


def test_a_file_has_a_size() -> None:
    Limits().check_size(32 * MIB)
    with pytest.raises(LimitExceeded, match="max_file_bytes"):
        Limits().check_size(32 * MIB + 1)
    with pytest.raises(Unreadable, match="must contain"):
        Limits().check_size(0)


def test_totals_of_text() -> None:
    budget = Budget(Limits())
    budget.take(evidence(32_768))
    budget.take(evidence(32_768, 8))
    with pytest.raises(LimitExceeded, match="combined extracted text") as error:
        budget.take(evidence(1))
    assert (error.value.limit, error.value.actual) == ("max_total_text_chars", 65_537)


def test_a_budget_hands_out_slots_in_order() -> None:
    budget = Budget(Limits())
    budget.take(evidence(1, 3))
    assert budget.picture_slots == 5
    budget.take(evidence(1, 4))
    assert budget.picture_slots == 1
    budget.take(evidence(1, 1))
    assert budget.picture_slots == 0
    budget.take(evidence(1, 0))
    with pytest.raises(LimitExceeded, match="9 pictures, which exceeds the limit of 8"):
        budget.take(evidence(1, 1))


def test_slots_are_counted_for_the_whole_request() -> None:
    check_slots(Limits(), 3, 3)
    with pytest.raises(LimitExceeded, match="10 pictures, which exceeds the limit of 8"):
        check_slots(Limits(), 5, 3)


def test_errors_are_value_errors_that_say_where() -> None:
    error = LimitExceeded("max_pdf_pages", 32, 57, unit="pages")
    assert isinstance(error, ExtractError)
    assert isinstance(error, ValueError)
    assert str(error) == "It has 57 pages, which exceeds the limit of 32 (max_pdf_pages)"
    inside = error.inside("attachment 2")
    assert isinstance(inside, LimitExceeded)
    assert (inside.limit, inside.actual) == ("max_pdf_pages", 57)
    assert str(inside) == f"In attachment 2: {error}"
    late = LimitExceeded("decode_seconds", 2.5, unit="seconds")
    assert str(late) == "It needs more than the limit of 2.5 seconds (decode_seconds)"


def test_limits_travel_to_other_processes() -> None:
    limits = Limits(max_images=3)
    assert pickle.loads(pickle.dumps(limits)) == limits


READERS = (
    "torch",
    "fastapi",
    "lxml",
    "pymupdf",
    "docx",
    "openpyxl",
    "pptx",
    "PIL",
    "cv2",
    "av",
    "faster_whisper",
)


def test_importing_loads_no_reader() -> None:
    code = f"import sys, jev.extractors.extract; print([m for m in {READERS!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "data", "name", "hint"),
    [
        ("pymupdf", b"%PDF-1.7", "a.pdf", "pip install 'pymupdf"),
        ("lxml", b"<p>x", "a.html", "the Python package lxml"),
        ("charset_normalizer", b"\xc4\xe4" * 20, "a.txt", "the Python package charset_normalizer"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, data: bytes, name: str, hint: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingReader, match=hint):
        extract(data, name, Limits(), picture_slots=0, options=Options())
