"""Files of rows: JSON lines, CSV, Parquet and folders, read one record at a time and never dying on one."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from jev.errors import JevError, MissingExtraError
from jev.schemas import BadRequestError, parse_json

if TYPE_CHECKING:
    import pyarrow as pa

MAX_RECORD = 64 * 2**20
"""Bytes of the longest line that is looked at; a longer one is a bad row."""

PARQUET_BATCH = 64
"""Rows of a Parquet file that are in memory at once."""

SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")


class JobError(JevError, ValueError):
    """A job that cannot run as it is: its definition, its input as a whole or its output."""


@dataclass(frozen=True)
class RowError:
    """Why a row cannot be decided.

    Attributes:
        message: one sentence.
        loc: path to what is wrong in the row, or in the request that it became.
        type: the kind of error, for programs.
        status: the HTTP status that a server gave or would give.
        id: the caller's name for the row, where it has one.
    """

    message: str
    loc: tuple[str | int, ...] = ()
    type: str = "invalid_row"
    status: int = 422
    id: str | None = None


Record: TypeAlias = tuple[int, Any]
"""A row's number, from 1, and its JSON value, or a `RowError` where it has none."""


class Reader(Protocol):
    """A file of rows."""

    @property
    def columns(self) -> Sequence[str] | None:
        """Names of the columns, where the file has them once for all rows."""
        ...

    def records(self, skip: int = 0) -> Iterator[Record]:
        """The rows in order, without the first `skip`; JobError when the file cannot be read at all."""
        ...

    def count(self) -> int:
        """How many rows there are."""
        ...

    def digest(self) -> str:
        """What the rows are, as a hash."""
        ...


def open_reader(path: Path) -> Reader:
    """The reader for a file or folder, by its name.

    Raises:
        JobError: it does not exist, or its name ends in none of the known suffixes.
        MissingExtraError: pyarrow is needed and not installed.
    """
    if path.is_dir():
        return Folder(path)
    if not path.is_file():
        raise JobError(f"input {path}: there is no such file or folder")
    name = path.name.lower().removesuffix(".gz")
    suffix = Path(name).suffix
    if suffix in (".jsonl", ".ndjson"):
        return JsonLines(path)
    if suffix in (".csv", ".tsv"):
        return Csv(path, "\t" if suffix == ".tsv" else ",")
    if name.endswith(".parquet") and path.suffix.lower() != ".gz":
        return Parquet(path)
    raise JobError(f"input {path}: the name must end in {', '.join(SUFFIXES)}, or be a folder")


class JsonLines:
    """One JSON value a line; empty lines are no rows."""

    columns = None

    def __init__(self, path: Path) -> None:
        self._path = path

    def records(self, skip: int = 0) -> Iterator[Record]:
        """See `Reader`."""
        for number, (line, raw) in enumerate(self._lines(), 1):
            if number > skip:
                yield number, _value(raw, line)

    def count(self) -> int:
        """See `Reader`."""
        return sum(1 for _ in self._lines())

    def digest(self) -> str:
        """See `Reader`."""
        return file_digest(self._path)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Line numbers and lines; of a line that is too long only the beginning."""
        with _opened(self._path) as file:
            line = 0
            while raw := file.readline(MAX_RECORD + 1):
                line += 1
                kept = raw
                while len(raw) > MAX_RECORD and not raw.endswith(b"\n"):
                    raw = file.readline(MAX_RECORD + 1)
                if line == 1:
                    kept = kept.removeprefix(b"\xef\xbb\xbf")
                if kept.strip():
                    yield line, kept


def _value(raw: bytes, line: int) -> Any:
    if len(raw) > MAX_RECORD:
        return RowError(f"line {line}: it is longer than {MAX_RECORD} bytes", type="too_large", status=413)
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return RowError(f"line {line}: byte {error.start + 1} is not valid UTF-8", type="invalid_utf8")
    try:
        return parse_json(raw)
    except BadRequestError as error:
        return RowError(f"line {line}: {error.issues[0].msg}", type="json_invalid")


class Csv:
    """A table as text, with the columns' names in its first row."""

    def __init__(self, path: Path, delimiter: str) -> None:
        self._path = path
        self._delimiter = delimiter
        # The limit holds for the whole process; it only ever rises.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_RECORD))
        with _opened(path) as file:
            header = next(self._reader(file), None)
        if not header:
            raise JobError(f"input {path}: there is no row with the names of the columns")
        if not all(map(_is_text, header)):
            raise JobError(f"input {path}: the names of the columns are not valid UTF-8")
        if len(header) == 1 and (other := {";", "\t", ","} & {*header[0]}):
            raise JobError(
                f"input {path}: columns are parted by {delimiter!r}, and its first row has none of these "
                f"but {min(other)!r}"
            )
        _refuse_twins(path, header)
        self.columns: Sequence[str] = header

    def records(self, skip: int = 0) -> Iterator[Record]:
        """See `Reader`."""
        for number, (line, cells) in enumerate(self._rows(), 1):
            if number > skip:
                yield number, self._value(cells, line)

    def count(self) -> int:
        """See `Reader`."""
        return sum(1 for _ in self._rows())

    def digest(self) -> str:
        """See `Reader`."""
        return file_digest(self._path)

    def _reader(self, file: IO[bytes]) -> Any:
        # Bytes that are not UTF-8 become surrogates, so that only their row is refused.
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        return csv.reader(iter(lambda: text.readline(MAX_RECORD), ""), delimiter=self._delimiter)

    def _rows(self) -> Iterator[tuple[int, list[str] | str]]:
        """Line numbers and cells, or what is wrong with the row."""
        with _opened(self._path) as file:
            reader = self._reader(file)
            next(reader, None)
            while True:
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield reader.line_num, str(error)
                    continue
                if cells:
                    yield reader.line_num, cells

    def _value(self, cells: list[str] | str, line: int) -> Any:
        if isinstance(cells, str):
            return RowError(f"line {line}: {cells}", type="csv_invalid")
        if len(cells) != len(self.columns):
            text = f"line {line}: it has {len(cells)} columns, the first row has {len(self.columns)}"
            if len(cells) < len(self.columns):
                text += f"; {self.columns[len(cells)]!r} is missing"
            return RowError(text, type="csv_invalid")
        for name, cell in zip(self.columns, cells, strict=True):
            if not _is_text(cell):
                return RowError(f"line {line}: {name!r} is not valid UTF-8", (name,), "invalid_utf8")
        return dict(zip(self.columns, cells, strict=True))


