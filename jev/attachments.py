"""Attachments of a request -> evidence: where their bytes come from, in which order, within which limits."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from jev.assets import check_assets
from jev.errors import InvalidRequestError, ModelUnavailableError
from jev.extractors import (
    Budget,
    Evidence,
    ExtractError,
    LimitExceeded,
    Limits,
    MissingReader,
    ServiceUnavailable,
)
from jev.extractors.detect import check_kind
from jev.extractors.evidence import Picture
from jev.extractors.options import AudioOptions, Options
from jev.extractors.worker import Pool
from jev.lru import ByteLRU
from jev.material import Material
from jev.schemas import (
    ATTACHMENT_FIELDS,
    Attachment,
    BadRequestError,
    SystemOneRequest,
    decode_base64,
)
from jev.settings import Settings, evidence_limits

OVERHEAD = 512
"""Bytes that an evidence object takes beside its texts and pictures, about."""


class Files(Protocol):
    """Uploaded files by id; KeyError for one that is not there any more."""

    def size(self, file: str) -> int:
        """The bytes that an upload has."""
        ...

    def read(self, file: str) -> tuple[str, bytes]:
        """The name and the bytes of an upload."""
        ...


class NoFiles:
    """The store of a process that takes no uploads."""

    def size(self, file: str) -> int:
        """There is no such file."""
        raise KeyError(file)

    def read(self, file: str) -> tuple[str, bytes]:
        """There is no such file."""
        raise KeyError(file)


@dataclass(frozen=True)
class Source:
    """One file of a request: where in the body it stands, for which field, its name and its bytes.

    `asset` is the placeholder that it stands for, if it is an asset; `uploaded` is whether its bytes came
    from the store of uploads and not with the request.
    """

    loc: tuple[str | int, ...]
    field: str
    name: str
    data: bytes
    asset: str | None = None
    uploaded: bool = False


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
    """All files of a request in the order in which they are read: its pictures first, then its attachments.

    They are counted one after another, so that what is over a limit together is refused at the file that
    goes over it, and before an upload's bytes are in memory.

    Args:
        request: the request.
        parts: multipart parts beside its JSON, for assets.
        files: uploads that it may name.
        limits: the limits.

    Raises:
        InvalidRequestError: naming the attachment or asset and what is wrong with it.
    """
    try:
        check_assets(request, parts)
    except BadRequestError as error:
        raise InvalidRequestError.of(error.issues) from None
    budget = Budget(limits)
    first, *others = ATTACHMENT_FIELDS
    return [
        *_attached(request, first, files, limits, budget),
        *_assets(request, parts, limits, budget),
        *(source for field in others for source in _attached(request, field, files, limits, budget)),
    ]


def _attached(
    request: SystemOneRequest, field: str, files: Files, limits: Limits, budget: Budget
) -> Iterator[Source]:
    limit = limits.max_image_bytes if field == "images" else limits.max_file_bytes
    for index, attachment in enumerate(getattr(request, field)):
        loc = (field, index)
        if attachment.file is not None:
            yield _uploaded(loc, field, attachment, files, limit, budget)
            continue
        name = attachment.name or "image"
        try:
            data = decode_base64(attachment.data or "", limit)
        except ValueError as error:
            # An entry of `images` may be the string itself.
            where = loc if field == "images" else (*loc, "data")
            raise _refused(*where, msg=f"Attachment {name!r}: {error}") from None
        _admit(budget, len(data), loc, name, attachment=field != "images")
        yield Source(loc, field, name, data)


def _uploaded(
    loc: tuple[str, int], field: str, attachment: Attachment, files: Files, limit: int, budget: Budget
) -> Source:
    file = attachment.file or ""
    name = attachment.name or file
    try:
        size = files.size(file)
        if size > limit:
            message = f"Attachment {name!r}: The file has {size} bytes, the limit is {limit}"
            raise _refused(*loc, "file", msg=message)
        _admit(budget, size, loc, name, attachment=field != "images")
        stored, data = files.read(file)
    except KeyError:
        message = f"Attachment {name!r}: There is no uploaded file with this id; it may have expired"
        raise _refused(*loc, "file", msg=message) from None
    return Source(loc, field, attachment.name or stored, data, uploaded=True)


def _assets(
    request: SystemOneRequest, parts: Mapping[str, bytes], limits: Limits, budget: Budget
) -> Iterator[Source]:
    for placeholder, asset in (request.assets or {}).items():
        loc = ("assets", placeholder, "part" if asset.part is not None else "data_base64")
        try:
            data = parts[asset.part] if asset.part is not None else None
            data = decode_base64(asset.data_base64 or "", limits.max_image_bytes) if data is None else data
        except (KeyError, ValueError) as error:
            message = "The body has no such part" if isinstance(error, KeyError) else str(error)
            raise _refused(*loc, msg=message) from None
        _admit(budget, len(data), loc, placeholder, attachment=False)
        yield Source(loc, "images", "image", data, placeholder)


def _admit(budget: Budget, size: int, loc: tuple[str | int, ...], name: str, *, attachment: bool) -> None:
    try:
        budget.admit(size, attachment=attachment)
    except LimitExceeded as error:
        raise _refused(*loc, msg=f"Attachment {name!r}: {error}") from None


def _refused(*loc: str | int, msg: str) -> InvalidRequestError:
    return InvalidRequestError.at(*loc, msg=msg, type="attachment")


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
        places: list[tuple[str | int, ...]] = []
        assets: dict[str, Picture | str] = {}
        for source in sources:
            try:
                one = await self._one(source, budget.picture_slots)
                # What is kept from before may have stood in another field.
                check_kind(source.field, one.kind)
                budget.take(one)
            except (MissingReader, ServiceUnavailable) as error:
                raise ModelUnavailableError(f"Attachment {source.name!r}: {error}") from None
            except ExtractError as error:
                raise _refused(*source.loc, msg=f"Attachment {source.name!r}: {error}") from None
            if source.asset is not None:
                assets[source.asset] = one.text if self._as_text else one.pictures[0]
            else:
                evidence.append(replace(one, pictures=()) if self._as_text else one)
                places.append(source.loc)
        return Material(tuple(evidence), assets, tuple(places))

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
            read = self.pool.extract(source.data, source.name, picture_slots=slots, field=source.field)
            kept = _Kept(await read)
            self._cache.put(key, kept)
        return kept.evidence
