"""Plain text, code, CSV, JSON, XML, YAML and Markdown files, and the decoding that other readers share."""

from __future__ import annotations

import codecs
import re
import unicodedata

from jev.extractors.errors import LimitExceeded, Unreadable
from jev.extractors.evidence import Evidence, digest
from jev.extractors.limits import Limits

# UTF-32 first: its little-endian mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

# Encodings that a file may name. Others that Python knows are not text (base64, zip) or take
# quadratic time (idna, punycode).
_NAMED = frozenset(
    codecs.lookup(name).name
    for name in (
        *("ascii", "utf-8", "utf-16", "utf-32", "utf-16-le", "utf-16-be"),
        *(f"iso8859-{n}" for n in range(1, 17) if n != 12),
        *(f"cp{n}" for n in (437, 850, 852, 855, 858, 862, 866, 874, 932, 949, 950, *range(1250, 1259))),
        *("koi8-r", "koi8-u", "shift_jis", "euc_jp", "iso2022_jp", "gb2312", "gbk", "gb18030"),
        *("big5", "euc_kr", "johab", "tis-620", "mac-roman", "mac-cyrillic"),
    )
)
# As browsers do: pages that say Latin-1 are written in its superset.
_SUPERSET = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "iso8859-9": "cp1254"}

_DECLARED = re.compile(rb"""(?i)(?:encoding\s*=\s*|charset\s*=\s*)["']?\s*([a-z0-9_:.-]{2,40})""")
_SAMPLE = 64 * 1024
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_ENOUGH = 16

