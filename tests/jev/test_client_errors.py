"""An error status becomes the class that the server raised, whatever server sent it and in whatever shape."""

import asyncio
import builtins
from typing import Any

import httpx
import pytest

import jev as sdk
from jev import APIError, AsyncJev, InvalidRequestError, Jev, JevError, ResponseError, RetryPolicy

ISSUE = {"loc": ["body", "questions", "a", "criteria"], "msg": "Field required", "type": "missing"}


def fail(kind: str, response: httpx.Response) -> APIError:
    """Return the error that `decide` raises for a response."""
    transport = httpx.MockTransport(lambda request: response)
    retry = RetryPolicy(max_retries=0)
    questions = {"a": sdk.Noul("Is it?")}
    with pytest.raises(APIError) as caught:
        if kind == "sync":
            with Jev(transport=transport, retry=retry) as client:
                client.decide("s", questions)
        else:

            async def run() -> None:
                async with AsyncJev(transport=transport, retry=retry) as client:
                    await client.decide("s", questions)

            asyncio.run(run())
    return caught.value


def detail(error_type: str, message: str) -> dict[str, Any]:
    return {"detail": {"error_type": error_type, "message": message}}


both = pytest.mark.parametrize("kind", ["sync", "async"])


@both
@pytest.mark.parametrize(
    ("status", "cls"),
    [
        (400, sdk.InvalidRequestError),
        (401, sdk.AuthenticationError),
        (402, sdk.APIError),
        (403, sdk.PermissionDeniedError),
        (404, sdk.NotFoundError),
        (405, sdk.InvalidRequestError),
        (408, sdk.APIError),
        (413, sdk.TooLargeError),
        (415, sdk.UnsupportedMediaTypeError),
        (422, sdk.InvalidRequestError),
        (429, sdk.RateLimitError),
        (500, sdk.ServerError),
        (502, sdk.ServerError),
        (503, sdk.ModelUnavailableError),
        (504, sdk.ServerError),
        (529, sdk.OverloadedError),
    ],
)
def test_every_status_has_its_class(kind: str, status: int, cls: type[APIError]) -> None:
    headers = {"x-typesafe-request-id": "req_7", "retry-after": "1.5"}
    error = fail(kind, httpx.Response(status, json=detail("some_kind", "What went wrong"), headers=headers))
    assert type(error) is cls
    assert isinstance(error, JevError)
    assert error.status == status
    assert error.error_type == "some_kind"
    assert error.message == str(error) == "What went wrong"
    assert error.request_id == "req_7"
    assert error.retry_after == 1.5
    assert error.issues == []


@both
def test_a_422_carries_its_issues(kind: str) -> None:
    other = {"loc": ["body", "state"], "msg": "Bad", "type": "t", "input": 3, "ctx": {}}
    error = fail(kind, httpx.Response(422, json={"detail": [ISSUE, other, "junk", {"loc": 1}]}))
    assert type(error) is InvalidRequestError
    assert [issue.loc for issue in error.issues] == [ISSUE["loc"], ["body", "state"]]
    assert error.issues[0].model_dump() == ISSUE
    assert error.message == "body.questions.a.criteria: Field required; body.state: Bad"
    assert error.error_type == "invalid_request_error"
    assert error.request_id is None
    assert error.retry_after is None


@pytest.mark.parametrize(
    ("body", "message", "error_type"),
    [
        ({"error": "plain"}, "plain", "server_error"),
        ({"error": {"message": "nested", "type": "quota"}}, "nested", "quota"),
        ({"error": {"message": "nested", "code": 500}}, "nested", "server_error"),
        ({"message": "flat", "error_type": "flat_kind"}, "flat", "flat_kind"),
        ({"detail": "words"}, "words", "server_error"),
        (
            {"detail": {"error_type": "max_tokens_exceeded"}},
            "500 Internal Server Error",
            "max_tokens_exceeded",
        ),
        ({"error": "first", "message": "second", "detail": "third"}, "first", "server_error"),
        ({"error": {"message": 7}, "detail": []}, "500 Internal Server Error", "server_error"),
        ([], "500 Internal Server Error", "server_error"),
        ("a string", "500 Internal Server Error", "server_error"),
    ],
)
def test_other_servers_shapes_are_understood(body: Any, message: str, error_type: str) -> None:
    error = fail("sync", httpx.Response(500, json=body))
    assert (error.message, error.error_type) == (message, error_type)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "502 Bad Gateway"),
        (b"<html><h1>502</h1></html>", "502 Bad Gateway"),
        (b"upstream\n went away", "upstream went away"),
        (b"x" * 999, "x" * 200),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_bodies_that_are_not_json(content: bytes, message: str) -> None:
    error = fail("sync", httpx.Response(502, content=content))
    assert type(error) is sdk.ServerError
    assert error.message == message


def test_statuses_without_a_name_and_kinds_without_a_server() -> None:
    assert fail("sync", httpx.Response(529)).message == "529"
    assert fail("sync", httpx.Response(529)).error_type == "overloaded_error"
    assert fail("sync", httpx.Response(409)).error_type == "http_error"


def test_x_request_id_stands_in() -> None:
    assert fail("sync", httpx.Response(500, headers={"x-request-id": "abc"})).request_id == "abc"


@both
@pytest.mark.parametrize("status", [201, 204, 301, 307])
def test_a_status_that_the_api_does_not_send_is_a_response_error(kind: str, status: int) -> None:
    response = httpx.Response(status, headers={"location": "https://elsewhere/"})
    transport = httpx.MockTransport(lambda request: response)

    async def run() -> None:
        async with AsyncJev(transport=transport) as client:
            await client.health()

    with pytest.raises(ResponseError, match=rf"status {status} to https://elsewhere/; is base_url right\?"):
        if kind == "sync":
            Jev(transport=transport).health()
        else:
            asyncio.run(run())


def test_sdk_errors_are_python_errors_too() -> None:
    assert issubclass(sdk.TimeoutError, builtins.TimeoutError)
    assert issubclass(sdk.ConnectionError, builtins.ConnectionError)
    assert issubclass(sdk.TimeoutError, sdk.ConnectionError)
    assert issubclass(sdk.MissingExtraError, ImportError)
