"""Canvases read by vLLM: its OpenAI-compatible server with DiffusionGemma and structured diffusion.

One call of `POST /v1/completions` is one read: the prompt as token ids, the canvas as the seed of the only
denoising step, and back come the labels' log-probabilities over the whole vocabulary at temperature 1.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import httpx

from jev._transport import Attempts, Request, json_from
from jev._transport import Settings as Connection
from jev.backends.reading import Planner, Work, answer, context_of
from jev.errors import APIError, ModelUnavailableError, ResponseError
from jev.model import embedded
from jev.model.read import Canvas, Reading
from jev.plan import Unit
from jev.retry import RetryPolicy
from jev.schemas import SystemOneRequest, SystemOneResponse
from jev.settings import Settings

MAX_LABEL_IDS = 128
"""Most `logprob_token_ids` of one call; more are asked for in further calls with the same canvas."""

PAD = 0
PROBE = "Answer with exactly one of the listed labels: yes, no, 0, 7, A, Z.\n"
"""What is tokenised on both sides to see that they agree."""


class VllmBackend:
    """The engine's prompts and canvases through a vLLM server; text only. Use it from one event loop.

    Attributes:
        model: the name that the server gives its model; before the first call "vllm", unless given.

    Args:
        base_url: the server's root.
        tokenizer: folder with the `tokenizer.json` and `config.json` of the served model; None = the
            settings' model, else the embedded one.
        model: name of the served model; None = the first that the server lists.
        settings: how attachments are read, and limits; None = from the environment.
        api_key: bearer key; None = VLLM_API_KEY, else none.
        concurrency: most calls in flight.
        canvas_width: width that a build serves which takes no narrower canvases: then shorter ones are
            padded, which changes answers a little. None = every canvas as wide as it is.
        timeout: seconds that each try may take.
        retry: when to try again.
        name: what reports call it.
        transport: an httpx transport to use instead of the network.

    Raises:
        ValueError: for an address or a tokenizer folder that cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        tokenizer: str | Path | None = None,
        model: str | None = None,
        settings: Settings | None = None,
        api_key: str | None = None,
        concurrency: int = 32,
        canvas_width: int | None = None,
        timeout: float | None = 120.0,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - it is frozen
        name: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        settings = settings or Settings.load()
        key = os.environ.get("VLLM_API_KEY", "") if api_key is None else api_key
        self._connection = Connection.read(base_url, key, None, timeout, compression=False)
        self._folder = Path(tokenizer or settings.model or embedded.path()).expanduser()
        context, found = context_of(self._folder, settings.max_context)
        self.name = name or f"vllm={self._connection.shown_url}"
        self.model = model or "vllm"
        self.concurrency = concurrency
        self._planner = Planner("vllm", context, model or found, settings, has_vision=False)
        self._canvas_width = canvas_width
        self._served = model
        self._checked = False
        self._checking = asyncio.Lock()
        self._slots = asyncio.Semaphore(concurrency)
        self._retry = retry
        self._http = httpx.AsyncClient(
            base_url=self._connection.base_url, headers=self._connection.headers, transport=transport
        )

    async def decide(self, request: SystemOneRequest) -> SystemOneResponse:
        """Answer a request; errors as in `Backend`.

        Raises:
            ModelUnavailableError: the server's model has another tokenizer.
            ResponseError: the answer lacks what was asked for; it names the server and the label.
        """
        await self._check()
        return await answer(await self._planner.plan(request), self.model, self._read)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()
        await self._planner.aclose()

    async def _check(self) -> None:
        """Learn the served model's name and see that both sides use one tokenizer, once."""
        async with self._checking:
            if self._checked:
                return
            if self._served is None:
                listed = await self._call("GET", "/v1/models")
                rows = listed.get("data")
                first = rows[0] if isinstance(rows, list) and rows else None
                self._served = first.get("id") if isinstance(first, dict) else None
                if not isinstance(self._served, str):
                    raise self._wrong("it lists no model at /v1/models")
            body = {"model": self._served, "prompt": PROBE, "add_special_tokens": False}
            try:
                tokens = (await self._call("POST", "/tokenize", body)).get("tokens")
            except APIError as error:
                if error.status not in (404, 405):
                    raise
                tokens = None  # a gateway that passes completions on and nothing else
            if tokens is not None and tokens != self._planner.context.tokenizer.encode(PROBE):
                raise ModelUnavailableError(
                    f"The tokenizer in {self._folder} is not that of {self._served} at "
                    f"{self._connection.shown_url}; name the folder of the served checkpoint as tokenizer"
                )
            self.model = self._served
            self._checked = True

    async def _read(self, work: Work) -> list[Reading]:
        tasks = [asyncio.ensure_future(self._read_one(unit, number)) for unit, number in work]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # one failed read stops the others
                task.cancel()

    async def _read_one(self, unit: Unit, number: int) -> Reading:
        canvas = unit.seeded(number)
        labels = sorted({label for slot in canvas.labels for label in slot})
        rows: list[dict[int, float]] = [{} for _ in canvas.slots]
        for start in range(0, len(labels), MAX_LABEL_IDS):
            asked = labels[start : start + MAX_LABEL_IDS]
            async with self._slots:
                data = await self._call("POST", "/v1/completions", self._body(unit, canvas, asked))
            for row, found in zip(rows, self._logprobs(data, canvas), strict=True):
                row.update(found)
        return self._reading(unit, canvas, rows)

    def _body(self, unit: Unit, canvas: Canvas, labels: Sequence[int]) -> dict[str, Any]:
        width = len(canvas.ids)
        seed = [*canvas.ids, *[PAD] * ((self._canvas_width or width) - width)]
        slots = set(canvas.slots)
        extra: dict[str, Any] = {
            "diffusion_seed_canvas": seed,
            "diffusion_pinned": [row for row in range(len(seed)) if row not in slots],
            "diffusion_max_steps": 1,
            "diffusion_read_only": True,
        }
        if self._canvas_width is None:
            extra["diffusion_canvas_length"] = width
        return {
            "model": self._served,
            "prompt": [*unit.prefix, *unit.branch],
            "max_tokens": len(seed),
            "temperature": 1.0,
            "ignore_eos": True,  # a stop token at one slot must not cut off the slots behind it
            "logprobs": 1,  # switches them on; which ones is said by the ids
            "logprob_token_ids": list(labels),
            "return_tokens_as_token_ids": True,
            "vllm_xargs": extra,
        }

    def _logprobs(self, data: dict[str, Any], canvas: Canvas) -> Iterator[dict[int, float]]:
        """The log-probabilities by token id at each slot."""
        try:
            rows = data["choices"][0]["logprobs"]["top_logprobs"]
            for slot in canvas.slots:
                if slot >= len(rows):
                    raise self._wrong(f"it returned {len(rows)} rows of a canvas whose slot is row {slot}")
                yield {_token_id(token): float(value) for token, value in rows[slot].items()}
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise self._wrong(
                "it returned no log-probabilities by token id; it must be a build with structured diffusion"
            ) from None

    def _reading(self, unit: Unit, canvas: Canvas, rows: Sequence[dict[int, float]]) -> Reading:
        logits: list[tuple[float, ...]] = []
        masses: list[float] = []
        for slot, labels, row in zip(unit.slots, canvas.labels, rows, strict=True):
            for label in labels:
                if label not in row:
                    text = self._planner.context.tokenizer.decode([label])
                    raise self._wrong(
                        f"it returned no log-probability of label {text!r} (token {label}) of question "
                        f"{slot.question!r}"
                    )
            chosen = tuple(row[label] for label in labels)
            logits.append(chosen)
            top = max(chosen)
            masses.append(top + math.log(math.fsum(math.exp(value - top) for value in chosen)))
        return Reading(tuple(logits), tuple(masses))

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One call with its retries; returns the JSON object that came back.

        Raises:
            APIError: what the server refused.
            ConnectionError: it cannot be reached (`TimeoutError`: in time).
            ResponseError: it answered something else.
        """
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        request = Request(method, path, content, headers=headers, timeout=self._connection.timeout)
        attempts = Attempts(self._retry, self._connection.shown_url)
        while True:
            try:
                with request.arguments() as arguments:
                    response = await self._http.request(**arguments)
            except httpx.HTTPError as failure:
                wait = attempts.after_failure(failure, request.timeout)
            else:
                wait = attempts.after_response(response)
                if wait is None:
                    break
            await asyncio.sleep(wait)
        data = json_from(response)
        if not isinstance(data, dict):
            raise self._wrong(f"the answer of {path} is not an object")
        return cast("dict[str, Any]", data)

    def _wrong(self, what: str) -> ResponseError:
        return ResponseError(f"vLLM at {self._connection.shown_url}: {what}")


def _token_id(token: str) -> int:
    """The id in "token_id:42"."""
    head, _, number = token.partition(":")
    if head != "token_id":
        raise ValueError(token)
    return int(number)
