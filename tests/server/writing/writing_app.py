"""A writer that repeats what it is told, in place of the model's, and an app that a test talks to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import httpx
from starlette.testclient import TestClient

from jev.engine import Engine
from jev.server.run import serve
from jev.settings import Settings
from jev.writing import Committed, Draft, Ended, Event, TextPlan

WIDTH = 16
"""Tokens of an echo's canvas."""


@dataclass(eq=False)
class Echo:
    """A text that repeats what the user said last, a canvas in so many steps."""

    plan: TextPlan
    said: tuple[int, ...]
    events: list[Event] = field(default_factory=list)
    error: Exception | None = None
    block: int = 0
    step: int = 0
    turned: bool = False
    done: bool = False
    generation: None = None

    @property
    def refining(self) -> bool:
        return self.step > 0

    def take(self) -> list[Event]:
        taken, self.events = self.events, []
        return taken

    def cancel(self) -> None:
        self.done = True


class EchoWriter:
    """Takes the place of `Engine.writer`: real ids, real canvases, but a text that a test decides.

    Args:
        engine: the engine.
        only: what a user's message begins with that is repeated, without it; the model answers others.

    Attributes:
        seconds: that a step takes.
        steps: that were taken.
    """

    def __init__(self, engine: Engine, only: str = "") -> None:
        self._writer = engine.writer
        self._only = only
        self._template = engine.context.template
        self._tokenizer = engine.context.tokenizer
        self.seconds = 0.0
        self.steps = 0
        self.counts = engine.writer.counts

    def start(self, plan: TextPlan) -> Any:
        turn, end = self._template.turn, self._template.turn_end
        starts = [index for index, one in enumerate(plan.prompt) if one == turn]
        said = plan.prompt[1:]  # a prompt without any layout
        if len(starts) > 1:
            said = plan.prompt[starts[-2] + 1 : plan.prompt.index(end, starts[-2])]
        text = self._tokenizer.decode(said).removeprefix("user\n")
        if not text.startswith(self._only):
            return self._writer.start(plan)
        text = text.removeprefix(self._only)
        ids = tuple(json.loads(text[4:])) if text.startswith("ids:") else tuple(self._tokenizer.encode(text))
        return Echo(plan, ids[: plan.options.max_tokens])

    def step(self, texts: Sequence[Any]) -> None:
        if others := [one for one in texts if not isinstance(one, Echo)]:
            self._writer.step(others)
            return
        time.sleep(self.seconds)
        self.steps += 1
        for one in texts:
            self._one(one)

    def _one(self, one: Echo) -> None:
        steps, start = one.plan.options.max_denoising_steps, one.block * WIDTH
        ids = one.said[start : start + WIDTH]
        one.step += 1
        final = one.turned = one.step == steps
        if one.plan.drafts:
            canvas = ids + (0,) * (WIDTH - len(ids))
            kept = tuple(index < WIDTH * one.step // steps for index in range(WIDTH))
            one.events.append(Draft(one.block, one.step, steps, canvas, kept, 1 / one.step, final))
        if not final:
            return
        one.events.append(Committed(one.block, ids, one.step, self.seconds * one.step))
        one.block, one.step = one.block + 1, 0
        if start + WIDTH >= len(one.said):
            finish = "length" if len(one.said) == one.plan.options.max_tokens else "stop"
            one.done = True
            one.events.append(Ended(finish, len(one.said), one.block, one.block * steps))


@dataclass(frozen=True)
class App:
    """An app that runs, its client and its engine."""

    client: TestClient
    engine: Engine

    @property
    def writer(self) -> EchoWriter:
        """What writes."""
        writer: Any = self.engine.writer
        return writer

    def chat(self, text: str, **fields: Any) -> Any:
        """Post one message of the user; the response."""
        messages = [{"role": "user", "content": text}]
        return self.client.post("/v1/chat/completions", json={"messages": messages, **fields})

    def answer(self, text: str, **fields: Any) -> dict[str, Any]:
        """The message of the answer, which is no stream."""
        response = self.chat(text, **fields)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["message"]

    def chunks(self, text: str, **fields: Any) -> list[dict[str, Any]]:
        """The events of a stream, which is whole."""
        response = self.chat(text, stream=True, **fields)
        assert response.status_code == 200, response.text
        *events, done = events_of(response.text)
        assert done == "[DONE]"
        return [json.loads(one) for one in events]


def events_of(body: str) -> list[str]:
    """What the events of a stream carry; comments are left out."""
    assert body.endswith("\n\n")
    lines = [line for line in body.split("\n\n")[:-1] if not line.startswith(":")]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [line.removeprefix("data: ") for line in lines]


def content_of(chunks: list[dict[str, Any]], field: str = "content") -> str:
    """The text that the chunks of a chat carry."""
    return "".join(one["delta"].get(field, "") for chunk in chunks for one in chunk["choices"])


ECHO = "echo:"
"""What a message begins with that a server of `serving` repeats; the tiny model answers others."""


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[str]:
    """The address of a server process around a checkpoint. It must stop cleanly and must not have crashed."""
    command = [sys.executable, __file__, str(folder), json.dumps({"port": 0, **settings})]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JEV_")}
    with TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)

        def said() -> str:
            log.seek(0)
            return log.read()

        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert "http://" in line, said()
            yield next(word for word in line.split() if word.startswith("http://"))
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, said()[-5000:]
            assert "Traceback" not in said(), said()[-5000:]
            assert " failed: " not in said(), said()[-5000:]
        finally:
            process.kill()
            process.communicate()


def pending_texts(url: str) -> int:
    """Texts that the server at an address has not finished."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("jev_pending_texts "))))


def wait_for_rest(url: str, seconds: float = 10) -> None:
    """Wait until a server writes nothing."""
    end = time.monotonic() + seconds
    while pending_texts(url):
        assert time.monotonic() < end, "a text is stuck"
        time.sleep(0.05)


def _main() -> None:
    engine = Engine.load(sys.argv[1], name="tiny")
    engine.writer = EchoWriter(engine, ECHO)  # type: ignore[assignment]
    serve(Settings.load(**json.loads(sys.argv[2])), engine)


if __name__ == "__main__":
    _main()
