"""What a prompt is made of besides text: pictures, and the blocks that attachments become."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from PIL import Image

from jev.errors import InvalidRequestError
from jev.extractors.evidence import Evidence, Picture
from jev.fit import Fit
from jev.material import Material
from jev.model.pixels import Patches, patches_of
from jev.model.template import Template
from jev.model.vision_config import VisionConfig
from jev.placeholders import find_placeholders
from jev.plan import PlacedImage


@dataclass(frozen=True)
class Shown:
    """A picture, cut into patches for the vision tower."""

    sha256: str
    patches: Patches


def evidence_parts(evidence: Iterable[Evidence]) -> Iterator[str | Picture]:
    """The text and pictures that follow the state: a block for each attachment.

    A block is its name and kind, coverage notes, then numbered pictures and the text.
    """
    number = 0
    for one in evidence:
        lines = [f"\n\nAttachment {json.dumps(one.name, ensure_ascii=False)} ({one.kind}):"]
        lines += [f"Coverage: {note}" for note in one.notes]
        yield "\n".join(lines)
        for picture in one.pictures:
            number += 1
            yield f"\nImage {number}" + (f" ({picture.place})" if picture.place else "") + ": "
            yield picture
        if one.text:
            yield "\n" + one.text


def with_assets(text: str, assets: Mapping[str, Picture | str]) -> Iterator[str | Picture]:
    """Cut `text` where an asset's placeholder stands and put the asset's picture or text there.

    Text that an asset brings is not searched again.
    """
    if not assets:
        yield text
        return
    start = 0
    for found in find_placeholders(text, assets):
        yield text[start : found.start()]
        yield assets[found.group()]
        start = found.end()
    yield text[start:]


class Own(str):
    """Words of the service's own, in which no asset stands."""

    __slots__ = ()


class Gallery:
    """Turns texts and attachments into parts, cutting each picture into patches once.

    Args:
        config: the vision tower's shape; None where there is none.
        soft_tokens: rows a picture may take; None = the checkpoint's own budget.
        material: whose assets stand for placeholders in any text.
        fit: refuses what is too long.
        most_rows: rows that one prompt may have.
    """

    def __init__(
        self,
        config: VisionConfig | None,
        soft_tokens: int | None,
        material: Material,
        fit: Fit,
        *,
        most_rows: int,
    ) -> None:
        self._config = config
        self._soft_tokens = soft_tokens
        self._material = material
        self._fit = fit
        self._most_rows = most_rows
        self._cut: dict[str, Shown] = {}

    def parts(
        self, text: str | Sequence[str], evidence: Iterable[Evidence] = (), *, name: str | None = None
    ) -> list[str | Shown]:
        """The parts of `text` with its assets, then of `evidence`; texts side by side are joined.

        Args:
            text: the text, or pieces of it, of which some may be `Own`.
            evidence: what follows it.
            name: the question that the text is of, if it is one.

        Raises:
            InvalidRequestError: for a picture that the tower cannot take, and as soon as the parts
                are longer than a prompt may be, however they are tokenised.
        """
        parts: list[str | Shown] = []
        texts: list[str] = []
        rows = characters = 0
        pieces = [text] if isinstance(text, str) else text
        shown_in = (
            [one] if isinstance(one, Own) else with_assets(one, self._material.assets) for one in pieces
        )
        for part in chain(chain.from_iterable(shown_in), evidence_parts(evidence)):
            if isinstance(part, Picture):
                shown = self._show(part)
                rows += shown.patches.tokens + 2
                parts += [joined] if (joined := "".join(texts)) else []
                parts.append(shown)
                texts.clear()
            else:
                characters += len(part)
                texts.append(part)
            needed = rows + characters // self._fit.longest
            what, names = ("", ()) if name is None else (f"the question {name[:64]!r}", (name,))
            self._fit.check(needed, self._most_rows, what, names, least=True)
        return [*parts, "".join(texts)] if texts or not parts else parts

    def _show(self, picture: Picture) -> Shown:
        shown = self._cut.get(picture.sha256)
        if shown is None:
            try:
                if self._config is None:
                    raise ValueError("this model has no vision tower")
                with Image.open(io.BytesIO(picture.png)) as image:
                    patches = patches_of(image, self._config, self._soft_tokens)
            except ValueError as error:
                where = f" ({picture.place})" if picture.place else ""
                loc = self._material.place_of(picture)
                raise InvalidRequestError.at(*loc, msg=f"A picture{where}: {error}") from None
            shown = self._cut[picture.sha256] = Shown(picture.sha256, patches)
        return shown


def place(parts: Sequence[str | Shown], ids: Sequence[int], template: Template) -> tuple[PlacedImage, ...]:
    """Where the images of `parts` lie in the ids that were made of them."""
    starts = [index + 1 for index, token in enumerate(ids) if token == template.image_start]
    shown = [part for part in parts if isinstance(part, Shown)]
    return tuple(
        PlacedImage(start, one.sha256, one.patches) for start, one in zip(starts, shown, strict=True)
    )


def sizes(parts: Sequence[str | Shown]) -> list[str | int]:
    """The parts as `Template.rows` takes them: pictures as their number of soft tokens."""
    return [part if isinstance(part, str) else part.patches.tokens for part in parts]
