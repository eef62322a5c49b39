"""Every row of an input gets its number and either a row or a reason, whatever the file holds."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import jev.batch.readers as readers
from jev.batch.inputs import Columns, Input, open_input, row_of
from jev.batch.readers import JobError, RowError
from jev.schemas import Row


def rows(source: Input, skip: int = 0) -> list[tuple[int, Row | RowError]]:
    return list(source.rows(skip))


def states(source: Input) -> list[Any]:
    return [row.message if isinstance(row, RowError) else row.state for _, row in source.rows()]


def test_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(
        b'\xef\xbb\xbf{"state": "one", "id": 7, "more": 1}\n'
        b"\n"
        b'"just text"\r\n'
        b'{"state": {"a": [1]}, "attachments": ["x.pdf"]}\n'
        b"{broken\n"
        b'{"state": "\xff"}\n'
        b'{"stat": "typo"}\n'
        b'{"state": 3}\n'
        b"[1]\n"
        b'{"state": ""}\n'
        b'{"state": "\\ud800"}\n'
        b'{"state": "a", "questions": {"q": {"type": "nuol"}}}\n'
        b'{"state": "last"}'
    )
    source = open_input(file)
    found = rows(source)
    assert [number for number, _ in found] == list(range(1, 13))
    assert source.reader.count() == 12
    first, text, structured, *bad, last = (row for _, row in found)
    assert first == Row(state="one", id="7")
    assert text == Row(state="just text")
    assert structured == Row(state={"a": [1]}, attachments=["x.pdf"])
    assert last == Row(state="last")
    reasons = [
        ("json_invalid", "line 5: "),
        ("invalid_utf8", "line 6: byte 12 is not valid UTF-8"),
        ("missing", "there is neither a state nor attachments"),
        ("text_type", "state: "),
        ("invalid_row", "a row is a JSON object"),
        ("missing", "the state is empty"),
        ("json_invalid", "line 11: "),
        ("union_tag_invalid", "questions.q: The type of a question should be"),
    ]
    for row, (kind, message) in zip(bad, reasons, strict=True):
        assert isinstance(row, RowError)
        assert (row.type, row.message[: len(message)]) == (kind, message)
    assert rows(source, skip=10) == found[10:]


def test_a_line_that_is_too_long_is_one_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_RECORD", 50)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"state": "a"}\n' + json.dumps({"state": "x" * 500}) + '\n{"state": "b"}\n')
    found = [row for _, row in rows(open_input(file))]
    assert [isinstance(row, RowError) for row in found] == [False, True, False]
    assert found[1].message == "line 2: it is longer than 50 bytes"  # type: ignore[union-attr]


def test_csv(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(
        'text,ticket,file\r\n"two\nlines, and ""quotes""",A1,a.pdf\r\n'
        "short\r\n"
        "a,b,c,d\r\n"
        "héllo,A2,\r\n".encode()
        + b"bad \xff,A3,\r\n"
        + b",A4,\r\n"
    )
    source = open_input(file, Columns(("text",), "ticket", ("file",)))
    found = [row for _, row in rows(source)]
    assert found[0] == Row(state='two\nlines, and "quotes"', id="A1", attachments=["a.pdf"])
    assert found[3] == Row(state="héllo", id="A2")
    assert [one.message for one in found if isinstance(one, RowError)] == [
        "line 4: it has 1 columns, the first row has 3; 'ticket' is missing",
        "line 5: it has 4 columns, the first row has 3",
        "line 7: 'text' is not valid UTF-8",
        "the state is empty and there is no attachment",
    ]
    assert source.reader.count() == 6
    assert rows(source, skip=3)[0] == (4, found[3])


def test_a_table_without_named_columns_is_a_state_of_all_of_them(tmp_path: Path) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text("id\tsubject\tbody\n7\thello\tworld\n")
    assert rows(open_input(file)) == [(1, Row(id="7", state={"subject": "hello", "body": "world"}))]
    file.write_text("state\tlabel\nhello\tspam\n")
    assert rows(open_input(file)) == [(1, Row(state="hello"))]
    assert states(open_input(file, Columns(("state", "label")))) == [{"state": "hello", "label": "spam"}]


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    count = 300
    table = pa.table(
        {
            "text": [None if n == 5 else f"row {n}" for n in range(count)],
            "when": [datetime.date(2026, 1, 1)] * count,
            "price": [Decimal("1.50")] * count,
            "files": [["a.pdf", "b.pdf"] if n == 0 else [] for n in range(count)],
        }
    )
    file = tmp_path / "rows.parquet"
    parquet.write_table(table, file, row_group_size=100)
    source = open_input(file, Columns(("text",), attachments=("files",)))
    found = rows(source)
    assert [number for number, _ in found] == list(range(1, count + 1))
    assert found[0][1] == Row(state="row 0", attachments=["a.pdf", "b.pdf"])
    assert isinstance(found[5][1], RowError)
    assert found[5][1].message == "the column 'text' is missing or empty"
    for skip in (0, 1, 99, 100, 250, 299, 300):
        assert rows(source, skip) == found[skip:]
    whole = rows(open_input(file, Columns(attachments=("files",))))[1][1]
    assert whole == Row(state={"text": "row 1", "when": "2026-01-01", "price": "1.50"})

    parquet.write_table(pa.table({"state": [b"text", b"\xff"], "id": [1.0, None]}), file)
    good, bad = (row for _, row in rows(open_input(file)))
    assert good == Row(state="text", id="1.0")
    assert isinstance(bad, RowError)
    twins = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["state", "state"])
    parquet.write_table(twins, file)
    with pytest.raises(JobError, match="two columns named 'state'"):
        open_input(file)

    array = pa.StringArray.from_buffers(
        3, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb")
    )
    parquet.write_table(pa.table({"state": array}), file)
    assert [isinstance(row, RowError) for _, row in rows(open_input(file))] == [False, True, False]


