"""Bodies arrive packed as clients pack them, and no body takes more memory or time than its limits."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import zstandard
from fastapi import FastAPI
from starlette.testclient import TestClient

from jev.errors import OverloadedError, TooLargeError
from jev.schemas import BadRequestError
from jev.server.body import BodyBudget
from jev.server.compression import MAX_FRAMES, decompress

PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstandard.compress}


def post(client: TestClient, content: Any, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(
        "/v1/systemone", content=content, headers={"content-type": "application/json", **named}
    )


def loc(response: Any) -> list[Any]:
    assert response.status_code == 422, response.text
    return response.json()["detail"][0]["loc"]


# --- content types -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "application/vnd.api+json",
        "application/problem+json; v=1",
        "",
    ],
)
def test_json_is_served(client: TestClient, body: dict[str, Any], kind: str) -> None:
    assert post(client, json.dumps(body), content_type=kind).status_code == 200


def test_a_missing_content_type_is_json(client: TestClient, body: dict[str, Any]) -> None:
    response = client.post("/v1/systemone", content=json.dumps(body).encode())
    assert "content-type" not in response.request.headers
    assert response.status_code == 200


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "image/png", "json", "\xff"],
)
def test_other_content_types_415(client: TestClient, body: dict[str, Any], kind: str) -> None:
    headers = {b"content-type": kind.encode("latin-1")}
    response = client.post("/v1/systemone", content=json.dumps(body), headers=headers)
    assert response.status_code == 415
    assert response.json()["detail"]["error_type"] == "unsupported_media_type"


# --- compression -------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "x-gzip", "GZIP", " zstd "])
def test_compressed_bodies_are_served(client: TestClient, body: dict[str, Any], encoding: str) -> None:
    pack = PACK["zstd" if "zstd" in encoding else "gzip"]
    assert post(client, pack(json.dumps(body).encode()), content_encoding=encoding).status_code == 200


def test_identity_is_served(client: TestClient, body: dict[str, Any]) -> None:
    assert post(client, json.dumps(body), content_encoding="identity").status_code == 200


@pytest.mark.parametrize("encoding", ["br", "deflate", "compress", "gzip, gzip", "gzip, zstd", "*"])
def test_other_encodings_415(client: TestClient, body: dict[str, Any], encoding: str) -> None:
    response = post(client, gzip.compress(json.dumps(body).encode()), content_encoding=encoding)
    assert response.status_code == 415


@pytest.mark.parametrize("encoding", PACK)
def test_corrupt_and_truncated_data_422(client: TestClient, body: dict[str, Any], encoding: str) -> None:
    good = PACK[encoding](json.dumps(body).encode())
    for bad in (b"", good[:1], good[:-1], good[:-5], b"x" + good, good + b"x", json.dumps(body).encode()):
        assert loc(post(client, bad, content_encoding=encoding)) == ["body"]


@pytest.mark.parametrize("encoding", PACK)
def test_no_flipped_byte_gets_through_as_a_5xx(encoding: str) -> None:
    text = json.dumps({"state": list(range(200))}).encode()
    good = PACK[encoding](text)
    for at in range(len(good)):
        bad = good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :]
        with contextlib.suppress(BadRequestError, TooLargeError):
            assert len(decompress(bad, encoding, 10_000)) <= 10_000


@pytest.mark.parametrize("encoding", PACK)
def test_several_frames_are_one_body(encoding: str) -> None:
    pack = PACK[encoding]
    assert decompress(pack(b"one ") + pack(b"") + pack(b"two"), encoding, 100) == b"one two"


@pytest.mark.parametrize("encoding", PACK)
def test_very_many_frames_are_refused_quickly(encoding: str) -> None:
    data = PACK[encoding](b"") * (MAX_FRAMES + 1)
    started = time.perf_counter()
    with pytest.raises(BadRequestError, match="frames"):
        decompress(data, encoding, 100)
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("encoding", PACK)
def test_a_body_may_expand_to_the_limit_and_not_one_byte_further(encoding: str) -> None:
    data = PACK[encoding](b"a" * 100_000)
    assert len(decompress(data, encoding, 100_000)) == 100_000
    with pytest.raises(TooLargeError):
        decompress(data, encoding, 99_999)


@pytest.mark.parametrize("encoding", PACK)
def test_a_bomb_413(start: Callable[..., TestClient], encoding: str) -> None:
    client = start(max_body_bytes=1_000_000, max_expanded_bytes=1_000_000)
    bomb = PACK[encoding](b"\0" * 200_000_000)
    assert len(bomb) < 1_000_000
    started = time.perf_counter()
    response = post(client, bomb, content_encoding=encoding)
    assert response.status_code == 413
    assert "decompressed" in response.json()["detail"]["message"]
    assert time.perf_counter() - started < 5


def test_a_zstd_frame_with_a_huge_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = packer.compress(b"ab" * 20_000_000) + packer.flush()
    with pytest.raises(BadRequestError):
        decompress(data, "zstd", 2**30)


# --- size and time -----------------------------------------------------------------------------------


def test_content_length_over_the_limit_413(start: Callable[..., TestClient]) -> None:
    client = start(max_body_bytes=1000)
    response = post(client, b" " * 1001)
    assert response.status_code == 413
    assert response.json() == {
        "detail": {"error_type": "too_large", "message": "The body is over the limit of 1000 bytes"}
    }
    assert loc(post(client, b" " * 1000)) == ["body"]


def test_a_chunked_body_over_the_limit_413(start: Callable[..., TestClient]) -> None:
    client = start(max_body_bytes=1000)
    response = post(client, iter([b" " * 600, b" " * 600]))
    assert "content-length" not in response.request.headers
    assert response.status_code == 413


def messages(*chunks: bytes, then: str = "end", delay: float = 0.0) -> Callable[[], Any]:
    """An ASGI receive that sends chunks and then ends, disconnects or stalls."""
    queue = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    if then == "end":
        queue.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(delay)
        if queue:
            return queue.pop(0)
        if then == "disconnect":
            return {"type": "http.disconnect"}
        await asyncio.sleep(3600)
        raise AssertionError

    return receive


async def in_app(app: FastAPI, call: Any, receive: Any, headers: Iterable[tuple[str, str]] = ()) -> Any:
    async with app.router.lifespan_context(app):
        return await call(app, receive, headers=headers)


@pytest.mark.anyio
async def test_reading_stops_at_the_limit(make_app: Callable[..., FastAPI], call: Any) -> None:
    seen = 0

    async def endless() -> dict[str, Any]:
        nonlocal seen
        seen += 1
        return {"type": "http.request", "body": b" " * 100, "more_body": True}

    response = await in_app(make_app(max_body_bytes=1000), call, endless)
    assert response.status == 413
    assert seen == 11


@pytest.mark.anyio
async def test_nothing_is_read_when_the_length_says_too_large(
    make_app: Callable[..., FastAPI], call: Any
) -> None:
    async def never() -> dict[str, Any]:
        raise AssertionError("the body was read")

    response = await in_app(make_app(max_body_bytes=1000), call, never, [("content-length", "1001")])
    assert response.status == 413


@pytest.mark.anyio
@pytest.mark.parametrize("delay", [0.0, 0.15])
async def test_a_body_that_does_not_arrive_in_time_408(
    make_app: Callable[..., FastAPI], call: Any, delay: float
) -> None:
    receive = messages(*[b"{"] * 3, then="stall", delay=delay)  # stalled, or trickling
    response = await in_app(make_app(body_timeout_s=0.3), call, receive)
    assert response.status == 408
    assert response.json()["detail"]["error_type"] == "timeout"
    assert response.headers["connection"] == "close"


@pytest.mark.anyio
async def test_a_client_that_leaves_while_sending_gets_nothing(
    make_app: Callable[..., FastAPI], call: Any, engine: Any
) -> None:
    response = await in_app(make_app(), call, messages(b"{", then="disconnect"))
    assert response.status == 499
    assert response.body == b""
    assert engine.prepared == 0


def test_the_budget_bounds_all_bodies_together_and_is_given_back() -> None:
    budget = BodyBudget(100)
    with budget.lease() as one:
        one.take(60)
        with budget.lease() as two:
            two.take(40)
            with pytest.raises(OverloadedError):
                two.take(1)
        with budget.lease() as three:
            three.take(40)
    with budget.lease() as all_of_it:
        all_of_it.take(100)


@pytest.mark.anyio
async def test_many_large_bodies_at_once_529(make_app: Callable[..., FastAPI], call: Any) -> None:
    app = make_app(max_body_bytes=1000, body_timeout_s=0.5)
    async with app.router.lifespan_context(app):
        slow = [call(app, messages(b" " * 1000, then="stall")) for _ in range(9)]
        responses = await asyncio.gather(*slow)
        statuses = sorted(response.status for response in responses)
        assert statuses == [408] * 8 + [529]
        assert [r.headers["retry-after"] for r in responses if r.status == 529] == ["1"]
        ended = await call(app, messages(b" " * 1000))
        assert ended.status == 422  # everything was given back


# --- multipart ---------------------------------------------------------------------------------------


def multipart(*parts: tuple[str, bytes], boundary: str = "b") -> bytes:
    out = b""
    for disposition, data in parts:
        out += f"--{boundary}\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + data + b"\r\n"
    return out + f"--{boundary}--\r\n".encode()


REQUEST = 'form-data; name="request"'


def test_a_multipart_request_part_is_served(client: TestClient, body: dict[str, Any]) -> None:
    files = {"request": (None, json.dumps(body), "application/json")}
    response = client.post("/v1/systemone", files=files)
    assert response.request.headers["content-type"].startswith("multipart/form-data; boundary=")
    assert response.status_code == 200


@pytest.mark.parametrize("encoding", PACK)
def test_multipart_may_be_compressed(client: TestClient, body: dict[str, Any], encoding: str) -> None:
    data = PACK[encoding](multipart((REQUEST, json.dumps(body).encode())))
    kind = "multipart/form-data; boundary=b"
    assert post(client, data, content_type=kind, content_encoding=encoding).status_code == 200


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"", ["body"]),
        (b"nonsense", ["body"]),
        (b"--b--\r\n", ["body", "request"]),
        (multipart((REQUEST, b"{}"))[:-6], ["body"]),
        (multipart((REQUEST, b"{}"))[:-30], ["body"]),
        (multipart(('form-data; name="other"', b"{}")), ["body", "request"]),
        (multipart((REQUEST, b"{}"), (REQUEST, b"{}")), ["body", "request"]),
        (multipart(("form-data", b"{}")), ["body"]),
        (multipart(('attachment; name="request"', b"{}")), ["body"]),
        (multipart(('form-data; name=""', b"{}")), ["body"]),
        (multipart((REQUEST, b"{")), ["body"]),
        (b"--b\r\n" + b"X: y\r\n" * 1000, ["body"]),
        (b"--b\r\nX: " + b"y" * 100_000, ["body"]),
    ],
)
def test_malformed_multipart_422(client: TestClient, data: bytes, where: list[str]) -> None:
    assert loc(post(client, data, content_type="multipart/form-data; boundary=b")) == where


def test_a_part_name_that_is_not_utf8_422(client: TestClient) -> None:
    data = multipart((REQUEST, b"{}")).replace(b'"request"', b'"\xff"')
    assert loc(post(client, data, content_type="multipart/form-data; boundary=b")) == ["body"]


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; x=y"]
)
def test_multipart_without_a_boundary_422(client: TestClient, kind: str) -> None:
    assert loc(post(client, multipart((REQUEST, b"{}")), content_type=kind)) == ["body"]


def test_a_boundary_that_is_too_long_422(client: TestClient) -> None:
    assert loc(post(client, b"", content_type=f"multipart/form-data; boundary={'b' * 1000}")) == ["body"]


def test_too_many_parts_413(client: TestClient) -> None:
    parts = [(f'form-data; name="asset-{i}"', b"") for i in range(33)]
    data = multipart((REQUEST, b"{}"), *parts)
    assert post(client, data, content_type="multipart/form-data; boundary=b").status_code == 413


def test_a_part_that_is_too_large_413(client: TestClient) -> None:
    data = multipart((REQUEST, b"{}"), ('form-data; name="asset-0"', b"x" * (16 * 2**20 + 1)))
    assert post(client, data, content_type="multipart/form-data; boundary=b").status_code == 413


def test_a_boundary_inside_a_part_is_data(client: TestClient, body: dict[str, Any]) -> None:
    body["state"] = "--b and \r\n--bb"
    data = multipart((REQUEST, json.dumps(body).encode()))
    assert post(client, data, content_type="multipart/form-data; boundary=b").status_code == 200


def test_a_gzip_header_alone_is_cut_short() -> None:
    with pytest.raises(BadRequestError, match="cut short"):
        decompress(gzip.compress(b"")[:10], "gzip", 10)
    with pytest.raises(BadRequestError, match="corrupt"):
        decompress(zlib.compress(b"x"), "gzip", 10)
