"""A whole pull: what is here, what must be fetched, whether it fits on the disk, and fetching it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jev.pull.digests import agrees, sha256_of
from jev.pull.errors import HubError, PullError
from jev.pull.fetch import Remote, fetch, look_up, partial_path, translated
from jev.pull.places import missing_names, repository, snapshot
from jev.pull.report import Quiet, Report
from jev.pull.source import PinnedFile, Source, is_commit
from jev.pull.transfer import Patience

SPARE_BYTES = 64 * 2**20
"""Disk that a pull leaves free."""


@dataclass(frozen=True)
class Pulled:
    """A file that is here and right.

    Attributes:
        repo: its repository.
        name: its path there.
        path: where it is.
        size: in bytes.
        sha256: its digest in hex.
        pinned: whether the settings demanded that digest.
        fetched: whether this pull brought it.
    """

    repo: str
    name: str
    path: str
    size: int
    sha256: str
    pinned: bool
    fetched: bool


def pull(
    sources: Sequence[Source],
    *,
    offline: bool = False,
    report: Report | None = None,
    patience: Patience | None = None,
) -> list[Pulled]:
    """Bring every file of the sources into the hub's cache and check all of them.

    Args:
        sources: what is wanted.
        offline: ask nobody; what is missing is an error.
        report: gets to know how far it is.
        patience: when to give up on a broken connection.

    Raises:
        PullError: what is asked for cannot be had, or is not what is pinned.
        HubError: the hub, the network or the disk failed; another pull goes on from there.
    """
    report, patience = report or Quiet(), patience or Patience()
    if offline:
        _all_here(sources)
    done: list[Pulled] = []
    wanted: list[tuple[Source, str, PinnedFile, Remote]] = []
    for source in sources:
        for name, pin in source.files.items():
            here = None
            if offline or is_commit(source.revision):
                here = translated(source, name, partial(_checked, source, name, pin, report))
            if here is not None:
                done.append(here)
            elif offline:
                raise PullError(f"{name} of {source.repo} is damaged, and the hub may not be asked (offline)")
            else:
                wanted.append((source, name, pin, look_up(source, name, pin)))
    _fits(wanted)
    for source, name, pin, remote in wanted:
        bring = partial(fetch, source, name, pin, remote, report=report, patience=patience)
        path, digest, came = translated(source, name, bring)
        done.append(_pulled(source, name, pin, path, digest, fetched=came))
    return done


def _checked(source: Source, name: str, pin: PinnedFile, report: Report) -> Pulled | None:
    """A file of the cache if it is there and whole.

    Raises:
        PullError: it is whole, but not the one that is pinned.
    """
    path = snapshot(source) / name
    if not path.is_file():
        return None
    size = path.stat().st_size
    report.begin(name, "checking", 0, size)
    digest = sha256_of(path, report.advance)
    etag = path.resolve().name if path.is_symlink() else None
    if not agrees(path, etag, digest):
        return None
    if pin.sha256 not in (None, digest) or pin.size not in (None, size):
        if etag is None:  # a copy, where the system has no links: nothing says that it is whole
            return None
        raise PullError(
            f"{name} of {source.repo} has {size} bytes and sha256 {digest}, but "
            f"{'any' if pin.size is None else pin.size} and {pin.sha256 or 'any'} are pinned"
        )
    return _pulled(source, name, pin, path, digest, fetched=False)


def _pulled(source: Source, name: str, pin: PinnedFile, path: Path, digest: str, *, fetched: bool) -> Pulled:
    return Pulled(source.repo, name, str(path), path.stat().st_size, digest, pin.sha256 is not None, fetched)


def _all_here(sources: Sequence[Source]) -> None:
    try:
        missing = [said for source in sources if (said := missing_names(source)) is not None]
    except OSError as error:
        raise HubError(f"{error.filename} cannot be read: {error.strerror}") from None
    if missing:
        where = repository(sources[0]).parent
        raise PullError(f"offline, and not on this machine: {'; '.join(missing)} (looked in {where})")


def _fits(wanted: Sequence[tuple[Source, str, PinnedFile, Remote]]) -> None:
    """Refuse what the disk cannot hold, before the first byte.

    Raises:
        HubError: naming both numbers.
    """
    if not wanted:
        return
    needed = 0
    for source, _, _, remote in wanted:
        part = partial_path(source, remote)
        needed += max(0, (remote.size or 0) - (part.stat().st_size if part.is_file() else 0))
    folder = repository(wanted[0][0])
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if needed and needed + SPARE_BYTES > free:
        raise HubError(
            f"{needed / 1e9:.2f} GB are to be fetched, but {there} has only {free / 1e9:.2f} GB free "
            "(HF_HOME says where files go)"
        )
