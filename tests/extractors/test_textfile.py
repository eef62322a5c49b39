"""Text files are read as they are in any encoding, which a note names; what is not text is refused."""

# ruff: noqa: RUF001 - letters of other alphabets are the point

from __future__ import annotations

import hashlib

import pytest

from jev.extractors import LimitExceeded, Limits, Unreadable
from jev.extractors.textfile import decode, known_encoding, read_text

LIMITS = Limits()
RUSSIAN = "Клиент жалуется на задержку доставки и просит вернуть деньги за заказ."
FRENCH = "Le café est fermé à Noël. Où êtes-vous allés cet été ? Ça va être très agréable."
POLISH = "Zażółć gęślą jaźń. Proszę o zwrot pieniędzy za zamówienie, które nie dotarło."
JAPANESE = "お客様は配達の遅れについて苦情を申し立て、返金を求めています。"
CHINESE = "客户投诉配送延迟并要求退款。请尽快处理这个问题。"
GREEK = "Ο πελάτης παραπονιέται για την καθυστέρηση της παράδοσης."


def test_utf8_is_read_without_a_note() -> None:
    data = "naïve — 数据 🙂\r\n\tx".encode()
    evidence = read_text(data, "a.txt", LIMITS)
    assert (evidence.kind, evidence.text, evidence.notes) == ("text", "naïve — 数据 🙂\r\n\tx", ())
    assert evidence.sha256 == hashlib.sha256(data).hexdigest()
    assert (evidence.pictures, evidence.sampled, evidence.name) == ((), False, "a.txt")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks_decide_and_are_dropped(encoding: str) -> None:
    evidence = read_text("Grüße, 世界".encode(encoding), "a.txt", LIMITS)
    assert (evidence.text, evidence.notes) == ("Grüße, 世界", ())


@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-32-be"])
def test_big_endian_marks_too(encoding: str) -> None:
    assert read_text("\ufeffGrüße".encode(encoding), "a.txt", LIMITS).text == "Grüße"


@pytest.mark.parametrize(
    ("text", "encoding", "named"),
    [
        (RUSSIAN, "cp1251", "cp1251"),
        (RUSSIAN, "koi8-r", "koi8-r"),
        (FRENCH, "latin-1", "cp1252"),
        (FRENCH * 5, "cp1252", "cp1252"),
        (POLISH, "cp1250", "cp1250"),
        (POLISH, "iso8859-2", "iso8859-2"),
        (JAPANESE, "shift_jis", "cp932"),
        (CHINESE, "gbk", "gb18030"),
        (GREEK, "cp1253", "cp1253"),
        ("café", "latin-1", "cp1252"),
        ("It costs £5 – “fine”", "cp1252", "cp1252"),
        ("plain English. " * 6000 + FRENCH, "cp1252", "cp1252"),
    ],
)
def test_other_encodings_are_recognised_and_named(text: str, encoding: str, named: str) -> None:
    decoded, notes = decode(text.encode(encoding))
    assert decoded == text
    assert notes == (f"The encoding was recognised as {named}; it is not UTF-8 and names none",)


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ('<?xml version="1.0" encoding="ISO-8859-5"?>', "iso8859-5"),
        ('@charset "windows-1251";', "cp1251"),
        ("<meta charset=koi8-r>", "koi8-r"),
    ],
)
def test_an_encoding_that_the_file_names_is_taken_and_noted(head: str, encoding: str) -> None:
    if encoding == "cp1251":
        head = head.replace("@charset ", "@charset=")
    decoded, notes = decode((head + RUSSIAN).encode(encoding))
    assert decoded == head + RUSSIAN
    assert notes == (f"Decoded as {encoding}, the encoding it names",)


def test_valid_utf8_wins_over_a_wrong_declaration() -> None:
    assert decode(f'<meta charset="latin-1">{FRENCH}'.encode())[0].endswith(FRENCH)


def test_japanese_in_seven_bits_is_read_when_it_is_declared() -> None:
    assert decode(JAPANESE.encode("iso2022_jp"), "ISO-2022-JP") == (JAPANESE, ())


@pytest.mark.parametrize(
    "name", ["idna", "punycode", "base64", "zip", "rot13", "unicode_escape", "utf-7", ""]
)
def test_encodings_that_are_not_for_text_or_not_safe_are_unknown(name: str) -> None:
    assert known_encoding(name) is None


