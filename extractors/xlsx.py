"""Excel workbooks: each sheet under its name, each row on a line of `A1=value` with tabs between."""

from __future__ import annotations

import datetime as dt
import io
import warnings
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from jev.extractors.archive import check_package
from jev.extractors.builder import TextBuilder, one_line
from jev.extractors.errors import Unreadable
from jev.extractors.evidence import Evidence, digest
from jev.extractors.limits import Limits

if TYPE_CHECKING:
    from openpyxl.workbook import Workbook

COVERAGE = "Cell values as last saved: charts, images, comments and formatting were not read"

_MAX_NAMED = 8
_MAX_ROW, _MAX_COLUMN = 1_048_576, 16_384


def read_xlsx(data: bytes, name: str, limits: Limits) -> Evidence:
    """Read a workbook (.xlsx). Formulas are not calculated: their stored values are read.

    Raises:
        LimitExceeded: for the archive's limits and `max_text_chars`.
        Unreadable: for a damaged, encrypted, unsafe or empty workbook.
    """
    notes = check_package(data, limits)
    out = TextBuilder(limits)
    uncalculated: list[str] = []
    # openpyxl warns of every extension that it leaves out; COVERAGE says it once.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        workbook, charts = _open(data)
        filled = _add_sheets(workbook, out, uncalculated)
    text = out.text()
    count = len(uncalculated)
    if not filled and count:
        raise Unreadable(
            f"It has no values: its {count:,} formulas were saved without their results, which a spreadsheet "
            "program stores when it saves the file"
        )
    if not filled:
        raise Unreadable("It has no text: every sheet of the workbook is empty")
    if count:
        named = ", ".join(uncalculated[:_MAX_NAMED]) + (", ..." if count > _MAX_NAMED else "")
        notes = (*notes, f"Formulas without a stored value were not calculated: {count} ({named})")
    if hidden := sum(sheet.sheet_state != "visible" for sheet in workbook.worksheets):
        notes = (*notes, f"Hidden sheets were read too: {hidden}")
    if charts:
        notes = (*notes, f"Chart sheets were not read: {charts}")
    return Evidence(name, "document", text, (), (COVERAGE, *notes, *out.notes), digest(data))


def _open(data: bytes) -> tuple[Workbook, int]:
    """Open a workbook; return it and the number of its chart sheets, which are left out."""
    from openpyxl.reader.excel import ExcelReader  # noqa: PLC0415 - only where one is read

    class Reader(ExcelReader):
        charts = 0

        # openpyxl would parse every drawing on the sheet, and fails on one without any.
        def read_chartsheet(self, sheet: Any, rel: Any) -> None:
            del sheet, rel
            self.charts += 1

    reader = Reader(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
    reader.read()
    return reader.wb, reader.charts


def _add_sheets(workbook: Workbook, out: TextBuilder, uncalculated: list[str]) -> bool:
    """Add every sheet; return whether any cell has a value."""
    filled = False
    for sheet in workbook.worksheets:
        out.add(f"Sheet {one_line(sheet.title)}:")
        for row in _rows(workbook, sheet):
            cells: list[str] = []
            for place, value in row:
                if value is None:
                    uncalculated.append(f"{one_line(sheet.title)}!{place}")
                else:
                    cells.append(f"{place}={_shown(value)}")
            if cells:
                filled = True
                out.add("\t".join(cells))
    return filled


def _rows(workbook: Any, sheet: Any) -> Iterator[list[tuple[str, Any]]]:
    """Yield each row's cells that have a value or a formula, as (place, value or None).

    openpyxl's own iteration fills every gap with empty cells, so that one far cell in each of many
    rows would take hours; its parser gives just the cells that the file has. What is beside the rows
    (formats, validations, links) is left out: it is not read, so it need not be sound.
    """
    from openpyxl.utils import get_column_letter  # noqa: PLC0415 - only where one is read
    from openpyxl.worksheet._reader import FORMULA_TAG, ROW_TAG, WorkSheetParser  # noqa: PLC0415
    from openpyxl.xml.functions import iterparse  # noqa: PLC0415

    class Parser(WorkSheetParser):
        def parse(self) -> Generator[Any, None, None]:
            for _, element in iterparse(self.source):
                if element.tag == ROW_TAG:
                    yield self.parse_row(element)
                    element.clear()

        def parse_cell(self, element: Any) -> dict[str, Any]:
            cell = super().parse_cell(element)
            cell["formula"] = element.find(FORMULA_TAG) is not None
            return cell

    with sheet._get_source() as source:
        parser = Parser(
            source,
            sheet._shared_strings,
            data_only=True,
            epoch=workbook.epoch,
            date_formats=workbook._date_formats,
            timedelta_formats=workbook._timedelta_formats,
        )
        for _, cells in parser.parse():
            row: list[tuple[str, Any]] = []
            for cell in cells:
                if not (0 < cell["row"] <= _MAX_ROW and 0 < cell["column"] <= _MAX_COLUMN):
                    raise Unreadable("It has a cell outside of the sheet")
                if (cell["value"] is None or cell["value"] == "") and not cell["formula"]:
                    continue
                row.append((f"{get_column_letter(cell['column'])}{cell['row']}", cell["value"]))
            yield row


def _shown(value: Any) -> str:
    """Return a cell's value as text: true and false, dates in ISO 8601, numbers to 15 digits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # 15 digits are what Excel computes with; more would show binary rounding.
        return f"{value:.15g}"
    if isinstance(value, dt.datetime):
        return value.date().isoformat() if value.time() == dt.time() else value.isoformat(" ", "seconds")
    if isinstance(value, dt.timedelta):
        minutes, seconds = divmod(round(abs(value.total_seconds())), 60)
        sign = "-" if value < dt.timedelta() else ""
        return f"{sign}{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    return one_line(str(value))