def test_a_parquet_value_that_python_has_not_spoils_no_other_row(tmp_path: Path) -> None:
    """Far dates and nanoseconds become text; what cannot even be text is its own row's fault."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "rows.parquet"
    columns = {
        "far": pa.array([0, 10**18], pa.timestamp("us")),
        "day": pa.array([0, 2**31 - 1], pa.date32()),
        "fine": pa.array([1, 2], pa.time64("ns")),
        "zone": pa.array([0, 1], pa.timestamp("s", tz="Nowhere/Never")),
    }
    for name, column in columns.items():
        parquet.write_table(pa.table({"text": ["a", "b"], name: column}), file)
        found = [row for _, row in rows(open_input(file, Columns(("text",))))]
        # Where a time zone is unknown nothing can be read of the column; no traceback ends the job.
        assert all(isinstance(row, (Row, RowError)) for row in found), name
        if name != "zone":
            assert [row.state for row in found if isinstance(row, Row)] == ["a", "b"], name
    twice = pa.struct([pa.field("x", pa.int8()), pa.field("x", pa.int8())])
    table = pa.table(
        {"text": ["a"], "odd": pa.StructArray.from_arrays([pa.array([1], pa.int8())] * 2, fields=list(twice))}
    )
    parquet.write_table(table, file)
    ((_, bad),) = rows(open_input(file, Columns(("text",))))
    assert isinstance(bad, RowError)
    assert "column 'odd': a value cannot be read" in bad.message


def test_a_folder_is_a_row_a_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("b.txt", "a.pdf", "sub/c.eml", ".hidden/d.txt", ".e"):
        (tmp_path / name).write_text("x")
    found = rows(open_input(tmp_path))
    assert [(number, row.id, row.attachments) for number, row in found if isinstance(row, Row)] == [
        (1, "a.pdf", ["a.pdf"]),
        (2, "b.txt", ["b.txt"]),
        (3, "sub/c.eml", ["sub/c.eml"]),
    ]
    odd = tmp_path / os.fsdecode(b"z\xff.txt")
    odd.touch()
    number, bad = rows(open_input(tmp_path))[-1]
    assert isinstance(bad, RowError)
    assert (number, bad.type, bad.message.isprintable()) == (4, "invalid_utf8", True)
    odd.unlink()
    before = open_input(tmp_path).reader.digest()
    (tmp_path / "b.txt").write_text("longer")
    assert open_input(tmp_path).reader.digest() != before


def test_gzip_and_what_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl.gz"
    whole = gzip.compress(b"".join(b'{"state": "%d"}\n' % number for number in range(5000)))
    file.write_bytes(whole)
    assert open_input(file).reader.count() == 5000
    file.write_bytes(whole[: len(whole) // 2])
    source = open_input(file)
    for read in (rows, Input.count, Input.digest):
        if read is not Input.digest:  # a hash is of the bytes, whole or not
            with pytest.raises(JobError, match="it cannot be read"):
                read(source)
    file.unlink()
    with pytest.raises(JobError, match="it cannot be read"):
        source.digest()


def test_standard_input_is_kept_for_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Piped:
        buffer = io.BytesIO(b'{"state": "a"}\n{"state": "b"}\n')

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdin", Piped())
    spool = tmp_path / "input.jsonl"
    assert states(open_input("-", spool=spool)) == ["a", "b"]
    assert states(open_input("-", spool=spool)) == ["a", "b"]  # nothing is piped in any more


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("no.jsonl", None, "there is no such file"),
        ("rows.xlsx", b"", "the name must end in"),
        ("rows.parquet.gz", b"", "the name must end in"),
        ("rows.csv", b"", "there is no row with the names"),
        ("rows.csv", b"a,a\n1,2\n", "two columns named 'a'"),
        ("rows.csv", b"\xff\xfea\0,\0", "the names of the columns are not valid UTF-8"),
        (
            "rows.csv",
            b"state;id\nx;1\n",
            "columns are parted by ',', and its first row has none of these but ';'",
        ),
        ("rows.csv.gz", b"no gzip", "rows.csv.gz: it cannot be read"),
        ("rows.parquet", b"PAR1 no", "it is not a Parquet file"),
    ],
)
def test_an_input_that_cannot_be_used(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(JobError, match=message):
        open_input(tmp_path / name)


def test_a_bad_row_keeps_its_id(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": "a"}\n{"id": 7, "state": ""}\n{"name": "c", "id": "x", "state": 1}\n')
    assert [row.id for _, row in rows(open_input(file))] == ["a", "7", "x"]
    assert [row.id for _, row in rows(open_input(file, Columns(id="name")))] == [None, None, "c"]


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text,label\nx,y\n")
    with pytest.raises(JobError, match=r"there is no column 'txt'; it has 'text', 'label'"):
        open_input(file, Columns(("txt",)))
    # Lines of JSON have no columns in common, so there it is the row's fault.
    missing = row_of({"text": "x"}, Columns(("txt",)))
    assert isinstance(missing, RowError)
    assert (missing.type, missing.loc) == ("missing", ("txt",))
