"""What a prompt is made of besides text: pictures, and the blocks that attachments become."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from PIL import Image

from jev.errors import InvalidRequestError
from jev.extractors.evidence import Evidence, Picture
from jev.model.pixels import Patches, patches_of
from jev.model.template import Template
from jev.model.vision_config import VisionConfig
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


def with_assets(text: str, assets: Mapping[str, Picture | str]) -> list[str | Picture]:
    """Cut `text` where an asset's placeholder stands and put the asset's picture there.

    The longest placeholder wins where several begin at one place.
    """
    parts: list[str | Picture] = [text]
    for placeholder in sorted(assets, key=len, reverse=True):
        cut: list[str | Picture] = []
        for part in parts:
            if isinstance(part, str):
                first, *rest = part.split(placeholder)
                cut.append(first)
                for piece in rest:
                    cut += [assets[placeholder], piece]
            else:
                cut.append(part)
        parts = cut
    return parts


class Gallery:
    """Turns texts and attachments into parts, cutting each picture into patches once.

    Args:
        config: the vision tower's shape; None where there is none.
        soft_tokens: rows a picture may take; None = the checkpoint's own budget.
        assets: pictures by the placeholder that stands for them in any text.
    """

    def __init__(
        self, config: VisionConfig | None, soft_tokens: int | None, assets: Mapping[str, Picture | str]
    ) -> None:
        self._config = config
        self._soft_tokens = soft_tokens
        self._assets = assets
        self._cut: dict[str, Shown] = {}

    def parts(self, text: str, evidence: Iterable[Evidence] = ()) -> list[str | Shown]:
        """The parts of `text` with its assets, then of `evidence`; texts side by side are joined.

        Raises:
            InvalidRequestError: for a picture that the tower cannot take.
        """
        parts: list[str | Shown] = [""]
        for part in (*with_assets(text, self._assets), *evidence_parts(evidence)):
            if isinstance(part, Picture):
                parts += [self._show(part), ""]
            else:
                parts[-1] = f"{parts[-1]}{part}"
        return [part for part in parts if part != ""] or [""]

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
                raise InvalidRequestError.at("images", msg=f"A picture{where}: {error}") from None
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
