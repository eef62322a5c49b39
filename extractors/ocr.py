"""Text in pictures, for models that cannot see them and for pages that are scans."""

from __future__ import annotations

import io
import logging
import os
import threading
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from jev.extractors.errors import LimitExceeded, MissingReader, ServiceUnavailable
from jev.extractors.evidence import Evidence
from jev.extractors.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from rapidocr_onnxruntime import RapidOCR
    from rapidocr_onnxruntime.ch_ppocr_rec.utils import CTCLabelDecode

_PROSE_LINES = 3
_PROSE_WIDTH = 6
_GAP = 2
"""In heights of a line, as is the width."""
_THREADS = 4
_LONGEST = 2000
_SHORTEST = 64
"""Sides in pixels of what is read."""
_SPACE = 0.02
"""Probability of a space from which one is seen where there is no other character."""

_log = logging.getLogger(__name__)
_lock = threading.Lock()


class Box(NamedTuple):
    """A piece of text where it was found; sides in pixels."""

    left: float
    top: float
    right: float
    bottom: float
    text: str

    @property
    def height(self) -> float:
        """Height in pixels, about that of a line."""
        return self.bottom - self.top


def ocr_pictures(evidence: Evidence, limits: Limits) -> Evidence:
    """Return `evidence` with the text of its pictures added below the text it has, each under its place.

    The pictures stay in it, for a model that can see them too.

    Raises:
        MissingReader: if the extra `ocr` is not installed.
        ServiceUnavailable: if the reader fails.
        LimitExceeded: for `max_text_chars`, counted with the text that is there already.
    """
    if not evidence.pictures:
        return evidence
    engine = _engine()
    blocks = [evidence.text] if evidence.text else []
    found = 0
    for picture in evidence.pictures:
        text = reading_order(_read(engine, picture.png))
        if not text:
            continue
        found += 1
        blocks.append(f"{picture.place}:\n{text}" if picture.place else text)
    text = "\n\n".join(blocks)
    if len(text) > limits.max_text_chars:
        raise LimitExceeded("max_text_chars", limits.max_text_chars, len(text), unit="characters")
    note = f"text in {found} picture{'' if found == 1 else 's'} read by OCR"
    if found < len(evidence.pictures):
        note += f", no text found in {len(evidence.pictures) - found}"
    return replace(evidence, text=text, notes=(*evidence.notes, note))


def reading_order(boxes: Sequence[Box]) -> str:
    """Join pieces of text as one reads them: columns of prose one by one, anything else line by line.

    Pieces of a line that stand far apart, such as the cells of a table, are separated by TAB.
    """
    texts: list[str] = []
    run: list[Box] = []
    # A run is lines with a gutter in common; a line across it, such as a heading, or a gap ends it.
    for line in _lines(boxes):
        if run and (_is_gap(run, line) or not _gutters([*run, *line])):
            texts += _texts(run)
            run = []
        run += line
    return "\n".join([*texts, *_texts(run)])


def _is_gap(run: Sequence[Box], line: Sequence[Box]) -> bool:
    gap = min(box.top for box in line) - max(box.bottom for box in run)
    return gap > _GAP * median(box.height for box in line)


def _texts(run: Sequence[Box]) -> list[str]:
    columns = _columns(run)
    if not all(_is_prose(column) for column in columns):
        columns = [run]
    return [_join(line) for column in columns for line in _lines(column)]


def _lines(boxes: Sequence[Box]) -> list[list[Box]]:
    """Group pieces that stand side by side, from top to bottom, each group from left to right."""
    lines: list[list[Box]] = []
    for box in sorted(boxes, key=lambda box: box.top + box.bottom):
        first = lines[-1][0] if lines else box
        overlap = min(first.bottom, box.bottom) - max(first.top, box.top)
        if lines and overlap > min(first.height, box.height) / 2:
            lines[-1].append(box)
        else:
            lines.append([box])
    return [sorted(line) for line in lines]


def _gutters(boxes: Sequence[Box]) -> list[float]:
    """Places from left to right where a blank strip, wider than a line is high, divides all pieces."""
    wide = median(box.height for box in boxes)
    gutters: list[float] = []
    reached = min(box.right for box in boxes)
    for box in sorted(boxes):
        if box.left - reached > wide:
            gutters.append((box.left + reached) / 2)
        reached = max(reached, box.right)
    return gutters