@pytest.mark.parametrize("character", ["\x00", "\x07", "\x0c", "\x1b", "\x7f", "\x85", "\x9f"])
def test_control_characters_are_refused_with_their_line(character: str) -> None:
    with pytest.raises(Unreadable, match=rf"line 3 has the control character U\+{ord(character):04X}"):
        read_text(f"one\ntwo\nthr{character}ee".encode(), "a.txt", LIMITS)


@pytest.mark.parametrize("data", [b" ", b"\r\n\t \n", b"\xef\xbb\xbf", " \n".encode("utf-16")])
def test_blank_files_are_refused(data: bytes) -> None:
    with pytest.raises(Unreadable, match="blank"):
        read_text(data, "a.txt", LIMITS)


@pytest.mark.parametrize("data", [b"\x00\x01\x02\xff" * 50, b"a\x00b\xff" * 50])
def test_zero_bytes_without_a_mark_are_not_text(data: bytes) -> None:
    with pytest.raises(Unreadable, match="not text"):
        read_text(data, "a.txt", LIMITS)


@pytest.mark.parametrize("data", [b"\xff\xfea", b"\xef\xbb\xbf\xff", b"\xff\xfe\0\0\xff\xff\xff\xff"])
def test_a_mark_that_the_bytes_do_not_keep_to_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable, match="begins as UTF"):
        read_text(data, "a.txt", LIMITS)


@pytest.mark.parametrize("text", [FRENCH, RUSSIAN, POLISH, JAPANESE, CHINESE, GREEK, "naïve 🙂"])
@pytest.mark.parametrize("named", [b"", b'<?xml encoding="utf-8"?>'])
def test_text_that_ends_inside_a_character_is_refused(text: str, named: bytes) -> None:
    whole = named + text.rstrip(".").encode() + "é".encode()
    assert decode(whole)[0].endswith("é")
    with pytest.raises(Unreadable, match="cut short: its last character is incomplete"):
        read_text(whole[:-1], "a.txt", LIMITS)
    # Another encoding may well end in such a byte.
    assert read_text(f"{FRENCH} Ã".encode("cp1252"), "a.txt", LIMITS).text.endswith("Ã")


def test_the_limit_counts_characters_not_bytes() -> None:
    assert len(read_text(("世" * 32_768).encode(), "a.txt", LIMITS).text) == 32_768
    assert len(read_text(("🙂" * 32_768).encode("utf-32"), "a.txt", LIMITS).text) == 32_768
    with pytest.raises(LimitExceeded, match=r"has 32,769 characters of text, which exceeds") as error:
        read_text(b"a" * 32_769, "a.txt", LIMITS)
    assert (error.value.limit, error.value.allowed, error.value.actual) == ("max_text_chars", 32_768, 32_769)
    assert len(read_text(b"a" * 100, "a.txt", Limits(max_text_chars=100)).text) == 100


def test_a_long_file_in_another_encoding_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(LimitExceeded, match="at least 1,999,999 characters") as error:
        read_text(b"\xe9" * 8_000_000, "a.txt", LIMITS)
    assert error.value.at_least


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.xml", "a.yaml", "a.md", "a.py"])
def test_structured_text_is_not_parsed(name: str) -> None:
    text = '{"a": [1,\n <b>&amp;</b> # x\n- y, "z" '
    assert read_text(text.encode(), name, LIMITS).text == text


@pytest.mark.parametrize("name", ["utf-16", "UTF-16LE", "utf-32"])
def test_what_names_itself_in_ascii_is_not_in_sixteen_bits(name: str) -> None:
    """As what .NET has written and an editor has saved in eight."""
    for more in ("", " "):
        text = f'<?xml version="1.0" encoding="{name}"?><n><a>Müller</a><b>Köln</b></n>{more}'
        found = read_text(text.encode("cp1252"), "a.xml", Limits())
        assert found.text == text


def test_a_few_bad_bytes_among_many_good_ones_are_replaced() -> None:
    text = "Grüße aus München, schöne Füße, über Österreich: àéîõü"
    found = read_text(text.encode() + b"\xa0!", "a.txt", Limits())
    assert found.text == text + "\ufffd!"
    assert found.notes == ("Bytes that are not UTF-8 were replaced: 1",)
