"""One file of a repository: from the hub into its cache, under its final name only once it is right."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx2
from huggingface_hub import HfFileMetadata, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import WeakFileLock, build_hf_headers

from jev.pull.digests import agrees, sha256_of, stated_sha256
from jev.pull.errors import HubError, PullError, sentence
from jev.pull.places import repository
from jev.pull.report import Report
from jev.pull.source import PinnedFile, Source, is_commit
from jev.pull.transfer import Patience, transfer

T = TypeVar("T")

RETRY_LOOK_UPS = True
"""Whether the library asks again when the hub cannot answer: five times, over twenty seconds."""

_NAME = re.compile(r"[\w-][\w.-]{0,127}", re.ASCII)
"""What may become the name of a file in the cache."""


@dataclass(frozen=True)
class Remote:
    """A file as the hub describes it.

    Attributes:
        etag: its name in the cache; of large files their SHA-256.
        commit: the revision in full.
        size: in bytes, where the hub says.
        url: its address in the repository, by commit.
    """

    etag: str
    commit: str
    size: int | None
    url: str


def look_up(source: Source, name: str, pin: PinnedFile) -> Remote:
    """Ask the hub about a file and hold its answer against what is pinned.

    Raises:
        PullError: there is no such file, it may not be had, or it is not the one that is pinned.
        HubError: the hub cannot be asked now.
    """
    url = hf_hub_url(source.repo, name, revision=source.revision)
    found: HfFileMetadata = translated(
        source, name, lambda: get_hf_file_metadata(url, retry_on_errors=RETRY_LOOK_UPS, library_name="jev")
    )
    etag, commit = found.etag or "", found.commit_hash or ""
    if not _NAME.fullmatch(etag) or not _NAME.fullmatch(commit):
        raise PullError(f"what answers for {source.repo} is no model hub: it gives no commit or no ETag")
    if is_commit(source.revision) and commit != source.revision:
        raise PullError(f"the hub gives {name} of {source.repo} at {commit} for revision {source.revision}")
    stated = stated_sha256(etag)
    if pin.sha256 and stated and stated != pin.sha256:
        raise PullError(f"{name} of {source.repo} has sha256 {stated}, but {pin.sha256} is pinned")
    size = pin.size if found.size is None else found.size
    if pin.size is not None and size != pin.size:
        raise PullError(f"{name} of {source.repo} has {size} bytes, but {pin.size} are pinned")
    # By commit: a branch may move before the last byte.
    return Remote(etag, commit, size, hf_hub_url(source.repo, name, revision=commit))


def blob_path(source: Source, remote: Remote) -> Path:
    """Where the cache holds the content of a file."""
    return repository(source) / "blobs" / remote.etag


def partial_path(source: Source, remote: Remote) -> Path:
    """Where it grows, over as many pulls as it takes."""
    return blob_path(source, remote).with_name(f"{remote.etag}.jev.incomplete")


def fetch(
    source: Source, name: str, pin: PinnedFile, remote: Remote, *, report: Report, patience: Patience
) -> tuple[Path, str, bool]:
    """Bring a file into the cache; a part of it that is there already is not fetched again.

    Returns:
        Its path in the snapshot, its SHA-256, and whether any of it came now.

    Raises:
        PullError: what came is not what is pinned or stated; it has been removed.
        HfHubHTTPError, httpx2.HTTPError: the hub or the network failed; the part stays.
        OSError: the cache cannot be written; the part stays.
    """
    blob, partial = blob_path(source, remote), partial_path(source, remote)
    blob.parent.mkdir(parents=True, exist_ok=True)
    lock = repository(source).parent / ".locks" / repository(source).name / f"{remote.etag}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        digest = _checked(blob, name, pin, remote, report)
        came = digest is None
        if digest is None:
            headers = build_hf_headers(library_name="jev")
            transfer(remote.url, headers, partial, remote.size, name, report, patience)
            digest = _sealed(partial, blob, source, name, pin, remote, report)
    path = hf_hub_download(source.repo, name, revision=remote.commit)
    if source.revision != remote.commit:
        reference = repository(source) / "refs" / source.revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(remote.commit, encoding="ascii")
    return Path(path), digest, came


def translated(source: Source, name: str, work: Callable[[], T]) -> T:
    """The result of `work`, whose errors of the hub, the network and the disk become one sentence.

    Raises:
        PullError: what it raised.
    """
    try:
        return work()
    except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        raise sentence(error, source, name) from error


def _checked(blob: Path, name: str, pin: PinnedFile, remote: Remote, report: Report) -> str | None:
    """The SHA-256 of what the cache holds already; None if it has nothing, or something damaged."""
    if not blob.is_file():
        return None
    report.begin(name, "checking", 0, blob.stat().st_size)
    digest = sha256_of(blob, report.advance)
    right = agrees(blob, remote.etag, digest) and pin.sha256 in (None, digest)
    return digest if right else None


def _sealed(
    partial: Path, blob: Path, source: Source, name: str, pin: PinnedFile, remote: Remote, report: Report
) -> str:
    """Check what has been fetched and give it its final name; returns its SHA-256."""
    size = partial.stat().st_size
    if remote.size is not None and size != remote.size:
        partial.unlink()
        raise HubError(
            f"{name} of {source.repo} came with {size} bytes instead of {remote.size}; it was removed"
        )
    report.begin(name, "checking", 0, size)
    digest = sha256_of(partial, report.advance)
    if pin.sha256 not in (None, digest):
        partial.unlink()
        raise PullError(
            f"{name} of {source.repo} came with sha256 {digest}, but {pin.sha256} is pinned; it was removed"
        )
    if not agrees(partial, remote.etag, digest):
        partial.unlink()
        raise HubError(f"{name} of {source.repo} came damaged: it is not what the hub states; it was removed")
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(blob)
    return digest