def _columns(boxes: Sequence[Box]) -> list[list[Box]]:
    if not boxes:
        return []
    edges = [float("-inf"), *_gutters(boxes), float("inf")]
    return [[box for box in boxes if start < box.left < end] for start, end in pairwise(edges)]


def _is_prose(column: Sequence[Box]) -> bool:
    """Whether these are lines of running text, and not the cells of a table or the labels of a form."""
    if len(column) < _PROSE_LINES:
        return False
    width = median(box.right - box.left for box in column)
    return width > _PROSE_WIDTH * median(box.height for box in column)


def _join(line: Sequence[Box]) -> str:
    text = line[0].text
    for before, box in pairwise(line):
        text += ("\t" if box.left - before.right > 1.5 * before.height else " ") + box.text
    return text


def _read(engine: RapidOCR, png: bytes) -> list[Box]:
    """Find the pieces of text in a picture."""
    try:
        pixels = _on_white(png)
        if (pixels == pixels[0, 0]).all():
            return []  # one colour: a blank page, which would take as long as a full one
        with _lock:
            found, _ = engine(pixels)
    except MemoryError:
        raise
    # Whatever fails in there, the picture is sound: it was decoded before.
    except Exception as error:
        _log.exception("OCR failed")
        raise ServiceUnavailable("The OCR reader failed") from error
    boxes: list[Box] = []
    for corners, text, _score in found or ():
        across, down = [float(x) for x, _ in corners], [float(y) for _, y in corners]
        clean = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        if clean:
            boxes.append(Box(min(across), min(down), max(across), max(down), clean))
    return boxes


def _on_white(png: bytes) -> np.ndarray:
    """Decode to BGR uint8 [height, width, 3], within `_LONGEST` and not too slender, on white.

    The reader enlarges by the short side, so a strip a few pixels wide would become a giant.
    """
    import numpy as np  # noqa: PLC0415 - only when there is a picture
    from PIL import Image  # noqa: PLC0415

    with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
        shown = image.convert("RGBA")
    shown.thumbnail((_LONGEST, _LONGEST))
    least = max(_SHORTEST, max(shown.size) // 2)
    paper = Image.new("RGBA", (max(shown.width, least), max(shown.height, least)), "white")
    paper.alpha_composite(shown)
    return np.ascontiguousarray(np.asarray(paper)[:, :, 2::-1])


@lru_cache(maxsize=1)
def _engine() -> RapidOCR:
    """Load the models that come with the package, once."""
    try:
        from rapidocr_onnxruntime import RapidOCR  # noqa: PLC0415
        from rapidocr_onnxruntime.utils.logger import get_logger  # noqa: PLC0415
    except ImportError:
        raise MissingReader("Reading text in pictures needs OCR: pip install 'jev-server[ocr]'") from None
    # The package writes on stderr by itself, whatever the program does with its log.
    for name in ("RapidOCR", "OrtInferSession"):
        log = get_logger(name)
        log.handlers.clear()
        log.setLevel(logging.ERROR)
    threads = min(_THREADS, os.cpu_count() or 1)
    # Lines batched together would be padded to the widest: slower, and each would depend on the others.
    engine = RapidOCR(intra_op_num_threads=threads, inter_op_num_threads=1, rec_batch_num=1)
    recogniser: Any = engine.text_rec
    recogniser.postprocess_op = _Spaced(recogniser.postprocess_op)
    return engine


class _Spaced:
    """A decoder that gives more weight to spaces.

    The recogniser was trained on Chinese, and takes most gaps between Latin words for nothing: in them
    it gives a space a few percent, elsewhere less than a thousandth.

    Args:
        decoder: the one of the package.
    """

    def __init__(self, decoder: CTCLabelDecode) -> None:
        self._decoder = decoder

    def __call__(self, preds: np.ndarray, *args: Any, **kwargs: Any) -> list[Any]:
        """Decode probabilities [line, column, character]; the first character is none, the last a space."""
        likely = (preds.argmax(axis=2) == 0) & (preds[..., -1] > _SPACE)
        preds = preds.copy()
        preds[likely, -1], preds[likely, 0] = preds[likely, 0], preds[likely, -1]
        return self._decoder(preds, *args, **kwargs)
