"""Any server with `POST /v1/systemone`: this one, hosted Jev, or another that speaks the same."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from jev._body import DEFAULT_MODEL
from jev.client import AsyncJev
from jev.errors import (
    APIError,
    ConnectionError,
    InvalidRequestError,
    OverloadedError,
    RateLimitError,
    TimeoutError,
)
from jev.results import Decision
from jev.retry import RetryPolicy
from jev.schemas import (
    ATTACHMENT_FIELDS,
    Choice,
    Noul,
    NoulAnswer,
    Question,
    SystemOneRequest,
    SystemOneResponse,
)

CONCURRENCY = 16
"""Requests in flight, a quarter of what `jev serve` admits."""

PATIENT = RetryPolicy(max_retries=8, max_backoff=30.0, budget=300.0)
"""A run over thousands of rows should outlive a server that is busy for a minute."""

FIRST_CONTACT = 10.0
"""Seconds of retries for a server that has never answered: nobody should wait minutes for a wrong address."""

MOST_DECIMALS = 4
"""Numbers with more places than this count as not rounded."""


class SystemOneBackend:
    """A client that keeps to a server's pace. Use it from one event loop.

    Attributes:
        model: the name that answers carry; before the first answer, the name that is asked for.
        decimals: places that the server rounds its probabilities to, as far as seen; None while there
            is nothing to tell by, or when they are not rounded. Distributions are passed on as sent.

    Args:
        base_url: the server's root.
        model: the model to ask where a request names none.
        api_key: bearer key; None = JEV_API_KEY, else none.
        concurrency: most requests in flight.
        requests_per_minute: most requests sent in any minute, retries among them; None = no limit.
        timeout: seconds that each try may take.
        retry: when to try again; the wait that a server asks for stops all requests.
        name: what reports call it; None = by its address.
        transport: an httpx transport to use instead of the network.
        clock: seconds on a clock that never goes back, for tests.
        sleep: waits for seconds, for tests.

    Raises:
        ValueError: for an address or a limit that cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str = DEFAULT_MODEL,
        api_key: str | None = None,
        concurrency: int = CONCURRENCY,
        requests_per_minute: int | None = None,
        timeout: float | None = 120.0,
        retry: RetryPolicy = PATIENT,
        name: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        for limit, value in (("concurrency", concurrency), ("requests_per_minute", requests_per_minute)):
            if value is not None and value < 1:
                raise ValueError(f"{limit} must be 1 or more, got {value}")
        self._client = AsyncJev(
            base_url,
            api_key,
            timeout=timeout,
            retry=RetryPolicy(max_retries=0),  # retries are counted here, where they hold all requests
            transport=transport,
        )
        self.name = name or f"systemone={base_url.rstrip('/')}"
        self.model = self._asked = model
        self.concurrency = concurrency
        self.decimals: int | None = None
        self._places = 0
        self._reached = False
        self._retry = retry
        self._clock = clock
        self._sleep = sleep
        self._slots = asyncio.Semaphore(concurrency)
        self._pace = Pace(requests_per_minute, clock=clock, sleep=sleep)

    async def decide(self, request: SystemOneRequest) -> SystemOneResponse:
        """Send a request with the fields that its maker set; errors as in `Backend`.

        Raises:
            ResponseError: the answer is not what this API sends.
        """
        body = wire_body(request, self._asked)
        state, questions, model = body.pop("state"), body.pop("questions"), body.pop("model")
        async with self._slots:
            started, retries = self._clock(), 0
            while True:
                await self._pace.wait()
                try:
                    decision = await self._client.decide(state, questions, model=model, extra_body=body)
                    break
                except (APIError, ConnectionError) as error:
                    self._reached = self._reached or isinstance(error, (APIError, TimeoutError))
                    wait = self._wait_after(error, retries, self._clock() - started)
                    if wait is None:
                        raise
                    if isinstance(error, (RateLimitError, OverloadedError)):
                        self._pace.hold(wait)
                retries += 1
                await self._sleep(wait)
        self._reached = True
        self.model = decision.model
        self._see(decision)
        return SystemOneResponse(
            model=decision.model,
            answers=decision.answers,
            usage=decision.usage,
            x_warnings=list(decision.warnings) or None,
            x_diagnostics=decision.diagnostics,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _wait_after(self, error: APIError | ConnectionError, retries: int, elapsed: float) -> float | None:
        retry_after = None
        if isinstance(error, APIError):
            if error.status not in self._retry.statuses:
                return None
            retry_after = error.retry_after
        wait = self._retry.delay(retries, elapsed=elapsed, retry_after=retry_after, chance=random.random)
        too_late = wait is not None and not self._reached and elapsed + wait >= FIRST_CONTACT
        return None if too_late else wait

    def _see(self, decision: Decision) -> None:
        for answer in decision.answers.values():
            values = [answer.noul] if isinstance(answer, NoulAnswer) else answer.probabilities.values()
            self._places = max([self._places, *map(decimal_places, values)])
        self.decimals = max(2, self._places) if 0 < self._places <= MOST_DECIMALS else None


class Pace:
    """When the next request may be sent.

    Args:
        per_minute: most requests in any 60 seconds; None = no limit.
        clock: seconds on a clock that never goes back.
        sleep: waits for seconds.
    """

    def __init__(
        self,
        per_minute: int | None,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._sent: deque[float] = deque(maxlen=per_minute)
        self._clock = clock
        self._sleep = sleep
        self._closed_until = 0.0

    def hold(self, seconds: float) -> None:
        """Let nothing be sent for this long."""
        self._closed_until = max(self._closed_until, self._clock() + seconds)

    async def wait(self) -> None:
        """Wait until one more request may be sent, and count it."""
        while (wait := self._seconds()) > 0:
            await self._sleep(wait)
        if self._sent.maxlen is not None:
            self._sent.append(self._clock())

    def _seconds(self) -> float:
        now = self._clock()
        full = self._sent.maxlen is not None and len(self._sent) == self._sent.maxlen
        return max(self._closed_until - now, self._sent[0] + 60 - now if full else 0.0)


def decimal_places(value: float) -> int:
    """Places behind the point in the shortest text of a number: 2 for 0.25, 0 for 1.0, 5 for 1e-05."""
    text = repr(float(value))
    mantissa, _, exponent = text.partition("e")
    places = len(mantissa.partition(".")[2].rstrip("0"))
    return max(0, places - int(exponent or 0))


def wire_body(request: SystemOneRequest, model: str) -> dict[str, Any]:
    """A request as JSON with the fields that were set and no others: some servers refuse unknown ones.

    Args:
        request: the request; its attachments are inline.
        model: the model to ask if the request names none.

    Raises:
        InvalidRequestError: for an asset that is a part of a multipart body.
    """
    set_here = request.model_fields_set
    body: dict[str, Any] = {
        "model": request.model if "model" in set_here else model,
        "state": request.state,
        "questions": {key: _wire_question(question) for key, question in request.questions.items()},
    }
    for field in type(request).model_fields:
        if field in body or field not in set_here:
            continue
        value = getattr(request, field)
        if field in ATTACHMENT_FIELDS:
            value = [one.model_dump(exclude_none=True) for one in value]
        elif field == "assets":
            value = {key: asset.model_dump(exclude_none=True) for key, asset in (value or {}).items()}
            for key, asset in value.items():
                if "part" in asset:
                    raise InvalidRequestError.at("assets", key, "part", msg="The body has no such part")
        if value is not None and value not in ([], {}):
            body[field] = value
    return body


def _wire_question(question: Question) -> dict[str, Any]:
    wire: dict[str, Any] = {"type": question.type}
    if question.instructions is not None:
        wire["instructions"] = question.instructions
    if isinstance(question, Noul):
        if question.criteria is not None:
            sides = {"true": question.criteria.true, "false": question.criteria.false}
            wire["criteria"] = {side: text for side, text in sides.items() if text is not None}
    elif isinstance(question, Choice):
        wire["criteria"] = dict(question.criteria)  # nulls stay: an option without a description
    else:
        wire["criteria"] = list(question.criteria)
    return wire
