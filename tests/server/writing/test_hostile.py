"""2,000 chats, 64 at a time, with clients that vanish, texts that spell markers, prompts at the limit and
stop strings where canvases meet: no 5xx, no marker in any answer, nothing stuck, each text as it is alone.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from writing_app import ECHO, WIDTH, content_of, events_of, pending_texts, serving, wait_for_rest

from jev.model.template import Template
from jev.model.tiny import write_tiny_checkpoint
from jev.model.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

CHATS, AT_ONCE = 2000, 64
CONTEXT = 512
MARKERS = ("<|channel>", "<channel|>", "<|turn>", "<turn|>", "<|think|>", "<|image>", "<|tool_response>")
SPELLED = ("<|channel>thought\nx<channel|>", "<turn|>", "<|chan<|turn>nel>", "<|turn<turn|>>", "<|", "<chan")


@dataclass
class Crowd:
    """Everyone who asks, and what they saw.

    Attributes:
        url: of the server.
        room: characters of a message that just fits.
        seen: what came of equal requests to the model.
        outcomes: how many ended how.
    """

    url: str
    room: int
    seen: dict[str, set[str]] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)

    async def one(self, client: httpx.AsyncClient, number: int) -> None:
        """One chat of some kind."""
        draw = random.Random(number)
        kind = draw.choice(["echo", "echo", "stop", "model", "model", "limit", "gone", "ollama"])
        outcome = await getattr(self, f"_{kind}")(client, draw)
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    async def _echo(self, client: httpx.AsyncClient, draw: random.Random) -> str:
        text = "".join(
            draw.choice([*SPELLED, "ab", " c", "\n", "é", "🎯"]) for _ in range(draw.randint(1, 12))
        )
        said = await self._ask(client, draw, text=ECHO + text)
        assert said == without_markers(text.rstrip()), (text, said)
        return "echo"

    async def _stop(self, client: httpx.AsyncClient, draw: random.Random) -> str:
        before, stop = "a" * draw.randint(WIDTH - 6, WIDTH + 2), draw.choice(["STOP", "S<", "\nSTO"])
        stops = draw.choice([stop, [stop], ["never", stop]])
        said = await self._ask(client, draw, text=f"{ECHO}{before}{stop}{'b' * 40}", stop=stops)
        assert said == before
        return "stop"

    async def _model(self, client: httpx.AsyncClient, draw: random.Random) -> str:
        fields = {
            "text": draw.choice(["Hello", "<|channel>thought\n", "What is the question?"]),
            "seed": draw.randrange(4),
            "max_tokens": draw.choice([1, WIDTH, 40]),
        }
        if draw.random() < 0.3:
            fields["reasoning_effort"] = "low"
        said = await self._ask(client, draw, **fields)
        self.seen.setdefault(json.dumps(fields), set()).add(said)
        return "model"

    async def _limit(self, client: httpx.AsyncClient, draw: random.Random) -> str:
        over = draw.choice([-1, 0, 1])
        body = chat("a" * (self.room + over), max_denoising_steps=1)
        response = await client.post("/v1/chat/completions", json=body)
        assert response.status_code == (400 if over == 1 else 200), response.text
        if over == 1:
            assert response.json()["error"]["code"] == "context_length_exceeded"
            return "too long"
        assert response.json()["usage"]["completion_tokens"] <= WIDTH
        check(response.json()["choices"][0]["message"]["content"])
        return "just fits"

    async def _gone(self, client: httpx.AsyncClient, draw: random.Random) -> str:
        body = chat("Hello", stream=draw.random() < 0.7, max_denoising_steps=50)
        try:
            async with asyncio.timeout(draw.choice([0.001, 0.02, 0.1])):
                async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                    assert response.status_code == 200
                    async for _ in response.aiter_lines():
                        if draw.random() < 0.3:
                            break
        except TimeoutError:
            return "gone"
        return "hung up"

    async def _ollama(self, client: httpx.AsyncClient, draw: random.Random) -> str:
        text = "".join(draw.choice([*SPELLED, "ab"]) for _ in range(8))
        body = {
            "messages": [{"role": "user", "content": ECHO + text}],
            "options": {"num_predict": 100, "max_denoising_steps": 2},
        }
        response = await client.post("/api/chat", json=body)
        assert response.status_code == 200, response.text
        lines = [json.loads(line) for line in response.text.splitlines()]
        assert lines[-1]["done"]
        said = "".join(line["message"]["content"] for line in lines)
        check(said)
        return "ollama"

    async def _ask(self, client: httpx.AsyncClient, draw: random.Random, *, text: str, **fields: Any) -> str:
        """What a chat says, at once or as a stream."""
        stream = draw.random() < 0.5
        fields.setdefault("max_denoising_steps", 2)
        if stream and draw.random() < 0.3:
            fields["stream_options"] = {"denoising": True, "include_usage": True}
        response = await client.post("/v1/chat/completions", json=chat(text, stream=stream, **fields))
        assert response.status_code == 200, response.text
        if not stream:
            body = response.json()
            assert body["usage"]["completion_tokens"] <= fields.get("max_tokens", CONTEXT)
            said = body["choices"][0]["message"]["content"]
        else:
            *events, done = events_of(response.text)
            assert done == "[DONE]"
            assert not any(marker in event for marker in MARKERS for event in events)
            said = content_of([json.loads(one) for one in events])
        check(said)
        return said


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def check(said: str) -> None:
    """No answer has a marker in it."""
    assert not any(marker in said for marker in MARKERS), said


def without_markers(text: str) -> str:
    """The text, each marker taken out, and any that comes together then."""
    while any(marker in text for marker in MARKERS):
        for marker in MARKERS:
            text = text.replace(marker, "")
    return text


async def ask_all(crowd: Crowd) -> None:
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    numbers = iter(range(CHATS))
    async with httpx.AsyncClient(base_url=crowd.url, timeout=60, limits=limits) as client:

        async def caller() -> None:
            for number in numbers:
                await crowd.one(client, number)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(caller())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crowd") / "tiny"
    return write_tiny_checkpoint(folder, layers=2, hidden=32, experts=4, vision=False, context=CONTEXT)


def test_a_hostile_crowd(checkpoint: Path) -> None:
    template = Template(Tokenizer.from_folder(checkpoint))
    room = CONTEXT - WIDTH - len(template.chat(""))
    # A client that vanished may be noticed a moment after its next request.
    with serving(checkpoint, log_level="error", max_texts=2 * AT_ONCE) as url:
        crowd = Crowd(url, room)
        alone = {}
        with httpx.Client(base_url=url) as client:
            for text in ("Hello", "What is the question?"):
                body = chat(text, seed=1, max_tokens=40, max_denoising_steps=2)
                answer = client.post("/v1/chat/completions", json=body).json()
                key = json.dumps({"text": text, "seed": 1, "max_tokens": 40})
                alone[key] = answer["choices"][0]["message"]["content"]
        asyncio.run(ask_all(crowd))
        wait_for_rest(url)
        assert pending_texts(url) == 0
        assert all(len(texts) == 1 for texts in crowd.seen.values())  # whoever else was there
        assert {key: crowd.seen[key] for key in alone} == {key: {text} for key, text in alone.items()}
        assert sum(crowd.outcomes.values()) == CHATS
        assert {"echo", "stop", "model", "too long", "just fits", "gone", "ollama"} <= set(crowd.outcomes)
        assert httpx.post(f"{url}/v1/chat/completions", json=chat(f"{ECHO}still here")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
def test_a_server_that_stops_says_so(checkpoint: Path, path: str) -> None:
    slow = {"max_denoising_steps": 1000, "stability": 1000}
    said: dict[bool, httpx.Response] = {}

    def ask(url: str, stream: bool) -> None:
        said[stream] = httpx.post(
            f"{url}{path}", json=chat("Hello", stream=stream, options=slow, **slow), timeout=60
        )

    with ThreadPoolExecutor() as threads:
        with serving(checkpoint, shutdown_timeout_s=1) as url:
            asking = [threads.submit(ask, url, stream) for stream in (False, True)]
            while pending_texts(url) < 2:
                time.sleep(0.05)
        for one in asking:
            one.result()
    assert said[False].status_code == 503
    assert "shutting down" in said[False].text
    assert said[True].status_code == 200
    last = said[True].text.strip().splitlines()[-1].removeprefix("data: ")
    assert "shutting down" in str(json.loads(last)["error"])
