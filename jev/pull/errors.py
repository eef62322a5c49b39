"""What may go wrong with a pull, and the hub's errors as one sentence each."""

from __future__ import annotations

import httpx2
from huggingface_hub.errors import (
    DisabledRepoError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from jev.errors import JevError
from jev.pull.source import Source

PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Statuses that may be gone when asked again."""


class PullError(JevError):
    """A pull that would fail again: the repository, a file of it or a pinned digest is wrong."""


class HubError(PullError):
    """A pull that may succeed later: the hub, the network or the disk failed."""


def passes(error: Exception) -> bool:
    """Whether asking again may help."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in PASSING
    return isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.UnsupportedProtocol)


_SENTENCES: tuple[tuple[type[Exception], type[PullError], str], ...] = (
    (
        GatedRepoError,
        PullError,
        "{repo} is gated: ask for access on its page, then give your account's token (HF_TOKEN)",
    ),
    (RevisionNotFoundError, PullError, "{repo} has no revision {revision}"),
    (RemoteEntryNotFoundError, PullError, "{repo} at {revision} has no file {name}"),
    (
        RepositoryNotFoundError,
        PullError,
        "there is no repository {repo}, or it is private and needs an account's token (HF_TOKEN)",
    ),
    (DisabledRepoError, PullError, "{repo} has been disabled by the hub"),
    (
        FileMetadataError,
        PullError,
        "what answers for {repo} is no model hub: it gives no commit or no ETag",
    ),
    (httpx2.TimeoutException, HubError, "the hub did not answer in time for {name} of {repo}"),
    (httpx2.TransportError, HubError, "the hub cannot be reached for {name} of {repo}: {reason}"),
    (Exception, HubError, "{name} of {repo} cannot be fetched: {reason}"),
)
"""The first that fits an error tells what it says."""


def sentence(error: Exception, source: Source, name: str) -> PullError:
    """The error of a pull of file `name` as one sentence."""
    words = {"repo": source.repo, "revision": source.revision, "name": name, "reason": reason(error)}
    for kind, becomes, text in _SENTENCES:
        if isinstance(error, HfHubHTTPError) and not issubclass(kind, HfHubHTTPError):
            return _of_status(error.response.status_code, source, name)
        if isinstance(error, kind):
            return becomes(text.format(**words))
    raise AssertionError("every error is an Exception")


def _of_status(status: int, source: Source, name: str) -> PullError:
    if status in (401, 403):
        return PullError(
            f"the hub refuses {name} of {source.repo} ({status}): a token (HF_TOKEN) with access is missing"
        )
    kind = HubError if status in PASSING or status >= 500 else PullError
    return kind(f"the hub answers {status} for {name} of {source.repo}")


def reason(error: Exception) -> str:
    """The first line of what an error says, or its name."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__
