"""Fetching the bytes of one file into a partial one, from where an earlier try ended."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import get_session, hf_raise_for_status

from jev.pull.errors import passes, reason
from jev.pull.report import Report


@dataclass(frozen=True)
class Patience:
    """How often and how long a broken connection is tried again; one that brought bytes does not count."""

    tries: int = 6
    first_wait_s: float = 1.0
    longest_wait_s: float = 16.0

    def wait_s(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        return min(self.first_wait_s * 2 ** (failures - 1), self.longest_wait_s)


def transfer(
    url: str,
    headers: dict[str, str],
    partial: Path,
    size: int | None,
    name: str,
    report: Report,
    patience: Patience,
) -> None:
    """Append to `partial` until it has the whole file, trying again as long as bytes come.

    The address is that of the repository, not the one that it leads to: that one may be signed for an hour.

    Args:
        url: where the file is.
        headers: of each request.
        partial: what there is of it; it is made if it does not exist.
        size: bytes of the whole file; None = as many as come.
        name: of the file, for the report.
        report: gets to know how far it is.
        patience: when to give up.

    Raises:
        HfHubHTTPError: the hub does not give the file.
        httpx2.TransportError: the connection broke too often.
        OSError: the file cannot be written.
    """
    failures = 0
    with partial.open("ab") as file:
        if size is not None and file.tell() > size:
            _empty(file)
        report.begin(name, "fetching", file.tell(), size)
        furthest = file.tell()
        while size is None or file.tell() < size:
            try:
                _attempt(url, headers, file, size, report)
                if size is None:
                    return
                if file.tell() < size:
                    raise httpx2.ReadError(f"it ended after {file.tell()} of {size} bytes")
            except (httpx2.TransportError, HfHubHTTPError) as error:
                # Not "more than before": a hub that makes us begin again and again would go on for ever.
                failures = 1 if file.tell() > furthest else failures + 1
                furthest = max(furthest, file.tell())
                if not passes(error) or failures >= patience.tries:
                    raise
                wait_s = patience.wait_s(failures)
                report.retry(name, reason(error), wait_s)
                time.sleep(wait_s)


def _attempt(url: str, headers: dict[str, str], file: BinaryIO, size: int | None, report: Report) -> None:
    """Ask once for what is missing behind the end of `file`, and append what comes, up to beyond `size`."""
    have = file.tell()
    ask = {**headers, "Accept-Encoding": "identity"}
    if have:
        ask["Range"] = f"bytes={have}-"
    with get_session().stream(
        "GET", url, headers=ask, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, follow_redirects=True
    ) as response:
        if response.status_code == 416:  # the part is longer than the file: it was another one's
            report.advance(-have)
            _empty(file)
            raise httpx2.ReadError("the hub has no bytes behind those that are here")
        hf_raise_for_status(response)
        begins = have
        if response.status_code != httpx2.codes.PARTIAL_CONTENT:
            begins = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            begins = -1
        if have and begins != have:
            report.advance(-have)
            _empty(file)
        if begins < 0:
            raise httpx2.ReadError("the hub sent other bytes than it was asked for")
        for piece in response.iter_bytes():
            file.write(piece)
            report.advance(len(piece))
            if size is not None and file.tell() > size:
                return  # whoever sends more than it said may never stop


def _empty(file: BinaryIO) -> None:
    file.seek(0)  # truncating alone leaves the position where it was
    file.truncate()
