"""Reading order of a page: from pieces of text with their places to lines.

Coordinates are points with the origin at the top left, y downwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias
from unicodedata import bidirectional

Box: TypeAlias = tuple[float, float, float, float]
"""x0, y0, x1, y1."""

_PROSE_LINES = 3
_PROSE_WIDTH = 0.12
_GUTTER = 5.0
_MAX_BLOCKS = 2000


@dataclass(frozen=True)
class Piece:
    """A run of text on one baseline.

    Attributes:
        box: its place.
        text: without line ends, unless it stands for a whole table.
        block: which group of lines (a paragraph, roughly) it belongs to.
        direction: of writing, as the rounded cosine and sine of its angle; (1, 0) is usual.
    """

    box: Box
    text: str
    block: int
    direction: tuple[int, int] = (1, 0)


def main_direction(pieces: Sequence[Piece]) -> tuple[int, int]:
    """Return the direction that most of the text is written in."""
    letters: Counter[tuple[int, int]] = Counter()
    for piece in pieces:
        letters[piece.direction] += len(piece.text)
    return letters.most_common(1)[0][0] if letters else (1, 0)


def lines_of(pieces: Sequence[Piece]) -> list[str]:
    """Return the page's lines in reading order.

    Pieces side by side make one line, with tabs where the gap is wide. Columns of prose are read one
    after the other, between whatever spans them. Both go from right to left where the writing does. Text
    in another direction comes last.
    """
    main = main_direction(pieces)
    upright = [_turned(piece, main) for piece in pieces if piece.direction == main]
    # Other directions keep the order of the file: a stamp or an axis label has no place in the lines.
    others = [piece.text for piece in pieces if piece.direction != main]
    return [*_ordered(upright), *others]


def _turned(piece: Piece, main: tuple[int, int]) -> Piece:
    """Turn a piece so that the main direction runs to the right."""
    x0, y0, x1, y1 = piece.box
    box = {
        (1, 0): piece.box,
        (0, 1): (y0, -x1, y1, -x0),
        (-1, 0): (-x1, -y1, -x0, -y0),
        (0, -1): (-y1, x0, -y0, x1),
    }.get(main, piece.box)
    return Piece(box, piece.text, piece.block)


def _ordered(pieces: list[Piece]) -> list[str]:
    if not pieces:
        return []
    blocks: dict[int, list[Piece]] = {}
    for piece in pieces:
        blocks.setdefault(piece.block, []).append(piece)
    boxes = {number: _around(members) for number, members in blocks.items()}
    width = max(box[2] for box in boxes.values()) - min(box[0] for box in boxes.values())
    prose = [boxes[number] for number, members in blocks.items() if _is_prose(members, width)]
    if len(blocks) > _MAX_BLOCKS or not _side_by_side(prose):
        return _rows(pieces)
    gutters = _gutters(prose)
    if not gutters:
        # Columns that change down the page: the file's own order is the best guess.
        return [line for members in blocks.values() for line in _rows(members)]
    lines: list[str] = []
    columns: list[list[Piece]] = [[] for _ in range(len(gutters) + 1)]
    for number in sorted(blocks, key=lambda number: boxes[number][1]):
        box = boxes[number]
        if any(box[0] < gutter < box[2] for gutter in gutters):
            lines += _flush(columns)
            lines += _rows(blocks[number])
        else:
            columns[sum(gutter <= box[0] for gutter in gutters)] += blocks[number]
    return lines + _flush(columns)


def _flush(columns: list[list[Piece]]) -> list[str]:
    leftwards = _leftwards([piece for column in columns for piece in column])
    lines = [line for column in (columns[::-1] if leftwards else columns) for line in _rows(column)]
    for column in columns:
        column.clear()
    return lines


def _is_prose(members: list[Piece], width: float) -> bool:
    rows = {round(piece.box[1]) for piece in members}
    wide = sum(piece.box[2] - piece.box[0] for piece in members) / len(members)
    return len(rows) >= _PROSE_LINES and wide >= _PROSE_WIDTH * width


def _side_by_side(boxes: list[Box]) -> bool:
    """Whether two boxes share a height but no width."""
    ordered = sorted(boxes, key=lambda box: box[1])
    for at, one in enumerate(ordered):
        for other in ordered[at + 1 :]:
            if other[1] >= one[3]:
                break
            if other[0] >= one[2] or other[2] <= one[0]:
                return True
    return False


def _gutters(prose: list[Box]) -> list[float]:
    """Return the middles of the gaps that no block of prose crosses, left to right.

    A block wider than most of the page is a heading or abstract over the columns and has no say.
    """
    left, right = min(box[0] for box in prose), max(box[2] for box in prose)
    narrow = [box for box in prose if box[2] - box[0] <= 0.6 * (right - left)]
    gutters: list[float] = []
    reach = None
    for box in sorted(narrow):
        if reach is not None and box[0] - reach >= _GUTTER:
            gutters.append((box[0] + reach) / 2)
        reach = box[2] if reach is None else max(reach, box[2])
    return gutters


def _rows(pieces: list[Piece]) -> list[str]:
    """Return lines of pieces by height, pieces of one height from left to right."""
    lines: list[str] = []
    row: list[Piece] = []
    top = bottom = 0.0
    for piece in sorted(pieces, key=lambda piece: ((piece.box[1] + piece.box[3]) / 2, piece.box[0])):
        middle = (piece.box[1] + piece.box[3]) / 2
        if row and "\n" not in piece.text and "\n" not in row[-1].text and top <= middle <= bottom:
            row.append(piece)
            continue
        if row:
            lines.append(_joined(row))
        row, (_, top, _, bottom) = [piece], piece.box
    if row:
        lines.append(_joined(row))
    return lines


def _joined(row: list[Piece]) -> str:
    leftwards = _leftwards(row)
    row = sorted(row, key=lambda piece: piece.box[0], reverse=leftwards)
    text = row[0].text
    for before, piece in pairwise(row):
        left, right = (piece, before) if leftwards else (before, piece)
        height = piece.box[3] - piece.box[1]
        text += ("\t" if right.box[0] - left.box[2] > height else " ") + piece.text
    return text


def _leftwards(pieces: Sequence[Piece]) -> bool:
    """Whether most letters are of a script that is written from right to left, such as Hebrew or Arabic."""
    kinds = Counter(bidirectional(letter) for piece in pieces for letter in piece.text)
    return kinds["R"] + kinds["AL"] > kinds["L"]


def _around(pieces: list[Piece]) -> Box:
    return (
        min(piece.box[0] for piece in pieces),
        min(piece.box[1] for piece in pieces),
        max(piece.box[2] for piece in pieces),
        max(piece.box[3] for piece in pieces),
    )
