"""A real server with the real model answers odd but valid requests and refuses the rest, never with a 5xx."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from jev.schemas import SystemOneRequest, SystemOneResponse

pytestmark = pytest.mark.slow

WORDS = ["", "a", "The order is late.", "<turn|>", "<|channel>thought", "\0", "🎯 질문", "yes\nno", "A: x"]
JUNK: list[Any] = [None, True, -1, 2**40, 1.5, "x", [], {}, [[]], {"": None}]


@pytest.fixture(scope="module")
def http(server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, timeout=60) as client:
        yield client


def text(rng: random.Random) -> Any:
    word = rng.choice(WORDS)
    return rng.choice([word, word, {word: rng.choice(JUNK)}, [word, rng.choice(JUNK)]])


def question(rng: random.Random) -> dict[str, Any]:
    match rng.randrange(3):
        case 0:
            sides = {side: text(rng) for side in ("true", "false") if rng.random() < 0.5}
            return {"type": "noul", "instructions": text(rng), "criteria": sides}
        case 1:
            count = rng.choice([1, 2, 3, 30])
            names = [f"{rng.choice(WORDS)}{i}" for i in range(count)]
            return {"type": "choice", "criteria": {name: rng.choice([None, text(rng)]) for name in names}}
        case _:
            return {"type": "score", "criteria": [text(rng) for _ in range(rng.randint(1, 10))]}


def request(rng: random.Random) -> dict[str, Any]:
    body = {
        "state": text(rng),
        "questions": {f"{rng.choice(WORDS)}{i}": question(rng) for i in range(rng.randint(1, 3))},
        "layout": rng.choice(["isolated", "isolated", "joint"]),
        "samples": rng.choice([1, 1, 2]),
        "seed": rng.randrange(-(2**31), 2**31),
        "permutations": rng.choice([1, 1, 3]),
        "diagnostics": rng.choice([False, True, "full"]),
    }
    return {key: value for key, value in body.items() if key in ("state", "questions") or rng.random() < 0.4}


def check(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-typesafe-request-id"].startswith("req_")
    assert response.json()


@pytest.mark.parametrize("seed", range(4))
def test_odd_requests(http: httpx.Client, seed: int) -> None:
    rng = random.Random(seed)
    answered = 0
    for _ in range(20):
        body = request(rng)
        response = http.post("/v1/systemone", json=body)
        check(response)
        if response.status_code == 200:
            answered += 1
            answers = SystemOneResponse.model_validate(response.json()).answers
            assert list(answers) == list(body["questions"])
            for answer in answers.values():
                p = [answer.noul] if answer.type == "noul" else list(answer.probabilities.values())
                assert all(0 <= value <= 1 for value in p)
                assert answer.type == "noul" or sum(p) == pytest.approx(1, abs=1e-6)
    assert answered >= 10


def test_fields_out_of_range(http: httpx.Client) -> None:
    good = {"state": "", "questions": {"q": {"type": "noul", "instructions": "?"}}}
    for field in SystemOneRequest.model_fields:
        if field == "images":
            continue  # any image is a 503 until there is a vision tower
        for value in JUNK:
            check(http.post("/v1/systemone", json={**good, field: value}))


def test_broken_bytes(http: httpx.Client) -> None:
    rng = random.Random(1)
    for _ in range(100):
        data = bytearray(json.dumps(request(rng)).encode()[:2000])
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        check(http.post("/v1/systemone", content=bytes(data)))


def test_the_same_request_keeps_its_answer_through_all_of_that(http: httpx.Client) -> None:
    rng = random.Random(2)
    body = request(rng)
    first = http.post("/v1/systemone", json=body).json()
    for _ in range(5):
        http.post("/v1/systemone", json=request(rng))
    assert http.post("/v1/systemone", json=body).json()["answers"] == first["answers"]
