"""What a request brings besides its JSON, once it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from jev.errors import InvalidRequestError, ModelUnavailableError
from jev.extractors import Evidence, Picture
from jev.schemas import ATTACHMENT_FIELDS, SystemOneRequest

Loc: TypeAlias = tuple[str | int, ...]
"""A place in the body of a request."""


@dataclass(frozen=True)
class Material:
    """What a request brings besides its JSON.

    Attributes:
        evidence: its attachments, read, in the order they follow the state.
        assets: what placeholder strings in the request stand for: pictures, or the text in them.
        places: where in the body each of `evidence` stands.
    """

    evidence: tuple[Evidence, ...] = ()
    assets: Mapping[str, Picture | str] = field(default_factory=dict)
    places: tuple[Loc, ...] = ()

    @property
    def pictures(self) -> list[Picture]:
        """All pictures, attachments first."""
        assets = [asset for asset in self.assets.values() if isinstance(asset, Picture)]
        return [*(picture for one in self.evidence for picture in one.pictures), *assets]

    @property
    def placed(self) -> list[tuple[Loc, Evidence]]:
        """All attachments, each with its place in the body."""
        places = self.places or (("files",),) * len(self.evidence)
        return list(zip(places, self.evidence, strict=True))

    def place_of(self, picture: Picture) -> Loc:
        """Where in the body the file stands that a picture is from."""
        for placeholder, asset in self.assets.items():
            if asset is picture:
                return ("assets", placeholder)
        return next(loc for loc, one in self.placed if any(shown is picture for shown in one.pictures))

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.evidence or self.assets)


NOTHING = Material()
"""A request without attachments."""


def unread(request: SystemOneRequest, *, has_vision: bool) -> Material:
    """The material of a request that came without any: nothing, if it needs none.

    Raises:
        ModelUnavailableError: for images or assets, when the model has no vision tower.
        InvalidRequestError: for attachments that nobody has read, naming the field.
    """
    if (request.images or request.assets) and not has_vision:
        raise ModelUnavailableError("This model has no vision tower, so it cannot read images")
    for name in (*ATTACHMENT_FIELDS, "assets"):
        if getattr(request, name):
            raise InvalidRequestError.at(
                name, msg="The attachments of this request were not read: give their material with it"
            )
    return NOTHING
