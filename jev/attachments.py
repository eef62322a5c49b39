"""Attachments of a request -> evidence: where their bytes come from, in which order, within which limits."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from jev.errors import InvalidRequestError, ModelUnavailableError
from jev.extractors import Budget, Evidence, ExtractError, Limits, MissingReader, ServiceUnavailable
from jev.extractors.detect import check_kind
from jev.extractors.evidence import Picture
from jev.extractors.options import AudioOptions, Options
from jev.extractors.worker import Pool
from jev.lru import ByteLRU
from jev.material import Material
from jev.schemas import ATTACHMENT_FIELDS, Attachment, SystemOneRequest, decode_base64
from jev.settings import Settings, evidence_limits

OVERHEAD = 512
"""Bytes that an evidence object takes beside its texts and pictures, about."""


class Files(Protocol):
    """Uploaded files by id."""

    def read(self, file: str) -> tuple[str, bytes]:
        """The name and the bytes of an upload; KeyError for one that is not there any more."""
        ...


class NoFiles:
    """The store of a process that takes no uploads."""

    def read(self, file: str) -> tuple[str, bytes]:
        """There is no such file."""
        raise KeyError(file)


@dataclass(frozen=True)
class Source:
    """One file of a request: where in the body it stands, for which field, its name and its bytes.

    `asset` is the placeholder that it stands for, if it is an asset.
    """

    loc: tuple[str | int, ...]
    field: str
    name: str
    data: bytes
    asset: str | None = None


def options_of(settings: Settings, *, has_vision: bool) -> Options:
    """How attachments are read in a deployment whose model sees pictures or does not.

    Raises:
        ValueError: for speech settings that cannot be used.
    """
    ocr = settings.ocr == "on"
    if settings.ocr == "auto":
        ocr = not has_vision and importlib.util.find_spec("rapidocr_onnxruntime") is not None
    audio = None
    if settings.speech_model or settings.speech_url:
        key = settings.speech_api_key
        audio = AudioOptions(
            model=settings.speech_model,
            compute_type=settings.speech_compute_type,
            language=settings.speech_language,
            url=settings.speech_url,
            url_model=settings.speech_url_model,
            api_key=key.get_secret_value() if key else None,
        )
    return Options(ocr=ocr, audio=audio)


def reader_of(settings: Settings, *, has_vision: bool) -> Reader:
    """The reader of a deployment; its workers start when they are first needed."""
    pool = Pool(
        evidence_limits(settings.limits),
        options_of(settings, has_vision=has_vision),
        workers=settings.extract_workers,
    )
    return Reader(pool, pictures=has_vision, cache_bytes=settings.evidence_cache_bytes)


def sources_of(
    request: SystemOneRequest, parts: Mapping[str, bytes], files: Files, limits: Limits
) -> list[Source]:
    """All files of a request in the order in which they are read; sizes are checked.

    Args:
        request: the request.
        parts: multipart parts beside its JSON, for assets.
        files: uploads that it may name.
        limits: the limits.

    Raises:
        InvalidRequestError: naming the attachment and what is wrong with it.
    """
    sources = []
    for field in ATTACHMENT_FIELDS:
        for index, attachment in enumerate(getattr(request, field)):
            limit = limits.max_image_bytes if field == "images" else limits.max_file_bytes
            sources.append(_source(field, index, attachment, files, limit))
    for placeholder, asset in (request.assets or {}).items():
        loc = ("assets", placeholder, "part" if asset.part is not None else "data_base64")
        try:
            data = parts[asset.part] if asset.part is not None else None
            data = decode_base64(asset.data_base64 or "", limits.max_image_bytes) if data is None else data
        except (KeyError, ValueError) as error:
            message = "The body has no such part" if isinstance(error, KeyError) else str(error)
            raise InvalidRequestError.at(*loc, msg=message, type="attachment") from None
        sources.append(Source(loc, "images", "image", data, placeholder))
    try:
        limits.check_totals([], images=sum(source.field == "images" for source in sources))
        others = [len(source.data) for source in sources if source.field != "images"]
        limits.check_sizes(others)
        replace(limits, max_attachments=len(sources) or 1).check_sizes([len(s.data) for s in sources])
    except ExtractError as error:
        raise InvalidRequestError.at("files", msg=str(error), type="attachment") from None
    return sources


def _source(field: str, index: int, attachment: Attachment, files: Files, limit: int) -> Source:
    loc = (field, index)
    if attachment.file is not None:
        try:
            stored, data = files.read(attachment.file)
        except KeyError:
            raise InvalidRequestError.at(
                *loc,
                "file",
                msg="There is no uploaded file with this id; it may have expired",
                type="attachment",
            ) from None
        name = attachment.name or stored
        if len(data) > limit:
            message = f"The file has {len(data)} bytes, the limit is {limit}"
            raise InvalidRequestError.at(*loc, "file", msg=message, type="attachment")
        return Source(loc, field, name, data)
    try:
        data = decode_base64(attachment.data or "", limit)
    except ValueError as error:
        # An entry of `images` may be the string itself.
        where = loc if field == "images" else (*loc, "data")
        raise InvalidRequestError.at(*where, msg=str(error), type="attachment") from None
    return Source(loc, field, attachment.name or "image", data)


@dataclass(frozen=True)
class _Kept:
    """Evidence in the cache."""

    evidence: Evidence

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        pictures = sum(len(picture.png) for picture in self.evidence.pictures)
        return OVERHEAD + 4 * len(self.evidence.text) + pictures


class Reader:
    """Reads a request's files in worker processes, and remembers what it read.

    Args:
        pool: the workers.
        pictures: whether the model can be shown pictures; without, only their text goes on.
        cache_bytes: memory for what was read before; 0 = none.
    """

    def __init__(self, pool: Pool, *, pictures: bool, cache_bytes: int = 64 * 2**20) -> None:
        self.pool = pool
        # Without OCR, pictures go on to a model that cannot see them, which says so.
        self._as_text = pool.options.ocr and not pictures
        self._cache: ByteLRU[_Kept] = ByteLRU(cache_bytes)

    async def read(self, sources: list[Source]) -> Material:
        """Read files one after another without blocking the event loop.

        Raises:
            InvalidRequestError: for a file that cannot be read, naming it.
            ModelUnavailableError: when what could read it is missing or broken.
        """
        budget = Budget(self.pool.limits)
        evidence: list[Evidence] = []
        assets: dict[str, Picture | str] = {}
        for source in sources:
            try:
                one = await self._one(source, budget.picture_slots)
                check_kind(source.field, one.kind)
                budget.take(one, attachment=source.field != "images")
            except (MissingReader, ServiceUnavailable) as error:
                raise ModelUnavailableError(f"Attachment {source.name!r}: {error}") from None
            except ExtractError as error:
                message = f"Attachment {source.name!r}: {error}"
                raise InvalidRequestError.at(*source.loc, msg=message, type="attachment") from None
            if source.asset is not None:
                assets[source.asset] = one.text if self._as_text else one.pictures[0]
            else:
                evidence.append(replace(one, pictures=()) if self._as_text else one)
        return Material(tuple(evidence), assets)

    def read_sync(self, sources: list[Source]) -> Material:
        """Read files from code that is not async, or inside another event loop; raises as `read`."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self.read(sources)).result()

    def close(self) -> None:
        """End the workers."""
        self.pool.close()

    async def _one(self, source: Source, slots: int) -> Evidence:
        key = hashlib.sha256(f"{slots}/{source.name}/".encode() + source.data).digest()
        kept = self._cache.get(key)
        if kept is None:
            kept = _Kept(await self.pool.extract(source.data, source.name, picture_slots=slots))
            self._cache.put(key, kept)
        return kept.evidence
