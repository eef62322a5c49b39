"""The official `typesafe-sdk` works against the server unchanged: every answer type, packing and error."""

from __future__ import annotations

import asyncio
import importlib.util
import io
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import typesafe_sdk as sdk
from PIL import Image as PILImage
from PIL import ImageDraw

from jev.schemas import SystemOneResponse

OCR = importlib.util.find_spec("rapidocr_onnxruntime") is not None

RETRY_NEVER = sdk.RetryPolicy(max_retries=0)
OPTIONS: dict[str, Any] = {"retry": RETRY_NEVER, "timeout": 60}

STATE = "The parcel arrived crushed and I want my money back today."
QUESTIONS: dict[str, Any] = {
    "refund": sdk.Noul(instructions="Does the customer want a refund?"),
    "team": sdk.Choice(criteria={"billing": "money", "shipping": None, "sales": None}),
    "anger": sdk.Score(criteria=["calm", {"level": "annoyed"}, "furious"]),
}


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[sdk.TypeSafeClient]:
    with sdk.TypeSafeClient(api_key="unused", base_url=server, **OPTIONS) as client:
        yield client


@pytest.fixture(scope="module")
def picture() -> bytes:
    file = io.BytesIO()
    image = PILImage.new("RGB", (320, 80), "white")
    ImageDraw.Draw(image).text((20, 20), "REFUND", fill="black", font_size=40)
    image.save(file, "PNG")
    return file.getvalue()


def ask_about(client: sdk.TypeSafeClient, picture: bytes) -> sdk.SystemOneResponse:
    state: Any = {"photo": sdk.Image(picture)}
    return client.system_one(state, QUESTIONS)


def check(response: sdk.SystemOneResponse) -> None:
    assert response.model not in ("", "jev-latest")
    assert response.request_id is not None
    assert response.request_id.startswith("req_")
    assert (response.usage.input_tokens or 0) > 0
    assert (response.usage.output_tokens or 0) > 0
    assert list(response.answers) == list(QUESTIONS)
    assert 0 <= response.nouls["refund"].noul <= 1
    team = response.choices["team"]
    assert sum(team.probabilities.values()) == pytest.approx(1, abs=1e-6)
    assert team.choice == max(team.probabilities, key=lambda name: team.probabilities[name])
    anger = response.scores["anger"]
    assert anger.legend == {0: "calm", 1: {"level": "annoyed"}, 2: "furious"}
    assert anger.score == pytest.approx(sum(i * p for i, p in anger.probabilities.items()), abs=1e-6)


def numbers(response: sdk.SystemOneResponse) -> dict[str, Any]:
    return response.raw_http_response.json()["answers"]


def leaves(value: Any) -> list[Any]:
    """Every value that is no object, in order."""
    return [leaf for one in value.values() for leaf in leaves(one)] if isinstance(value, dict) else [value]


def test_one_request_of_every_type(client: sdk.TypeSafeClient) -> None:
    response = client.system_one(STATE, QUESTIONS)
    check(response)
    ours = SystemOneResponse.model_validate(response.raw_http_response.json())
    assert ours.answers["refund"].type == "noul"


def test_the_same_request_gets_the_same_numbers(client: sdk.TypeSafeClient) -> None:
    first, second = (client.system_one(STATE, QUESTIONS) for _ in range(2))
    assert numbers(first) == numbers(second)


def test_async_and_concurrent(server: str, client: sdk.TypeSafeClient) -> None:
    async def ask() -> list[sdk.SystemOneResponse]:
        async with sdk.AsyncTypeSafeClient(api_key="unused", base_url=server, **OPTIONS) as client:
            return await asyncio.gather(*(client.system_one(STATE, QUESTIONS) for _ in range(6)))

    # Requests that share a step are other matrices, which round otherwise.
    alone = leaves(numbers(client.system_one(STATE, QUESTIONS)))
    expected = [pytest.approx(leaf, abs=1e-5) if isinstance(leaf, float) else leaf for leaf in alone]
    for response in asyncio.run(ask()):
        check(response)
        assert leaves(numbers(response)) == expected


def test_long_states_travel_as_zstd(server: str, client: sdk.TypeSafeClient) -> None:
    state = {"messages": [f"Message {i}: {STATE}" for i in range(40)]}
    with sdk.TypeSafeClient(api_key="unused", base_url=server, compression="zstd", **OPTIONS) as packing:
        packed = packing.system_one(state, QUESTIONS)
    assert packed.raw_http_response.request.headers["content-encoding"] == "zstd"
    check(packed)
    with sdk.TypeSafeClient(api_key="unused", base_url=server, compression=False, **OPTIONS) as plain:
        unpacked = plain.system_one(state, QUESTIONS)
    assert "content-encoding" not in unpacked.raw_http_response.request.headers
    assert numbers(packed) == numbers(unpacked)


def test_models_are_listed(client: sdk.TypeSafeClient) -> None:
    models = client.models.list().models
    names = [model.name for model in models]
    assert "jev-latest" in names
    assert client.system_one(STATE, QUESTIONS, model=names[-1]).model in names


def test_an_image_that_nothing_can_read_is_refused(keyed_server: tuple[str, str], picture: bytes) -> None:
    url, key = keyed_server
    with (
        sdk.TypeSafeClient(api_key=key, base_url=url, **OPTIONS) as client,
        pytest.raises(sdk.TypeSafeInternalServerError) as caught,
    ):
        ask_about(client, picture)
    assert caught.value.status == 503
    assert "This model has no vision tower, so it cannot read images" in str(caught.value)
    assert caught.value.request_id is not None


@pytest.mark.skipif(not OCR, reason="the extra `ocr` is not installed")
def test_the_text_of_an_image_is_read(client: sdk.TypeSafeClient, picture: bytes) -> None:
    response = ask_about(client, picture)
    assert response.raw_http_response.request.headers["content-type"].startswith("multipart/form-data")
    check(response)


def test_an_unknown_model_is_not_found(client: sdk.TypeSafeClient) -> None:
    with pytest.raises(sdk.TypeSafeNotFoundError, match="no-such-model"):
        client.system_one(STATE, QUESTIONS, model="no-such-model")


def test_a_bad_request_names_the_field(client: sdk.TypeSafeClient) -> None:
    with pytest.raises(sdk.TypeSafeUnprocessableEntityError, match="samples"):
        client.system_one(STATE, QUESTIONS, extra_body={"samples": 0})


def test_extensions_pass_through_the_sdk(client: sdk.TypeSafeClient) -> None:
    response = client.system_one(STATE, QUESTIONS, extra_body={"diagnostics": True, "seed": 7, "samples": 2})
    check(response)
    assert response.raw_http_response.json()["x_diagnostics"]


def test_keys(keyed_server: tuple[str, str]) -> None:
    url, key = keyed_server
    with sdk.TypeSafeClient(api_key=key, base_url=url, **OPTIONS) as client:
        check(client.system_one(STATE, QUESTIONS))
        assert client.models.list().models
    with (
        sdk.TypeSafeClient(api_key="wrong", base_url=url, **OPTIONS) as client,
        pytest.raises(sdk.TypeSafeAuthenticationError),
    ):
        client.system_one(STATE, QUESTIONS)
    assert httpx.get(f"{url}/v1/models").status_code == 403
