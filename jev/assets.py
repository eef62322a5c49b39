"""Assets: pictures that placeholder strings in a request stand for."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping

from jev.placeholders import find_placeholders
from jev.schemas import BadRequestError, Issue, SystemOneRequest, alternatives, render_text
from jev.wording import instructions_text, label_lines

MAX_ASSETS = 32
"""Most assets of a request, and most multipart parts beside it."""

IMAGE_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
"""How a PNG and a JPEG begin."""


def check_assets(request: SystemOneRequest, parts: Mapping[str, bytes]) -> None:
    """Refuse assets that are not sound, and multipart parts that belong to none.

    Args:
        request: the checked body.
        parts: the multipart parts beside it, by name.

    Raises:
        BadRequestError: naming every asset or part that cannot be served as it is.
    """
    issues = list(_asset_issues(request, parts))
    if issues:
        raise BadRequestError(issues)


def _asset_issues(request: SystemOneRequest, parts: Mapping[str, bytes]) -> Iterator[Issue]:
    assets = request.assets or {}
    if len(assets) > MAX_ASSETS:
        yield _issue("assets", msg=f"A request may have at most {MAX_ASSETS} assets", type="too_long")
        return
    texts = list(_texts_of(request)) if assets else []
    shown = {found.group() for text in texts for found in find_placeholders(text, assets)}
    used: set[str] = set()
    for ref, asset in assets.items():
        if asset.part is not None:
            used.add(asset.part)
            data = parts.get(asset.part)
            if data is None:
                msg = f"The body has no part named {asset.part[:64]!r}"
                yield _issue("assets", ref, "part", msg=msg, type="missing")
                continue
            at = "part"
        else:
            at = "data_base64"
            data = _decode(asset.data_base64 or "")
            if data is None:
                yield _issue("assets", ref, at, msg="Input should be valid base64", type="base64_invalid")
                continue
        if not data.startswith(IMAGE_SIGNATURES):
            yield _issue("assets", ref, at, msg="The image is neither a PNG nor a JPEG", type="image_invalid")
        elif ref not in shown:
            msg = "The asset occurs nowhere in state, instructions or criteria"
            if any(ref in text for text in texts):
                msg = "The asset is never shown: a longer placeholder covers it wherever it occurs"
            yield _issue("assets", ref, msg=msg, type="unused_asset")
    for name in parts:
        if name not in used:
            yield _issue("assets", msg=f"The part {name[:64]!r} belongs to no asset", type="unknown_part")


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _texts_of(request: SystemOneRequest) -> Iterator[str]:
    """Every text that the model would read, as it reads it."""
    yield render_text(request.state)
    yield render_text(request.instructions or "")
    for question in request.questions.values():
        count = len(alternatives(question))
        yield "\n".join([instructions_text(question), *label_lines(question, [""] * count, range(count))])


def _issue(*loc: str, msg: str, type: str) -> Issue:
    return Issue(loc=["body", *loc], msg=msg, type=type)
