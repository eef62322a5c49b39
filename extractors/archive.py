"""The check of an Office file (a zip archive of XML parts) before any library opens it."""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections.abc import Iterable
from xml.parsers import expat

from jev.extractors.errors import ExtractError, LimitExceeded, Unreadable, UnsupportedType
from jev.extractors.limits import MIB, Limits

CONTENT_TYPES = "[Content_Types].xml"

_MAIN = re.compile(
    rb"application/vnd\.(?:openxmlformats-officedocument|ms-\w+)\."
    rb"(wordprocessingml\.document|spreadsheetml\.sheet|presentationml\.presentation)\.main\+xml"
)
_FORMATS = {b"wordprocessingml": "docx", b"spreadsheetml": "xlsx", b"presentationml": "pptx"}
_WITH_MACROS = re.compile(rb"(?i)application/vnd\.ms-[\w.]+\.macroEnabled(?:\.main|Template)")
_OTHER_PACKAGES = (("mimetype", "an OpenDocument or e-book file"), ("META-INF/MANIFEST.MF", "a Java archive"))
_MAX_CONTENT_TYPES = MIB
_MAX_DEPTH = 200
_XML_STARTS = (b"<", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_RELATIONSHIP = "http://schemas.openxmlformats.org/package/2006/relationships Relationship"
_STRICT = "http://purl.oclc.org/ooxml/"
# A link that is clicked, not loaded: the only external relationship that reading never follows.
_HYPERLINK = "/relationships/hyperlink"


def office_format(data: bytes) -> str:
    """Return "docx", "xlsx" or "pptx" for a zip archive that is one, by its content types.

    Raises:
        UnsupportedType: for any other archive.
        Unreadable: if the archive is damaged.
    """
    with _open(data) as archive:
        names = set(archive.namelist())
        if CONTENT_TYPES not in names:
            what = next((what for name, what in _OTHER_PACKAGES if name in names), "a zip archive")
            raise UnsupportedType(f"It is {what}, an unsupported file type")
        info = archive.getinfo(CONTENT_TYPES)
        if info.file_size > _MAX_CONTENT_TYPES:
            raise Unreadable("Its list of content types is too long to be that of an Office file")
        types = _read(archive, info)
    if _WITH_MACROS.search(types):
        raise UnsupportedType("It is an Office file with macros, an unsupported file type")
    found = _MAIN.search(types)
    if not found:
        raise UnsupportedType("It is a package of a kind that is not Word, Excel or PowerPoint")
    return _FORMATS[found[1].split(b".")[0]]


def check_package(data: bytes, limits: Limits) -> tuple[str, ...]:
    """Check an Office file's archive before a library opens it.

    Names, sizes and relationships are checked from the directory first; only then is each XML part
    expanded, once and within the limits, to find document types and entities.

    Returns notes on what the package has that is not read.

    Raises:
        LimitExceeded: for `max_zip_entries`, `max_expanded_bytes`, `max_expansion_ratio` or
            `max_markup_nodes`.
        Unreadable: for damaged or encrypted archives, duplicate or escaping names, document types,
            and relationships to something outside the file.
    """
    with _open(data) as archive:
        infos = archive.infolist()
        if len(infos) > limits.max_zip_entries:
            raise LimitExceeded("max_zip_entries", limits.max_zip_entries, len(infos), unit="archive entries")
        _check_names(info.filename for info in infos)
        _check_sizes(infos, limits)
        checker = _XmlChecker(limits)
        for info in infos:
            checker.check(info.filename, _read(archive, info))
        names = [info.filename.lower() for info in infos]
    notes: list[str] = []
    if any(name.endswith("vbaproject.bin") for name in names):
        notes.append("Macros were not run or read")
    embedded = sum("/embeddings/" in name for name in names)
    if embedded:
        notes.append(f"Embedded files were not read: {embedded}")
    if checker.links:
        notes.append(f"Links were not followed: {checker.links}")
    return tuple(notes)


def _open(data: bytes) -> zipfile.ZipFile:
    # zipfile makes an object for every entry of the directory: a directory of millions is refused before.
    if data.count(b"PK\x01\x02") > 1 << 16:
        raise Unreadable("Its archive directory is too long to be that of an Office file")
    try:
        return zipfile.ZipFile(io.BytesIO(data))
    except MemoryError:
        raise
    except Exception as error:  # zipfile lets whatever a damaged directory leads to through
        raise Unreadable("Its archive is damaged or cut short") from error


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Expand an entry: at most the size that the directory states, which was checked before."""
    if info.flag_bits & 1:
        raise Unreadable("It is protected by a password")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Unreadable("Its archive is damaged, or compressed in a way that Office files are not")
    try:
        content = archive.read(info)
    except EOFError as error:
        raise Unreadable("Its archive is cut short") from error
    except MemoryError:
        raise
    except Exception as error:
        raise Unreadable("A part of its archive is damaged") from error
    if len(content) != info.file_size:
        raise Unreadable("A part of its archive has another size than its directory says")
    return content


def _check_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        # Parts are compared without regard to case: so two such names are one part twice.
        key = name.lower()
        if key in seen:
            raise Unreadable("Its archive has duplicate entries of one name")
        seen.add(key)
        if (
            name.startswith("/")
            or "\\" in name
            or "\0" in name
            or ".." in name.split("/")
            or name[1:2] == ":"
        ):
            raise Unreadable("Its archive has an entry whose name leads out of it")


def _check_sizes(infos: Iterable[zipfile.ZipInfo], limits: Limits) -> None:
    total = 0
    for info in infos:
        if info.flag_bits & 1:
            raise Unreadable("It is protected by a password")
        packed = info.file_size <= info.compress_size + info.compress_size // 2
        # Pictures and sound are not read, and packed as they are cannot outgrow the file.
        if not ("/media/" in info.filename and packed):
            total += info.file_size
    if total > limits.max_expanded_bytes:
        raise LimitExceeded("max_expanded_bytes", limits.max_expanded_bytes, total, unit="expanded bytes")
    for info in infos:
        ratio = info.file_size // max(1, info.compress_size)
        if info.file_size > MIB and ratio > limits.max_expansion_ratio:
            unit = "expanded bytes for each stored byte"
            raise LimitExceeded("max_expansion_ratio", limits.max_expansion_ratio, ratio, unit=unit)


class _XmlChecker:
    """Parses XML parts with expat, which expands nothing, only to see what is in them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._nodes = 0
        self._depth = 0
        self._base = ""
        self.links = 0

    def check(self, name: str, xml: bytes) -> None:
        # By content too: the package decides which of its parts are XML, whatever they are named.
        if not (
            name.lower().endswith((".xml", ".rels", ".vml")) or xml[:64].lstrip().startswith(_XML_STARTS)
        ):
            return
        self._base = posixpath.dirname(posixpath.dirname(name))
        rels = name.lower().endswith(".rels")
        parser = expat.ParserCreate(namespace_separator=" ")
        self._depth = 0
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._start_rels if rels else self._start
        parser.EndElementHandler = self._end
        try:
            parser.Parse(xml, True)
        except expat.ExpatError as error:
            raise Unreadable(f"A part of it is not well-formed XML (line {error.lineno})") from error
        except ExtractError:
            raise
        except (ValueError, LookupError) as error:
            raise Unreadable("A part of it is XML in an encoding that is not supported") from error

    def _doctype(self, *_: object) -> None:
        raise Unreadable("Its XML has a document type declaration (DTD), which may hide entities")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        del name, attributes
        self._nodes += 1
        if self._nodes > self._limits.max_markup_nodes:
            most = self._limits.max_markup_nodes
            raise LimitExceeded("max_markup_nodes", most, self._nodes, unit="XML nodes", at_least=True)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Unreadable(f"Its XML is nested more than {_MAX_DEPTH} levels deep")

    def _end(self, name: str) -> None:
        del name
        self._depth -= 1

    def _start_rels(self, name: str, attributes: dict[str, str]) -> None:
        self._start(name, attributes)
        if name != _RELATIONSHIP:
            return
        target, type_ = attributes.get("Target", ""), attributes.get("Type", "")
        if type_.startswith(_STRICT):
            raise UnsupportedType(
                "It is a Strict Open XML file, an unsupported file type: save it as the usual one"
            )
        if attributes.get("TargetMode", "").strip().lower() == "external":
            if not type_.endswith(_HYPERLINK):
                raise Unreadable("It has external relationships: it refers to something outside the file")
            self.links += 1
        elif _escapes(self._base, target):
            raise Unreadable("It has relationships whose target leads out of the file")


def _escapes(base: str, target: str) -> bool:
    """Whether a target, relative to the folder of its part, is above the root of the package."""
    if "\\" in target or target.startswith("//"):
        return True
    path = target if target.startswith("/") else f"{base}/{target}"
    return posixpath.normpath(path.lstrip("/")).startswith("..")
