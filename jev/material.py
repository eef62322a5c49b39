"""What a request brings besides its JSON, once it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jev.errors import InvalidRequestError, ModelUnavailableError
from jev.extractors import Evidence, Picture
from jev.schemas import ATTACHMENT_FIELDS, SystemOneRequest


@dataclass(frozen=True)
class Material:
    """What a request brings besides its JSON.

    Attributes:
        evidence: its attachments, read, in the order they follow the state.
        assets: what placeholder strings in the request stand for: pictures, or the text in them.
    """

    evidence: tuple[Evidence, ...] = ()
    assets: Mapping[str, Picture | str] = field(default_factory=dict)

    @property
    def pictures(self) -> list[Picture]:
        """All pictures, attachments first."""
        assets = [asset for asset in self.assets.values() if isinstance(asset, Picture)]
        return [*(picture for one in self.evidence for picture in one.pictures), *assets]

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.evidence or self.assets)


NOTHING = Material()
"""A request without attachments."""


def unread(request: SystemOneRequest) -> Material:
    """The material of a request that came without any: nothing, if it needs none.

    Raises:
        ModelUnavailableError: for images or assets.
        InvalidRequestError: for other attachments, naming the field.
    """
    if request.images or request.assets:
        raise ModelUnavailableError("This model has no vision tower, so it cannot read images")
    for name in ATTACHMENT_FIELDS:
        if getattr(request, name):
            raise InvalidRequestError.at(name, msg="Attachments are not supported by this server")
    return NOTHING
