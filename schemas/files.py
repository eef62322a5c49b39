"""Uploaded files as the API shows them."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict


class UploadedFile(BaseModel):
    """A file that the server holds; it may stand in the `attachments` of any number of decisions.

    Attributes:
        id: what requests name it by.
        name: the name that it was last uploaded with.
        bytes: its size.
        kind: what it is by its content, such as "pdf" or "image".
        sha256: of its bytes, in hex.
        expires_at: when the server removes it, unless it is used before.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    bytes: int
    kind: str
    sha256: str | None = None
    expires_at: datetime | None = None


class UploadedFiles(BaseModel):
    """Several files."""

    files: list[UploadedFile]
