"""Files that belong to a state: inline as base64, or by the id of an uploaded file."""

from __future__ import annotations

import base64
import binascii
from typing import Any
from unicodedata import category

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

MAX_ATTACHMENTS = 8
"""Most entries over `files`, `documents`, `videos` and `audios` together, and most of `images`."""

MAX_NAME = 255

_CONTROLS = frozenset({"Cc", "Zl", "Zp"})


class Attachment(BaseModel):
    """One file: `data` (base64 or a base64 data URL) with its `name`, or `file`, the id of an upload."""

    model_config = ConfigDict(extra="ignore")

    name: str | None = Field(default=None, min_length=1, max_length=MAX_NAME)
    data: str | None = Field(default=None, repr=False)
    file: str | None = Field(default=None, min_length=1, max_length=MAX_NAME)

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str | None) -> str | None:
        if name is not None and not is_plain_name(name):
            raise ValueError("A name has no slashes and no control characters")
        return name

    @model_validator(mode="after")
    def _one_source(self) -> Attachment:
        if (self.data is None) == (self.file is None):
            raise PydanticCustomError("attachment_source", "Give exactly one of data and file")
        if self.data is not None and self.name is None:
            raise PydanticCustomError("attachment_name", "Inline data needs a name")
        return self


class InlineImage(Attachment):
    """An entry of `images`: a string is its data, and its name is optional."""

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return {"data": value, "name": "image"} if isinstance(value, str) else value


def is_plain_name(name: str) -> bool:
    """Whether a file name is just a name: no slashes, controls or line ends, not `.` or `..`."""
    return name not in (".", "..") and not any(c in "/\\" or category(c) in _CONTROLS for c in name)


def decode_base64(text: str, limit: int) -> bytes:
    """Bytes of bare base64 or of a base64 data URL; nothing is fetched, nothing is read from disk.

    Raises:
        ValueError: one sentence; for more than `limit` bytes before anything is decoded.
    """
    head, comma, payload = text.partition(",")
    if head[:5].lower() == "data:":
        if not comma or not head.lower().endswith(";base64"):
            raise ValueError("The data URL is not base64")
        text = payload
    elif head[:8].lower().startswith(("http://", "https://", "file://")):
        raise ValueError("Send the file itself as base64; no address is fetched and no path is read")
    if len(text) * 3 // 4 - 2 > limit:
        raise ValueError(f"The file has more than the limit of {limit} bytes")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        spaced = any(space in text for space in " \n\r\t")
        why = ": there are spaces or line breaks in it" if spaced else ""
        raise ValueError(f"Input should be valid base64{why}") from None
    if not data:
        raise ValueError("The file is empty")
    if len(data) > limit:
        raise ValueError(f"The file has {len(data)} bytes, the limit is {limit}")
    return data