class Parquet:
    """A Parquet file, a few rows in memory at a time."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow as pa  # noqa: PLC0415 - only Parquet needs it
            from pyarrow import parquet  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise MissingExtraError("Parquet needs pyarrow: pip install 'jev-server[parquet]'") from error
        self._path = path
        self._errors = (pa.ArrowException, OSError)
        self._open = parquet.ParquetFile
        try:
            with self._open(path) as file:
                self._groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
                self.schema: pa.Schema = file.schema_arrow
        except self._errors as error:
            raise JobError(f"input {path}: it is not a Parquet file ({first_line(error)})") from None
        self.columns: Sequence[str] = self.schema.names
        _refuse_twins(path, self.columns)

    def records(self, skip: int = 0) -> Iterator[Record]:
        """See `Reader`."""
        number = skip
        for batch in self.batches(skip):
            for value in _rows_of(batch, self._errors):
                number += 1
                yield number, value

    def batches(self, skip: int = 0) -> Iterator[pa.RecordBatch]:
        """The rows as record batches, without the first `skip`."""
        first = 0
        while first < len(self._groups) and skip >= self._groups[first]:
            skip -= self._groups[first]
            first += 1
        try:
            with self._open(self._path) as file:
                groups = list(range(first, len(self._groups)))
                for batch in file.iter_batches(PARQUET_BATCH, row_groups=groups):
                    if skip >= len(batch):
                        skip -= len(batch)
                        continue
                    yield batch.slice(skip)
                    skip = 0
        except self._errors as error:
            raise JobError(f"input {self._path}: it cannot be read ({first_line(error)})") from None

    def count(self) -> int:
        """See `Reader`."""
        return sum(self._groups)

    def digest(self) -> str:
        """See `Reader`."""
        return file_digest(self._path)


def _rows_of(batch: pa.RecordBatch, errors: tuple[type[Exception], ...]) -> Iterator[Any]:
    """The rows of a batch; what Python has no value for is text, or spoils its own row alone."""
    unreadable = (*errors, ValueError, OverflowError, LookupError)
    try:
        rows = batch.to_pylist()
    except unreadable:
        for index in range(len(batch)):
            cells = {name: _cell(batch, name, index, unreadable) for name in batch.schema.names}
            bad = next((one for one in cells.values() if isinstance(one, RowError)), None)
            yield bad or cells
        return
    yield from rows


def _cell(batch: pa.RecordBatch, name: str, index: int, unreadable: tuple[type[Exception], ...]) -> Any:
    cell = batch.column(name).slice(index, 1)
    try:
        return cell[0].as_py()
    except UnicodeDecodeError as error:
        return RowError(f"a text is not valid UTF-8 ({error.reason})", (name,), "invalid_utf8")
    except unreadable as error:
        reason = first_line(error)
    try:  # nanoseconds, and dates behind the year 9999
        return cell.cast("string")[0].as_py()
    except unreadable:
        return RowError(f"column {name!r}: a value cannot be read ({reason})", (name,), "invalid_row")


class Folder:
    """A folder of files, in it and below: each is a row with the file as its attachment, by name."""

    columns = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: list[str] | None = None

    def records(self, skip: int = 0) -> Iterator[Record]:
        """See `Reader`."""
        for number, name in islice(enumerate(self._files(), 1), skip, None):
            yield number, {"id": name, "attachments": [name]} if _is_text(name) else _unnamed(name)

    def count(self) -> int:
        """See `Reader`."""
        return len(self._files())

    def digest(self) -> str:
        """Names, sizes and times of the files."""
        found = hashlib.sha256()
        for name in self._files():
            status = (self._path / name).stat()
            found.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="surrogateescape"))
        return found.hexdigest()

    def _files(self) -> list[str]:
        if self._names is None:
            found = (path.relative_to(self._path) for path in self._path.rglob("*") if path.is_file())
            shown = (path for path in found if not any(part.startswith(".") for part in path.parts))
            self._names = sorted(path.as_posix() for path in shown)
        return self._names


def _refuse_twins(path: Path, names: Sequence[str]) -> None:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise JobError(f"input {path}: there are two columns named {twice[0]!r}")


def _is_text(value: str) -> bool:
    """Whether all of it was UTF-8."""
    return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)


def _unnamed(name: str) -> RowError:
    shown = name.encode(errors="surrogateescape").decode(errors="replace")
    return RowError(f"the file's name {shown!r} is not valid UTF-8", type="invalid_utf8")


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def first_line(error: BaseException) -> str:
    """The beginning of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")
