"""Mixed traffic for a running server: decisions about texts and attachments, uploads, batches, and clients
that go away; and the end of a worker process now and then.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import httpx
import psutil
from files import make
from load import PATH
from texts import questions, state

ATTACHED = "attachment"
TEXT = "text"
LEFT = "left"
WORKER = "jev.extractors.worker_child"
"""What the command line of an extraction worker has in it."""
RECENT = 20
PAUSE_S = 1.0
"""A caller's time between two requests, in the mean; batches run in what is left of the model's time."""
ROWS = 10
"""Requests of one batch."""
POLL_S = 0.2
BUSY_S = 20.0
"""Longest time to look for a worker at work."""
PATIENCE_S = 1.0
"""Longest that a client waits that goes away."""
LEAVING = 0.1
"""Share of the requests whose client does."""


class Traffic:
    """Sends whatever callers send, until it is told to stop.

    Args:
        http: a client of the server.
        pid: the server's process.
        longest: tokens of the longest state.
        seed: decides what is sent.

    Attributes:
        outcomes: how often each kind of request ended in each way.
        kills: workers that were ended.
    """

    def __init__(self, http: httpx.AsyncClient, pid: int, longest: int, seed: int) -> None:
        self._http = http
        self._process = psutil.Process(pid)
        self._longest = longest
        self._chance = random.Random(f"traffic/{seed}")
        self._numbers = count()
        self._recent: list[str] = []
        self._files = {
            **{f"{kind}.{kind}": make(kind, 1).data for kind in ("pdf", "docx")},
            "note.png": _picture(),
        }
        self._stop = asyncio.Event()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.kills = 0

    async def run(self, callers: int, kill_every_s: float) -> None:
        """Be `callers` callers, one that runs batches, and one that ends workers, until `stop`."""
        tasks = [asyncio.create_task(self._call()) for _ in range(callers)]
        tasks.append(asyncio.create_task(self._batches()))
        if kill_every_s:
            tasks.append(asyncio.create_task(self._kill(kill_every_s)))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def stop(self) -> None:
        """Send nothing more."""
        self._stop.set()

    async def _call(self) -> None:
        while not self._stop.is_set():
            kind, send = self._next()
            leaves = self._chance.random() < LEAVING
            patience = self._chance.uniform(0, PATIENCE_S) if leaves else None
            try:
                async with asyncio.timeout(patience):
                    outcome = await send()
            except TimeoutError:
                outcome = LEFT
            except httpx.HTTPError as error:
                outcome = repr(error)[:80]
            self.outcomes[kind, outcome] += 1
            await asyncio.sleep(self._chance.expovariate(1 / PAUSE_S))

    def _next(self) -> tuple[str, Callable[[], Awaitable[str]]]:
        drawn = self._chance.random()
        if drawn < 0.25:
            name, data = self._chance.choice(list(self._files.items()))
            return ATTACHED, lambda: self._attached(name, data)
        if drawn < 0.3:
            return "upload", self._uploaded
        if drawn < 0.45 and self._recent:
            text = self._chance.choice(self._recent)
            return TEXT, lambda: self._decide(text)
        text = self._text()
        self._recent = [*self._recent[1 - RECENT :], text]
        return TEXT, lambda: self._decide(text)

    def _text(self) -> str:
        return state(self._chance.randint(5, self._longest), next(self._numbers))

    async def _decide(self, text: str, files: list[dict[str, str]] | None = None) -> str:
        response = await self._http.post(PATH, json={**_asked(text), "files": files or []})
        return str(response.status_code)

    async def _attached(self, name: str, data: bytes) -> str:
        # A file with another name is another file to the caches.
        entry = {"name": f"{next(self._numbers)}-{name}", "data": base64.b64encode(data).decode()}
        return await self._decide("Read the attachment.", [entry])

    async def _uploaded(self) -> str:
        sent = await self._http.post("/v1/files", files={"file": ("note.txt", self._text().encode())})
        if sent.status_code != 200:
            return f"upload {sent.status_code}"
        id = sent.json()["files"][0]["id"]
        outcome = await self._decide("Read the upload.", [{"file": id}])
        removed = await self._http.delete(f"/v1/files/{id}")
        return outcome if removed.status_code == 204 else f"delete {removed.status_code}"

    async def _batches(self) -> None:
        while not self._stop.is_set():
            try:
                outcome = await self._batch()
            except (httpx.HTTPError, KeyError, ValueError) as error:
                outcome = repr(error)[:80]
            self.outcomes["batch", outcome] += 1

    async def _batch(self) -> str:
        """Upload a batch, wait for its end, read its results, and remove all of it."""
        lines = [
            {"custom_id": str(number), "method": "POST", "url": PATH, "body": _asked(self._text())}
            for number in range(ROWS)
        ]
        data = "\n".join(map(json.dumps, lines)).encode()
        form = {"files": {"file": ("batch.jsonl", data)}, "data": {"purpose": "batch"}}
        file = (await self._http.post("/v1/files", **form)).raise_for_status().json()["id"]
        asked = {"input_file_id": file, "endpoint": PATH, "completion_window": "24h"}
        batch = (await self._http.post("/v1/batches", json=asked)).raise_for_status().json()
        while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
            if self._stop.is_set():
                await self._http.post(f"/v1/batches/{batch['id']}/cancel")
            await asyncio.sleep(POLL_S)
            batch = (await self._http.get(f"/v1/batches/{batch['id']}")).raise_for_status().json()
        results = (await self._http.get(f"/v1/batches/{batch['id']}/results")).raise_for_status()
        counts, cancelled = batch["request_counts"], batch["status"] == "cancelled"
        whole = len(results.text.splitlines()) == counts["total"] and not counts["failed"]
        for path in (f"/v1/batches/{batch['id']}", f"/v1/files/{file}"):
            (await self._http.delete(path)).raise_for_status()
        return str(batch["status"]) if whole or cancelled else f"{batch['status']} with failures"

    async def _kill(self, every_s: float) -> None:
        """End a worker that is at work, as the system does when memory is short."""
        while not self._stop.is_set():
            try:
                await asyncio.wait_for(self._stop.wait(), self._chance.uniform(0.5, 1.5) * every_s)
            except TimeoutError:
                self.kills += await asyncio.to_thread(self._kill_one)

    def _kill_one(self) -> bool:
        give_up = time.monotonic() + BUSY_S
        while time.monotonic() < give_up:
            for one in self._process.children():
                try:
                    if WORKER in " ".join(one.cmdline()) and one.status() == psutil.STATUS_RUNNING:
                        one.kill()
                        return True
                except psutil.Error:
                    continue
            time.sleep(0.01)
        return False


def _asked(text: str) -> dict[str, Any]:
    asked = {name: one.model_dump(exclude_none=True) for name, one in questions(2).items()}
    return {"state": text, "questions": asked}


def _picture() -> bytes:
    """Two lines of writing on a slip of paper."""
    from PIL import Image, ImageDraw

    image = Image.new("L", (480, 120), "white")
    for number, line in enumerate(("Invoice 4471 is overdue", "Please pay 120.50 euros")):
        ImageDraw.Draw(image).text((20, 15 + 50 * number), line, fill="black", font_size=30)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
