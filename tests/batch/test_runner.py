"""The runner asks every open row once, in bounded numbers, and enters what came of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jev.batch.deciders import BackendDecider, Decided
from jev.batch.ledger import Ledger
from jev.batch.outcome import Outcome
from jev.batch.output import LinesOutput
from jev.batch.readers import JobError, RowError
from jev.batch.requests import Requests
from jev.batch.runner import JobStopped, Progress, Rows, run_rows
from jev.errors import (
    AuthenticationError,
    ConnectionError,
    InvalidRequestError,
    JevError,
    NotFoundError,
    OverloadedError,
    RateLimitError,
    ServerError,
    TimeoutError,
)
from jev.retry import RetryPolicy
from jev.schemas import Noul, NoulAnswer, Row, SystemOneRequest, SystemOneResponse, Usage

TEMPLATE = SystemOneRequest(state="-", questions={"q": Noul("Is it?")})


def response(state: Any) -> SystemOneResponse:
    noul = len(str(state)) / 100
    return SystemOneResponse(
        model="fake",
        answers={"q": NoulAnswer(noul=noul)},
        usage=Usage(input_tokens=3, output_tokens=1),
    )


class Fake:
    """Answers by the state, some states with an error, and remembers what it was asked."""

    model = "fake"

    def __init__(self, rows: int = 4, groups: int = 2, errors: dict[str, JevError] | None = None) -> None:
        self.rows = rows
        self.groups = groups
        self.errors = errors or {}
        self.asked: list[list[str]] = []
        self.most = self.now = 0

    async def decide(self, requests: Sequence[SystemOneRequest]) -> list[Decided]:
        self.asked.append([str(request.state) for request in requests])
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        return [self.errors.get(str(one.state)) or response(one.state) for one in requests]

    def stops(self, error: JevError) -> bool:
        return isinstance(error, ConnectionError) and not isinstance(error, TimeoutError)

    async def aclose(self) -> None:
        return None


class Bench:
    """A ledger and an output in a folder, and rows that are states."""

    def __init__(self, folder: Path, states: Sequence[str | RowError], *, ordered: bool = True) -> None:
        self.ledger = Ledger(folder / "ledger.sqlite")
        self.target = folder / "out.jsonl"
        self.output = LinesOutput(self.target, folder / "partial", self.ledger, ordered=ordered)
        self.output.open()
        self.states = states
        self.read = 0
        prepare = Requests(TEMPLATE, questions=True, root=folder).prepare
        self.rows: Rows[Row | RowError] = Rows(self._rows, prepare)

    def _rows(self, skip: int) -> Iterator[tuple[int, Row | RowError]]:
        for number, state in enumerate(self.states[skip:], skip + 1):
            self.read += 1
            yield number, state if isinstance(state, RowError) else Row(id=f"r{number}", state=state)

    def run(self, decider: Any, **options: Any) -> Progress:
        return asyncio.run(run_rows(self.rows, decider, self.ledger, self.output, **options))

    def outcomes(self) -> list[Outcome]:
        return list(self.ledger.outcomes())

    def lines(self) -> list[dict[str, Any]]:
        self.output.finish()
        return [json.loads(line) for line in self.target.read_text().splitlines()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(states: Sequence[str | RowError], **options: Any) -> Bench:
        made.append(Bench(tmp_path, states, **options))
        return made[-1]

    yield make
    for one in made:
        one.output.close()
        one.ledger.close()


def test_rows_are_decided_in_groups_and_written_in_order(bench: Callable[..., Bench]) -> None:
    states = [f"state {number}" for number in range(10)]
    here, fake, seen = bench([*states, RowError("broken", type="bad")]), Fake(), list[Progress]()
    progress = here.run(fake, total=11, report=seen.append)
    assert fake.asked == [states[:4], states[4:8], states[8:]]
    assert fake.most <= 2
    assert (progress.totals.answered, progress.totals.failed, progress.before) == (10, 1, 0)
    assert (progress.totals.input_tokens, progress.totals.output_tokens) == (30, 10)
    assert (seen[0].totals.done, seen[-1].totals.done, seen[-1].left) == (0, 11, 0.0)
    lines = here.lines()
    assert [line["row"] for line in lines] == list(range(1, 12))
    assert lines[0] == {
        "row": 1,
        "id": "r1",
        "answers": {"q": {"type": "noul", "noul": 0.07}},
        "usage": {"input_tokens": 3, "output_tokens": 1},
        "model": "fake",
    }
    assert lines[10] == {"row": 11, "error": {"type": "bad", "message": "broken"}}


def test_as_many_groups_are_at_work_as_the_decider_makes_use_of(bench: Callable[..., Bench]) -> None:
    class Meeting(Fake):
        met = asyncio.Event()

        async def decide(self, requests: Sequence[SystemOneRequest]) -> list[Decided]:
            self.now += 1
            if self.now == 3:
                self.met.set()
            await asyncio.wait_for(self.met.wait(), 30)
            self.now -= 1
            return await super().decide(requests)

    assert bench([f"state {number}" for number in range(6)]).run(Meeting(rows=2, groups=3)).totals.done == 6


def test_only_open_rows_are_asked(bench: Callable[..., Bench]) -> None:
    states = [f"state {number}" for number in range(12)]
    here, fake = bench(states), Fake(rows=1, groups=3)
    here.run(Fake(rows=4, errors={"state 5": ServerError("no")}))
    here.ledger.forget_failed()
    here.read = 0
    progress = here.run(fake)
    assert fake.asked == [["state 5"]]
    assert here.read == 12 - 5  # rows before the first open one are not even looked at
    assert (progress.before, progress.totals.answered) == (11, 12)


def test_equal_rows_are_asked_once(bench: Callable[..., Bench]) -> None:
    states = ["a", "b", "a", "a", "c", "b", "bad", "a", "bad"]
    for rows, groups in ((1, 1), (1, 4), (2, 2), (64, 2)):
        here = bench(states)
        here.ledger._db.execute("DELETE FROM rows")
        fake = Fake(rows, groups, {"bad": InvalidRequestError.at("state", msg="no")})
        progress = here.run(fake)
        asked = [state for group in fake.asked for state in group]
        assert sorted(state for state in asked if state != "bad") == ["a", "b", "c"]
        assert (progress.totals.answered, progress.totals.copied, progress.totals.failed) == (7, 4, 2)
        assert progress.totals.input_tokens == 9
        found = here.outcomes()
        assert [one.id for one in found] == [f"r{number}" for number in range(1, 10)]
        assert [one.body for one in found if one.number in (1, 3, 4, 8)] == [found[0].body] * 4
        assert [one.copied for one in found] == [False, False, True, True, False, True, False, True, False]
        here.output.close()
        here.ledger.close()
    here = bench(states)
    here.ledger._db.execute("DELETE FROM rows")
    fake = Fake(rows=64)
    assert here.run(fake, dedup=False).totals.copied == 0
    assert fake.asked == [states]


def test_groups_end_at_the_same_rows_after_a_stop(bench: Callable[..., Bench]) -> None:
    states = [f"state {number}" for number in range(30)] + ["x" * (9 * 2**20), "after", "end"]
    whole = Fake(rows=8)
    here = bench(states)
    here.run(whole)
    here.ledger._db.execute("DELETE FROM rows")
    stopped = Fake(rows=8, groups=1)
    stop = asyncio.Event()
    here.run(stopped, stop=stop, report=lambda now: stop.set() if now.totals.done >= 16 else None)
    rest = Fake(rows=8)
    here.run(rest)
    assert len(stopped.asked) == 2
    assert stopped.asked + rest.asked == whole.asked
    assert whole.asked[-1] == ["after", "end"]


def test_what_makes_further_rows_senseless_stops_the_job(bench: Callable[..., Bench]) -> None:
    states = [f"state {number}" for number in range(40)]
    here = bench(states)
    gone = ConnectionError("Cannot reach it")
    fake = Fake(rows=1, groups=4, errors={f"state {number}": gone for number in range(10, 40)})
    with pytest.raises(JobStopped, match="Cannot reach it") as caught:
        here.run(fake)
    assert caught.value.__cause__ is gone
    assert [one.number for one in here.outcomes()] == list(range(1, 11))  # none of them is a failed row
    assert len(fake.asked) < 20
    assert here.run(Fake()).totals.answered == 40


def test_a_timeout_is_one_rows_fault(bench: Callable[..., Bench]) -> None:
    here = bench(["a", "slow", "b"])
    here.run(Fake(rows=1, errors={"slow": TimeoutError("too slow")}))
    assert [one.answered for one in here.outcomes()] == [True, False, True]
    assert here.outcomes()[1].body["error"]["type"] == "connection_error"


def test_an_input_that_breaks_off_keeps_what_was_done(bench: Callable[..., Bench]) -> None:
    here = bench([f"state {number}" for number in range(8)])

    def breaking(skip: int) -> Iterator[tuple[int, Row]]:
        for number in range(skip + 1, 100):
            if number == 9:
                raise JobError("input: it cannot be read")
            yield number, Row(state=f"state {number}")

    here.rows = Rows(breaking, here.rows.prepare)
    with pytest.raises(JobError, match="it cannot be read"):
        here.run(Fake(rows=2, groups=1))
    assert here.ledger.first_open() >= 3


def test_an_unordered_output_holds_each_row_once(bench: Callable[..., Bench]) -> None:
    here = bench([f"state {number}" for number in range(200)], ordered=False)
    here.run(Fake(rows=1, groups=16))
    assert sorted(line["row"] for line in here.lines()) == list(range(1, 201))


class Busy:
    """A backend that says "not now" a few times before it answers."""

    name = model = "busy"
    concurrency = 5

    def __init__(self, times: int, error: JevError) -> None:
        self.left = times
        self.error = error
        self.calls = 0
        self.closed = False

    async def decide(self, request: SystemOneRequest) -> SystemOneResponse:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return response(request.state)

    async def aclose(self) -> None:
        self.closed = True


def test_what_is_no_rows_fault() -> None:
    decider = BackendDecider(Busy(0, ServerError()))
    for error, stops in (
        (NotFoundError("No model named 'x'"), True),
        (AuthenticationError(), True),
        (ConnectionError("gone"), True),
        (TimeoutError("slow"), False),
        (InvalidRequestError.at("calibration", msg="none of that name"), True),
        (InvalidRequestError.at("state", msg="Too long"), False),
        (InvalidRequestError("bad"), False),
        (OverloadedError(), True),
        (RateLimitError(), True),
        (ServerError(), False),
    ):
        assert decider.stops(error) == stops, error


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (OverloadedError(retry_after=0.001), 3),
        (ServerError(status=502), 3),
        (ConnectionError("gone"), 3),
        (InvalidRequestError("bad"), 1),
        (ServerError(status=500), 1),
    ],
)
def test_only_what_may_pass_is_tried_again(error: JevError, calls: int) -> None:
    backend = Busy(2, error)
    decider = BackendDecider(backend, retry=RetryPolicy(max_retries=2, backoff=0.001))
    assert decider.groups == 5
    (found,) = asyncio.run(decider.decide([TEMPLATE]))
    assert backend.calls == calls
    assert found == (response("-") if calls == 3 else error)
    backend = Busy(3, error)
    decider = BackendDecider(backend, retry=RetryPolicy(max_retries=2, backoff=0.001), concurrency=2)
    assert decider.groups == 2
    assert asyncio.run(decider.decide([TEMPLATE])) == [error]
    asyncio.run(decider.aclose())
    assert backend.closed