# What statistics may find, commonest first. ISO 8859-2 stands before Windows-1250 because text in the
# latter nearly always has bytes that are control characters in the former.
_LIKELY = (
    *("cp1252", "cp1251", "iso8859_2", "cp1250", "cp932", "gb18030", "euc_jp", "big5", "cp949"),
    *("koi8_r", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874", "iso8859_5"),
)


def read_text(data: bytes, name: str, limits: Limits) -> Evidence:
    """Read a text file as it is, whatever it is written in.

    Raises:
        Unreadable: for control characters other than tab, line feed and carriage return, blank
            files and bytes in no known encoding.
        LimitExceeded: for `max_text_chars`.
    """
    # No encoding takes more than four bytes a character, or a mark: longer is too long, whatever it is.
    least = len(data) // 4 - 1
    if least > limits.max_text_chars and not _plain(data):
        raise LimitExceeded(
            "max_text_chars", limits.max_text_chars, least, unit="characters of text", at_least=True
        )
    text, notes = decode(data)
    check_text(text, limits)
    if bad := _CONTROL.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        raise Unreadable(f"It is not plain text: line {line} has the control character U+{ord(bad[0]):04X}")
    return Evidence(name, "text", text, (), notes, digest(data))


def check_text(text: str, limits: Limits) -> None:
    """Refuse text that is blank or longer than one attachment may have."""
    if len(text) > limits.max_text_chars:
        raise LimitExceeded("max_text_chars", limits.max_text_chars, len(text), unit="characters of text")
    if not text.strip():
        raise Unreadable("It is blank: an attachment must contain some text")


def mark_of(data: bytes) -> tuple[bytes, str] | None:
    """Return the byte order mark that `data` begins with and the encoding it stands for."""
    return next(((mark, encoding) for mark, encoding in _MARKS if data.startswith(mark)), None)


def known_encoding(name: str) -> str | None:
    """Return the codec for an encoding that a file names, or None if it is not one for text."""
    try:
        found = codecs.lookup(name.strip()).name
    except (LookupError, ValueError):
        return None
    return _SUPERSET.get(found, found) if found in _NAMED else None


def decode(data: bytes, declared: str | None = None) -> tuple[str, tuple[str, ...]]:
    """Decode bytes of text.

    A byte order mark decides, then UTF-8 if the bytes are valid UTF-8, then the encoding that
    `declared` or the file's own head names, then statistics.

    Returns the text and, where the encoding was not certain, a note that names it.

    Raises:
        Unreadable: if nothing fits.
    """
    if mark := mark_of(data):
        try:
            return data[len(mark[0]) :].decode(mark[1]), ()
        except UnicodeDecodeError as error:
            raise Unreadable(
                f"It begins as {mark[1].upper()} but is not: byte {error.start} is wrong"
            ) from None
    names = [name for name in (declared, _declared_in(data)) if name]
    # Japanese in seven bits is valid UTF-8 too, but nonsense.
    if b"\x1b" in data and any(known_encoding(name) == "iso2022_jp" for name in names):
        try:
            return data.decode("iso2022_jp"), ()
        except UnicodeDecodeError:
            pass
    try:
        return data.decode("utf-8"), ()
    except UnicodeDecodeError as error:
        if b"\0" in data[:_SAMPLE]:
            raise Unreadable("It is not text: it has zero bytes and no byte order mark") from None
        first_bad = error.start
        # Bytes of another encoding do not form whole characters of UTF-8 up to the very last.
        ends_early = error.reason == "unexpected end of data" and not data[:first_bad].isascii()
    for name in names:
        encoding = known_encoding(name)
        # What names itself in ASCII is not in sixteen bits.
        if encoding and not encoding.startswith(("utf-8", "utf-16", "utf-32")):
            try:
                return data.decode(encoding), (f"Decoded as {encoding}, the encoding it names",)
            except UnicodeDecodeError:
                continue
    if ends_early:
        raise Unreadable("It is cut short: its last character is incomplete")
    if damaged := _damaged_utf8(data, named=any(known_encoding(name) == "utf-8" for name in names)):
        return damaged
    encoding = _guess(data, first_bad)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise Unreadable("It is text in no encoding that could be recognised") from None
    return text, (f"The encoding was recognised as {encoding}; it is not UTF-8 and names none",)


def _damaged_utf8(data: bytes, *, named: bool) -> tuple[str, tuple[str, ...]] | None:
    """Text that is UTF-8 but for a few bytes, with a note; None if it is more likely another encoding."""
    text = data.decode("utf-8", "replace")
    bad = text.count("\ufffd") - data.count("\ufffd".encode())
    good = sum(character > "\x7f" for character in text) - bad
    if good < (2 if named else 10) * bad:
        return None
    return text, (f"Bytes that are not UTF-8 were replaced: {bad}",)


def drop_controls(text: str) -> tuple[str, int]:
    """Remove control characters that are not white space; return the text and how many there were."""
    return _CONTROL.subn("", text)


def _plain(data: bytes) -> bool:
    # Cheap enough to learn the true length of a long file in the usual encoding.
    try:
        return len(data.decode("utf-8")) > 0
    except UnicodeDecodeError:
        return False


def _declared_in(data: bytes) -> str | None:
    found = _DECLARED.search(data[:2048])
    return found[1].decode("ascii") if found else None


def _guess(data: bytes, first_bad: int) -> str:
    """Return the likeliest encoding of bytes that are not UTF-8 (one that does not fit if none does)."""
    import charset_normalizer  # noqa: PLC0415 - only for text in an unknown encoding

    # Around the first byte that tells anything: a long English head would say nothing.
    start = max(0, min(first_bad - _SAMPLE // 2, len(data) - _SAMPLE))
    sample = data[start : start + _SAMPLE]
    # A handful of accented letters is no statistic: then Western European is the likeliest by far.
    if sum(byte >= 0x80 for byte in sample) < _ENOUGH and _western(sample):
        return "cp1252"
    fits = [
        match
        for match in charset_normalizer.from_bytes(sample, cp_isolation=list(_LIKELY))
        if match.encoding in _LIKELY and not _CONTROL.search(str(match))
    ]
    if not fits:
        return "cp1252"
    # Near ties in odd characters go to the one that reads more like a language, then to the commoner.
    near = [match for match in fits if match.chaos <= min(fit.chaos for fit in fits) + 0.05]
    best = min(near, key=lambda match: (-round(match.coherence, 1), _LIKELY.index(match.encoding)))
    return codecs.lookup(best.encoding).name


def _western(sample: bytes) -> bool:
    """Whether what is not ASCII reads as letters, quotes and signs of Western European text."""
    try:
        text = sample.decode("cp1252")
    except UnicodeDecodeError:
        return False
    odd = [c for c in text if c >= "\x80"]
    return all(unicodedata.category(c)[0] in "LPS" for c in odd)
