"""The pure halves of an HTTP call, shared by both clients: settings, requests, answers, tries."""

from __future__ import annotations

import gzip
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, cast

import httpx
from pydantic import Field, ValidationError

from jev import errors
from jev._api_errors import api_error, request_id_of
from jev._attachments import LoadedFile
from jev._body import DecideOptions, encode
from jev.results import Decision, decision_of, first_error
from jev.retry import RetryPolicy
from jev.schemas import BadRequestError, ModelInfo, ModelList, UploadedFile, UploadedFiles, parse_json

DEFAULT_URL = "http://127.0.0.1:8000"

MIN_COMPRESSED = 1024
"""Bytes below which compressing a body is not worth it."""


@dataclass(frozen=True)
class Settings:
    """What a client was constructed with.

    Attributes:
        base_url: the server's root, without a slash at the end.
        shown_url: the same without user and password, for messages.
        headers: sent with every request; they hold the key, so they are not in the repr.
        timeout: seconds, or None for no limit.
        compression: whether bodies of 1 KiB and more are sent as gzip.
    """

    base_url: str
    shown_url: str
    headers: Mapping[str, str] = field(repr=False)
    timeout: float | None
    compression: bool

    @classmethod
    def read(
        cls,
        base_url: str | None,
        api_key: str | None,
        headers: Mapping[str, str] | None,
        timeout: float | None,
        compression: bool,
    ) -> Settings:
        """Fill what is None from the environment (JEV_BASE_URL, JEV_API_KEY) and check it.

        Raises:
            ValueError: for an address that is not http(s), or a key that no header can carry.
        """
        address = (base_url or os.environ.get("JEV_BASE_URL") or DEFAULT_URL).strip().rstrip("/")
        try:
            url = httpx.URL(address)
        except httpx.InvalidURL as error:
            raise ValueError(f"base_url is not an address: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"base_url must look like http://host:port, got {address!r}")
        # An empty key given here means no key, whatever the environment says.
        key = (os.environ.get("JEV_API_KEY", "") if api_key is None else api_key).strip()
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError("api_key must be printable ASCII without spaces")
        given = {
            "accept": "application/json",
            "user-agent": f"jev-python/{version('jev-server')}",
            **({"authorization": f"Bearer {key}"} if key else {}),
            **{name.lower(): value for name, value in (headers or {}).items()},
        }
        shown = f"{url.scheme}://{url.netloc.decode()}{url.path.rstrip('/')}"
        return cls(address, shown, given, timeout, compression)


@dataclass(frozen=True)
class Request:
    """One call, ready to be sent as often as needed.

    Attributes:
        method: of HTTP.
        path: below the server's root.
        content: the body.
        file: what is sent as multipart instead of `content`.
        headers: of this call.
        timeout: seconds, or None for no limit.
        questions: those that it asks.
        repeatable: whether it may be sent again when nobody knows what became of it.
    """

    method: str
    path: str
    content: bytes | None = None
    file: LoadedFile | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout: float | None = None
    questions: Mapping[str, Any] = field(default_factory=dict[str, Any])
    repeatable: bool = True

    @contextmanager
    def arguments(self) -> Iterator[dict[str, Any]]:
        """The arguments of httpx for one try; a file is read from its beginning, while this is open."""
        same = {"method": self.method, "url": self.path, "headers": self.headers, "timeout": self.timeout}
        if self.file is None:
            yield {**same, "content": self.content}
            return
        with self.file.opened() as stream:
            yield {**same, "files": {"file": (self.file.name, stream, "application/octet-stream")}}


def decide_request(settings: Settings, body: Mapping[str, Any], options: DecideOptions) -> Request:
    """Build `POST /v1/systemone`; errors as in `encode`."""
    content = encode(body)
    headers = {"content-type": "application/json"}
    if settings.compression and len(content) >= MIN_COMPRESSED:
        content = gzip.compress(content, compresslevel=6, mtime=0)
        headers["content-encoding"] = "gzip"
    headers.update({name.lower(): value for name, value in (options.get("headers") or {}).items()})
    timeout = options.get("timeout")
    return Request(
        method="POST",
        path="/v1/systemone",
        content=content,
        headers=headers,
        timeout=settings.timeout if timeout is None else timeout,
        questions=body["questions"],
    )


def upload_request(settings: Settings, file: LoadedFile, options: DecideOptions | None = None) -> Request:
    """Build `POST /v1/files`, for a decision with these options."""
    given = options or {}
    timeout = given.get("timeout")
    headers = {name.lower(): value for name, value in (given.get("headers") or {}).items()}
    # Those describe the decision's body.
    for name in ("content-type", "content-encoding"):
        headers.pop(name, None)
    return Request(
        method="POST",
        path="/v1/files",
        file=file,
        headers=headers,
        timeout=settings.timeout if timeout is None else timeout,
    )


def get_request(settings: Settings, path: str) -> Request:
    """Build a GET."""
    return Request(method="GET", path=path, timeout=settings.timeout)


def decision_from(request: Request, response: httpx.Response) -> Decision:
    """Read the 200 of `POST /v1/systemone`.

    Raises:
        ResponseError: naming the place that is wrong.
    """
    request_id = request_id_of(response)
    try:
        return decision_of(json_from(response), request.questions, request_id=request_id)
    except errors.ResponseError as error:
        suffix = f" (request {request_id})" if request_id else ""
        raise errors.ResponseError(f"{error}{suffix}") from None


def models_from(response: httpx.Response) -> list[ModelInfo]:
    """Read the 200 of `GET /v1/models`.

    Raises:
        ResponseError: when it is not a list of models.
    """
    try:
        return ModelList.model_validate(json_from(response), strict=True).models
    except ValidationError as error:
        raise errors.ResponseError(first_error(error)) from None


class _OneFile(UploadedFiles):
    """The body of `POST /v1/files` for one file."""

    files: list[UploadedFile] = Field(min_length=1, max_length=1)


def upload_from(response: httpx.Response, name: str) -> UploadedFile:
    """Read the 200 of `POST /v1/files` with one file of this name.

    Raises:
        ResponseError: when it is not one file.
    """
    try:
        # From the text itself, where a date is a string also when checks are strict.
        file = _OneFile.model_validate_json(response.content, strict=True).files[0]
    except ValidationError as error:
        raise errors.ResponseError(first_error(error)) from None
    # A multipart head writes some characters otherwise, such as quotes.
    return file.model_copy(update={"name": name})


def health_from(response: httpx.Response) -> dict[str, Any]:
    """Read the 200 of `GET /health`.

    Raises:
        ResponseError: when it is not a JSON object.
    """
    data = json_from(response)
    if not isinstance(data, dict):
        raise errors.ResponseError("body: Input should be an object")
    return cast("dict[str, Any]", data)


def json_from(response: httpx.Response) -> Any:
    """Decode a body.

    Raises:
        ResponseError: when it is not JSON.
    """
    try:
        return parse_json(response.content)
    except BadRequestError as error:
        raise errors.ResponseError(str(error)) from None


class Attempts:
    """The tries of one call: after each, either the response, a wait, or an error.

    Args:
        policy: when to try again.
        url: the server's address, for messages.
        clock: seconds on a clock that never goes back.
        chance: returns a number in [0, 1).
    """

    def __init__(
        self,
        policy: RetryPolicy,
        url: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._url = url
        self._clock = clock
        self._chance = chance
        self._start = clock()
        self._retries = 0

    def after_response(self, response: httpx.Response, *, repeatable: bool = True) -> float | None:
        """Return None when the response is the answer, else the seconds to wait.

        Args:
            response: what came.
            repeatable: whether the request may reach the server twice. One that may not is tried again only
                where the status says that it was not taken up; a gateway's does not.

        Raises:
            APIError: the one that the response stands for, when no further try is due.
            ResponseError: for a redirect or another status that this API does not send.
        """
        status = response.status_code
        if status == 200:
            return None
        if status < 400:
            where = response.headers.get("location")
            hint = f" to {where}; is base_url right?" if where else ""
            raise errors.ResponseError(f"{self._url} answered with status {status}{hint}")
        error = api_error(response, time.time())
        retried = status in self._policy.statuses
        if not repeatable:
            loading = status == 503 and b'"model_unavailable"' in response.content  # and no gateway's 503
            retried = retried and (status in (429, 529) or loading)
        return self._wait(error, retried=retried, retry_after=error.retry_after)

    def after_failure(
        self, failure: httpx.HTTPError, timeout: float | None, *, repeatable: bool = True
    ) -> float:
        """Return the seconds to wait after a try that brought no response.

        Raises:
            ConnectionError: when no further try is due (`TimeoutError` after a timeout).
            ResponseError: when the body does not decode as its headers say.
        """
        if isinstance(failure, httpx.DecodingError):
            raise errors.ResponseError(f"The answer of {self._url} cannot be decoded: {failure}") from failure
        if isinstance(failure, httpx.TimeoutException):
            limit = "in time" if timeout is None else f"within {timeout:g} s"
            error: errors.JevError = errors.TimeoutError(f"No answer from {self._url} {limit}")
        else:
            reason = str(failure) or type(failure).__name__
            error = errors.ConnectionError(f"Cannot reach {self._url}: {reason}")
        passing = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError)
        if not repeatable:
            passing = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)  # it was not sent
        error.__cause__ = failure
        return self._wait(error, retried=isinstance(failure, passing), retry_after=None)

    def _wait(self, error: errors.JevError, *, retried: bool, retry_after: float | None) -> float:
        wait = None
        if retried:
            wait = self._policy.delay(
                self._retries,
                elapsed=self._clock() - self._start,
                retry_after=retry_after,
                chance=self._chance,
            )
        if wait is None:
            raise error
        self._retries += 1
        return wait
