"""Attachments of requests that come without HTTP: read in worker processes, off the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jev.material import Material
from jev.schemas import ATTACHMENT_FIELDS, SystemOneRequest
from jev.settings import Settings

if TYPE_CHECKING:
    from jev.attachments import Reader


class MaterialReader:
    """Reads what requests bring along; its workers start with the first attachment.

    Args:
        settings: how attachments are read.
        has_vision: whether the model can be shown pictures.
    """

    def __init__(self, settings: Settings, *, has_vision: bool) -> None:
        self._settings = settings
        self._has_vision = has_vision
        self._reader: Reader | None = None

    async def of(self, request: SystemOneRequest) -> Material | None:
        """Read a request's attachments and assets; None if it has none.

        Raises:
            InvalidRequestError: for a file that cannot be read, naming it.
            ModelUnavailableError: when what could read it is missing or broken.
        """
        if not request.assets and not any(getattr(request, name) for name in ATTACHMENT_FIELDS):
            return None
        from jev.attachments import NoFiles, reader_of, sources_of  # noqa: PLC0415 - it needs the extra

        if self._reader is None:
            self._reader = reader_of(self._settings, has_vision=self._has_vision)
        reader = self._reader
        sources = await asyncio.to_thread(sources_of, request, {}, NoFiles(), reader.pool.limits)
        return await reader.read(sources)

    async def aclose(self) -> None:
        """End the workers."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await asyncio.to_thread(reader.close)
