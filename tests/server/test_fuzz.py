"""No body, header or path, however odd, gets a 5xx, a body that is not JSON, or no request id.

The app is real and the engine is a fake, so that very many cases run in little time.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
import zstandard
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from jev.schemas import SystemOneRequest, SystemOneResponse

pytestmark = pytest.mark.slow


SEARCH = os.environ.get("HYPOTHESIS_PROFILE") == "search"


def fuzz(cases: int) -> settings:
    """So many cases, the same ones every time; ten times as many, and new ones, in a search."""
    return settings(
        max_examples=10 * cases if SEARCH else cases,
        deadline=None,
        derandomize=not SEARCH,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


text = st.text(max_size=20) | st.sampled_from(["", "<turn|>", "\0", "a" * 600, "🎯", "<image:0>"])
number = (
    st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([10**40, -1, 0, 1e308])
)
scalar: SearchStrategy[Any] = st.none() | st.booleans() | number | text
anything: SearchStrategy[Any] = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
some_text = text | st.lists(anything, max_size=3) | st.dictionaries(text, anything, max_size=3)

sides = st.fixed_dictionaries({}, optional={"true": some_text, "false": some_text})
options = st.dictionaries(text, st.none() | some_text, min_size=1, max_size=6)
noul = st.fixed_dictionaries(
    {"type": st.just("noul"), "instructions": some_text},
    optional={"criteria": st.none() | sides},
)
choice = st.fixed_dictionaries(
    {
        "type": st.just("choice"),
        "criteria": options,
    },
    optional={"instructions": some_text},
)
score = st.fixed_dictionaries(
    {"type": st.just("score"), "criteria": st.lists(some_text, min_size=1, max_size=10)},
    optional={"instructions": some_text},
)
valid = st.fixed_dictionaries(
    {
        "state": some_text,
        "questions": st.dictionaries(
            st.text(min_size=1, max_size=20), noul | choice | score, min_size=1, max_size=4
        ),
    },
    optional={
        "model": st.sampled_from(["jev-latest", "fake-1"]),
        "instructions": some_text,
        "layout": st.sampled_from(["isolated", "joint"]),
        "samples": st.just("auto") | st.integers(1, 32),
        "seed": st.integers(-(2**31), 2**31 - 1),
        "permutations": st.integers(1, 32),
        "diagnostics": st.booleans() | st.just("full"),
        "x_trace": anything,
    },
)


def check(response: Any) -> None:
    """What must hold for every response of /v1."""
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-typesafe-request-id"].startswith("req_")
    data = response.json()
    if response.status == 503:
        # The one 5xx that a request can cause: sound images, and nothing to read them with.
        assert "no vision tower" in data["detail"]["message"]
        return
    assert response.status < 500, data
    if response.status == 200:
        SystemOneResponse.model_validate(data)
    elif response.status == 422:
        assert data["detail"]
        assert {row["loc"][0] for row in data["detail"]} <= {"body", "header"}
    else:
        assert set(data["detail"]) == {"error_type", "message"}


def encode(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value below `value`."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in inner for found in [(*path, key), *places(item, (*path, key))]]


def mutate(body: dict[str, Any], rng: random.Random, junk: list[Any]) -> dict[str, Any]:
    """Replace, remove, duplicate or insert something somewhere."""
    body = copy.deepcopy(body)
    for _ in range(rng.randint(1, 3)):
        where = places(body)
        if not where:
            break
        *parents, last = rng.choice(where)
        target: Any = body
        for key in parents:
            target = target[key]
        value = copy.deepcopy(rng.choice(junk))
        match rng.randrange(4):
            case 0:
                target[last] = value
            case 1:
                del target[last]
            case 2 if isinstance(target, list):
                target.insert(last, value)
            case 2:
                target[rng.choice(KEYS)] = value
            case _ if isinstance(target, dict):
                target[last + rng.choice("x \0é")] = target.pop(last)
            case _:
                target.append(target[last])
    return body


KEYS = [*SystemOneRequest.model_fields, "type", "criteria", "true", "false", "", "x"]


@fuzz(300)
@given(body=valid)
def test_valid_bodies_are_answered(fast_client: Any, body: dict[str, Any]) -> None:
    response = fast_client.post(encode(body))
    check(response)
    assert response.status == 200, response.body
    assert list(response.json()["answers"]) == list(body["questions"])


@fuzz(200)
@given(body=valid, junk=st.lists(anything, min_size=1, max_size=4), seed=st.integers(0, 2**32))
def test_mutated_bodies(fast_client: Any, body: dict[str, Any], junk: list[Any], seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(12):
        check(fast_client.post(encode(mutate(body, rng, junk))))


@fuzz(600)
@given(body=anything)
def test_any_json(fast_client: Any, body: Any) -> None:
    check(fast_client.post(encode(body)))


@fuzz(150)
@given(content=st.binary(max_size=200), body=valid, seed=st.integers(0, 2**32))
def test_broken_bytes(fast_client: Any, content: bytes, body: dict[str, Any], seed: int) -> None:
    check(fast_client.post(content))
    rng = random.Random(seed)
    good = encode(body)
    for _ in range(6):
        at = rng.randrange(len(good))
        check(fast_client.post(good[:at] + content[: rng.randrange(4)] + good[at + rng.randrange(9) :]))


@fuzz(150)
@given(
    body=valid,
    kind=st.sampled_from(["application/json", "multipart/form-data; boundary=b", "text/html", "a/b+json"]),
    encoding=st.sampled_from(["gzip", "zstd", "identity", "br", "gzip, zstd"]),
    pack=st.sampled_from([gzip.compress, zstandard.compress, bytes]),
    timeout=st.sampled_from(["1e9", "30", "0", "-1", "x", "nan", "1_0"]),
    seed=st.integers(0, 2**32),
)
def test_packed_bodies(
    fast_client: Any,
    body: dict[str, Any],
    kind: str,
    encoding: str,
    pack: Callable[[bytes], bytes],
    timeout: str,
    seed: int,
) -> None:
    rng = random.Random(seed)
    content = encode(body)
    if kind.startswith("multipart"):
        head = b'--b\r\nContent-Disposition: form-data; name="request"\r\n\r\n'
        content = head + content + b"\r\n--b--\r\n"
    packed = pack(content)
    for flips in (0, 0, 1, 1, 2, 5):
        data = bytearray(packed)
        for _ in range(flips):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        headers = {"content_type": kind, "content_encoding": encoding}
        if rng.random() < 0.3:
            headers["timeout"] = timeout
        check(fast_client.post(bytes(data), **headers))


@fuzz(500)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO"]),
    path=st.lists(st.sampled_from(["v1", "systemone", "models", "health", "..", "", "é", " "]), max_size=4),
    content=st.binary(max_size=20),
)
def test_any_route(fast_client: Any, method: str, path: list[str], content: bytes) -> None:
    response = fast_client.post(content, path="/" + "/".join(path), method=method)
    assert response.status < 500
    if response.headers["content-type"] != "application/json":
        assert (method, "/".join(path)) == ("GET", ""), "only the page is no JSON"
        return
    assert response.headers["x-request-id"].startswith("req_")
    assert response.json()


@pytest.fixture(scope="module")
def operation(fast_client: Any) -> Any:
    """POST /v1/systemone as /openapi.json describes it."""
    return schemathesis.openapi.from_dict(fast_client.app.openapi())["/v1/systemone"]["POST"]


@fuzz(150)
@given(data=st.data())
def test_what_the_schema_allows(fast_client: Any, operation: Any, data: st.DataObject) -> None:
    case = data.draw(operation.as_strategy())
    if case.media_type != "application/json":
        return
    check(fast_client.post(encode(case.body)))
