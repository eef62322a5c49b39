"""The lines of a batch: read from its input, checked, decided, and turned into result lines."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from jev.attachments import Source, sources_of
from jev.batch.outcome import Outcome
from jev.crash import crash_report
from jev.errors import (
    APIError,
    InvalidRequestError,
    ModelUnavailableError,
    OverloadedError,
    ServerError,
)
from jev.material import NOTHING
from jev.schemas import BadRequestError, SystemOneRequest, Warning, parse_json, parse_request
from jev.schemas.batches import BatchLine
from jev.schemas.errors import issues_of
from jev.server.batch_store import line_id
from jev.server.errors import body_of_error
from jev.server.routes import body_of
from jev.unless import unless

if TYPE_CHECKING:
    from jev.server.service import Service
    from jev.server.tracing import Decision

logger = logging.getLogger(__name__)

FIRST_WAIT = 0.25
LONGEST_WAIT = 5.0

LOOK_SECONDS = 0.5
"""How often a line that waits for the model sees whether its batch has ended."""

BOM = b"\xef\xbb\xbf"


class BadLineError(ValueError):
    """A line that is no request; `code` says what kind of fault it has."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        self.code = code
        self.message = message
        self.custom_id = custom_id
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank: its number from 1 and its bytes."""

    number: int
    data: bytes

    @property
    def custom_id(self) -> str | None:
        """What it is called, if that much of it can be read."""
        try:
            data = parse_json(self.data)
        except BadRequestError:
            return None
        name = data.get("custom_id") if isinstance(data, dict) else None
        return name if isinstance(name, str) else None


def lines_of(path: Path) -> Iterator[Line]:
    """The lines of an input file that are not blank."""
    with path.open("rb") as file:
        if file.read(len(BOM)) != BOM:  # as some editors begin a file
            file.seek(0)
        for number, data in enumerate(file, 1):
            if data.strip():
                yield Line(number, data)


def parse_line(line: Line, max_bytes: int) -> BatchLine:
    """Check what a line names, not yet its body.

    Raises:
        BadLineError: naming the line and what is wrong.
    """
    where = f"Line {line.number}"
    if len(line.data) > max_bytes:
        raise BadLineError(
            "line_too_long",
            f"{where} has {len(line.data)} bytes, the limit is {max_bytes}",
        )
    try:
        data = parse_json(line.data)
    except BadRequestError as error:
        raise BadLineError("invalid_json", f"{where}: {error.issues[0].msg}") from None
    try:
        return BatchLine.model_validate(data)
    except ValidationError as error:
        issue = issues_of(error, prefix=())[0]
        path = "".join(f"{part}: " for part in issue.loc[:1])
        raise BadLineError("invalid_line", f"{where}: {path}{issue.msg}", line.custom_id) from None


def refused(number: int, error: BadLineError) -> Outcome:
    """The outcome of a line that is no request, or whose turn never came."""
    reason = {"error": {"code": error.code, "message": error.message}}
    return Outcome(number, error.custom_id, {"error": reason})


def failed(number: int, custom_id: str, error: APIError) -> Outcome:
    """The outcome of a request that was answered with an error."""
    reason = {"status_code": error.status, "body": body_of_error(error).model_dump()}
    return Outcome(number, custom_id, {"error": {"response": reason}})


def result_line(batch: str, outcome: Outcome) -> bytes:
    """A line of the output file or the error file (see `jev.schemas.batches.BatchResult`)."""
    line: dict[str, Any] = {
        "id": line_id(batch, outcome.number),
        "custom_id": outcome.id,
        "response": None,
        "error": None,
    }
    if outcome.answered:
        line["response"] = {"status_code": 200, "body": outcome.body}
    else:
        line |= outcome.body["error"]
    if line["response"] is not None:
        line["response"] = {"request_id": request_id(batch, outcome.number), **line["response"]}
    # ASCII, so that no reader takes a character inside a string for the end of a line.
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode()


def request_id(batch: str, number: int) -> str:
    """The id of the request that an input line is."""
    return f"req_{line_id(batch, number).removeprefix('batch_req_')}"


async def decide_line(
    service: Service,
    number: int,
    line: BatchLine,
    *,
    turn: asyncio.Semaphore,
    give_up: Callable[[], bool],
    decision: Decision,
) -> Outcome | None:
    """Decide one line behind all live requests, again and again while there is no room.

    Args:
        service: of the server.
        number: the line's.
        line: the line.
        turn: bounds how many lines are prepared at once, so that workers are left for live requests.
        give_up: whether nobody wants the answer any more.
        decision: where it is noted for traces.

    Returns:
        What became of it; None if it was given up.

    Raises:
        ModelUnavailableError: the server is shutting down; the line is still to be decided.
    """
    engine, _ = service.serving()
    try:
        async with turn:
            request, warnings, sources = await service.in_worker(lambda: _parsed(service, line.body))
            material = await service.reader().read(sources) if sources else NOTHING
            plan = await service.in_worker(lambda: engine.prepare(request, material))
    except APIError as error:
        service.serving()  # an error of a server that is going away is none of the line's
        decision.failed(error)
        return failed(number, line.custom_id, error)
    except Exception as error:  # one line must not end the batch
        service.serving()
        decision.failed(ServerError())
        logger.error("line %d of a batch failed: %s", number, crash_report(error))
        return failed(number, line.custom_id, ServerError())
    decision.asked(request)
    wait = FIRST_WAIT
    while not give_up():
        scheduler = service.serving()[1]
        try:
            response, _ = await unless(
                _given_up(give_up), scheduler.submit(plan, background=True), _GivenUpError()
            )
        except _GivenUpError:
            return None
        except ModelUnavailableError:
            service.serving()
            await asyncio.sleep(FIRST_WAIT)  # it was paused: that is no fault of the line's
        except OverloadedError as error:
            pause = wait if error.retry_after is None else min(error.retry_after, LONGEST_WAIT)
            await asyncio.sleep(pause * (1 - 0.25 * random.random()))  # noqa: S311 - jitter
            wait = min(2 * wait, LONGEST_WAIT)
        except APIError as error:
            service.serving()
            decision.failed(error)
            return failed(number, line.custom_id, error)
        else:
            decision.answered(response)
            return Outcome(number, line.custom_id, body_of(response, warnings))
    return None


async def _given_up(give_up: Callable[[], bool]) -> None:
    """Return once nobody wants the answer any more: a server that is never idle would not get to it."""
    while not give_up():  # noqa: ASYNC110 - time is one of the reasons
        await asyncio.sleep(LOOK_SECONDS)


class _GivenUpError(Exception):
    """Nobody wants the answer any more."""


def _parsed(service: Service, body: dict[str, Any]) -> tuple[SystemOneRequest, list[Warning], list[Source]]:
    try:
        request, warnings = parse_request(body)
    except BadRequestError as error:
        raise InvalidRequestError.of(error.issues) from None
    return request, warnings, sources_of(request, {}, service.files, service.limits)
