"""Proves what an attachment may be: one source, a plain name, base64 that is checked before it is decoded."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev.schemas import BadRequestError, Warning, decode_base64, is_plain_name, parse_request

BODY: dict[str, Any] = {"state": "s", "questions": {"a": {"type": "noul", "instructions": "?"}}}


@given(st.binary(min_size=1, max_size=100))
def test_base64_and_data_urls(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    for sent in (text, f"data:image/png;base64,{text}", f"DATA:;BASE64,{text}"):
        assert decode_base64(sent, 100) == data


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ("", "empty"),
        ("data:;base64,", "empty"),
        ("data:text/plain,hello", "not base64"),
        ("data:text/plain;base64", "not base64"),
        ("https://example.org/a.png", "no address is fetched"),
        ("HTTP://example.org", "no address is fetched"),
        ("file:///etc/passwd", "no path is read"),
        ("/etc/passwd", "valid base64"),
        ("aGk", "valid base64"),
        ("a Gk=", "valid base64"),
        ("aGk=\n", "valid base64"),
        ("aGk=aGk=", "valid base64"),
        ("ä", "valid base64"),
        ("-_8=", "valid base64"),
    ],
)
def test_what_is_no_file(sent: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode_base64(sent, 1000)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100, 101, 102])
def test_limit_is_met_exactly(size: int) -> None:
    text = base64.b64encode(b"x" * size).decode()
    assert len(decode_base64(text, size)) == size
    with pytest.raises(ValueError, match=f"limit (is|of) {size - 1}"):
        decode_base64(text, size - 1)


def test_far_too_large_is_refused_before_decoding() -> None:
    text = "A" * 60_000_000
    started = time.perf_counter()
    with pytest.raises(ValueError, match="more than the limit of 1000 bytes"):
        decode_base64(text, 1000)
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize(
    "name", ["a", "a.b", "...", "über bericht.pdf", "日本", ".hidden", "a:b", "<|turn>", " "]
)
def test_plain_names(name: str) -> None:
    assert is_plain_name(name)


@pytest.mark.parametrize("name", [".", "..", "a/b", "/a", "a\\b", "a\x00", "a\n", "\x1f", "a\x7f"])
def test_names_that_are_paths_or_worse(name: str) -> None:
    assert not is_plain_name(name)


def test_unknown_fields_are_named() -> None:
    entry = {"name": "a.txt", "data": "aGk=", "content": "x"}
    _, warnings = parse_request({**BODY, "files": [entry], "images": ["aGk=", {**entry, "nam": "y"}]})
    assert [warning.loc for warning in warnings] == [
        ["images", 1, "content"],
        ["images", 1, "nam"],
        ["files", 0, "content"],
    ]
    assert isinstance(warnings[0], Warning)


@pytest.mark.parametrize(
    ("counts", "over", "number"),
    [
        ((3, 2, 1, 2), None, 8),
        ((3, 2, 1, 3), "audios", 9),
        ((0, 0, 0, 9), "audios", 9),
        ((3, 2, 4, 0), "videos", 9),
        ((8, 1, 0, 0), "documents", 9),
        ((9, 0, 0, 0), "files", 9),
        ((5, 5, 5, 5), "documents", 10),
    ],
)
def test_attachments_are_counted_over_all_fields(
    counts: tuple[int, ...], over: str | None, number: int
) -> None:
    fields = ("files", "documents", "videos", "audios")
    entries = {name: [{"file": "f"}] * count for name, count in zip(fields, counts, strict=True)}
    body = {**BODY, **entries, "images": ["aGk="] * 8}
    if over is None:
        request, _ = parse_request(body)
        assert sum(len(getattr(request, name)) for name in fields) == number
        return
    with pytest.raises(BadRequestError, match=rf"there are {number} attachments .* the limit is 8") as error:
        parse_request(body)
    assert error.value.issues[0].loc == ["body", over]


def test_refusals_repeat_no_data() -> None:
    with pytest.raises(BadRequestError) as error:
        parse_request(
            {
                **BODY,
                "files": [{"name": "s3cr3t/x", "data": "c2VjcmV0"}],
                "images": [{"data": "c2VjcmV0", "file": "c2VjcmV0"}],
            }
        )
    assert "c2VjcmV0" not in str(error.value)
    assert "s3cr3t" not in str(error.value)
