"""Make the attachments of the set of `jev quality smoke` again: run this file, perhaps with a folder."""

from __future__ import annotations

import sys
from datetime import date
from email.message import EmailMessage
from pathlib import Path

import docx
import openpyxl
import pymupdf
from PIL import Image, ImageDraw, ImageFont

import jev.quality.smoke

DESKS = """INVOICE 5512

Northwood Furniture Ltd, 3 Harbour Road

4 standing desks, oak            1,960.00 EUR
2 desk lamps                       118.00 EUR
Total                            2,078.00 EUR

Received on account:                 0.00 EUR
Amount due by 30 September:      2,078.00 EUR
"""

HOSTING = """HOSTING AGREEMENT

1. The provider hosts one web site of the customer.
2. The fee is 30 EUR a month, payable in advance.
3. The agreement runs for one year. It renews automatically for
   another year unless it is cancelled one month before its end.
4. Each party answers for damage that it causes by negligence.
"""

APPLICATION = """Dear Sir or Madam,

I saw your advertisement for a night receptionist and would like to apply for the job.
I have worked in two hotels for six years; my CV is on its way by post.

May I come for an interview next week? Please let me know.

Kind regards
Tomas Winter
"""


def write(folder: Path) -> None:
    """Write every file into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    _pdf(folder / "invoice_desks.pdf", DESKS)
    _pdf(folder / "hosting.pdf", HOSTING)
    _docx(
        folder / "receipt.docx",
        "Receipt",
        [
            "One-year subscription to the accounting software LedgerLine, 3 users.",
            "Amount: 540.00 EUR. Paid in full by credit card on 2 April. Nothing is outstanding.",
        ],
    )
    _docx(
        folder / "nda.docx",
        "Clause 7",
        [
            "The Recipient shall keep all information that it learns about the Discloser's products secret, "
            "shall not pass it on to anybody, and shall return all copies when asked.",
        ],
    )
    _xlsx(folder / "trips.xlsx")
    (folder / "meters.csv").write_text(
        "month,meter,kwh,amount_eur\n"
        "2026-01,electricity main,1310,393.00\n"
        "2026-02,electricity main,1204,361.20\n"
        "2026-01,gas heating,2210,265.20\n",
        encoding="utf-8",
    )
    _eml(folder / "application.eml")
    _png(folder / "sign.png", ["STOP"], 120)
    _png(folder / "hours.png", ["OPENING HOURS", "Mon - Sat  9 - 18", "Sunday  CLOSED"], 34)


def _pdf(path: Path, text: str) -> None:
    with pymupdf.open() as document:
        page = document.new_page(width=420, height=300)
        page.insert_text((36, 48), text, fontsize=11, fontname="cour")
        document.save(path, garbage=4, deflate=True, no_new_id=True)


def _docx(path: Path, title: str, paragraphs: list[str]) -> None:
    document = docx.Document()
    document.add_heading(title, level=1)
    for text in paragraphs:
        document.add_paragraph(text)
    document.save(str(path))


def _xlsx(path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Invoices"
    for row in (
        ["Date", "Supplier", "Text", "EUR"],
        [date(2026, 5, 4), "Rail Europe", "Train Berlin - Vienna, return", 148.0],
        [date(2026, 5, 4), "Hotel Donau", "2 nights, single room", 236.0],
        [date(2026, 6, 11), "Aero Nord", "Flight Hamburg - Oslo", 189.5],
    ):
        sheet.append(row)
    book.save(path)


def _eml(path: Path) -> None:
    mail = EmailMessage()
    mail["From"] = "Tomas Winter <tomas@mail.example>"
    mail["To"] = "office@hotel.example"
    mail["Subject"] = "Night receptionist"
    mail["Date"] = "Mon, 01 Jun 2026 09:30:00 +0000"
    mail.set_content(APPLICATION)
    path.write_bytes(mail.as_bytes())


def _png(path: Path, lines: list[str], height: int) -> None:
    image = Image.new("L", (440, 220), 255)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(height)
    for number, line in enumerate(lines):
        draw.text((30, 30 + number * height * 1.5), line, fill=0, font=font)
    image.quantize(8).save(path, optimize=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else jev.quality.smoke.smoke_path().with_name("files"))
