"""The load benchmark runs as documented, counts every request once, and takes nothing else for an answer."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from jev.engine import Engine
from jev.server.app import create_app
from jev.settings import Settings

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALL = {
    "rounds": 1,
    "requests": 8,
    "callers": 4,
    "tokens": 20,
    "turn_tokens": 60,
    "turn_states": 2,
    "turns": 2,
    "short": 10,
    "long": 800,
    "shorts": 2,
    "burst": 6,
    "overload": 60,
    "leaving": 0.2,
    "rates": (0.5,),
    "known": 0.3,
    "samples": 1,
    "seed": 0,
}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module  # pyright: ignore[reportReturnType]


@pytest.mark.slow
def test_overload_against_a_real_server(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(BENCHMARKS / "serve.py"), "--threads", "1", "--model", str(tiny)]
    command += ["--scenarios", "load,overload", "--pending", "4", "--rates", "0.5", "--plot"]
    command += ["--requests", "24"]
    for name in ("callers", "tokens", "overload", "leaving", "samples"):
        command += [f"--{name}", str(SMALL[name])]
    done = subprocess.run([*command, "--json", out], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "Open loop: Poisson arrivals" in done.stdout
    assert "█" in done.stdout
    scenarios = json.loads(out.read_text())["scenarios"]
    (steady,) = scenarios["load"]["rows"]
    assert steady["lost"] == 0
    assert 0 < steady["p50 ms"] <= steady["p99 ms"]
    assert 0 <= steady["hit ratio"] < 1
    (row,) = scenarios["overload"]["rows"]
    outcomes = {name: row.get(name, 0) for name in ("answered", "overloaded_error", "left")}
    assert sum(outcomes.values()) == row["requests"] == 60
    assert all(outcomes.values()), "at twice the rate some are answered, some refused, and some leave"
    assert [one["met"] for one in scenarios["overload"]["targets"]] == [True] * 3


def test_comparisons(modules: Callable[[str], ModuleType], tiny: Path) -> None:
    scenarios = modules("scenarios")

    async def measure() -> Any:
        async with AsyncExitStack() as stack:
            clients: list[httpx.AsyncClient] = []
            for size in (2**24, 0):
                app = create_app(Settings(), Engine.load(tiny, cache_bytes=size))
                await stack.enter_async_context(app.router.lifespan_context(app))
                http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
                clients.append(await stack.enter_async_context(http))
            measured = scenarios.Scenarios(clients[0], scenarios.Sizes(**SMALL))
            found = [await measured.callers(known=False), await measured.callers(known=True)]
            return [*found, await measured.turns(clients[1]), await measured.short()]

    new, known, turns, short = asyncio.run(measure())
    for one in (new, known):
        assert [row["requests"] for row in one.rows] == [8, 8]
    assert turns.rows[0]["hit ratio"] == 1
    assert [row["requests"] for row in turns.rows] == [4, 4]
    assert 1 <= short.rows[1]["requests"] <= short.rows[0]["requests"] == 2
    for one in (new, known, turns, short):
        (target,) = one.targets
        assert target.ratio.median > 0


def test_what_is_no_answer_is_lost(modules: Callable[[str], ModuleType]) -> None:
    load = modules("load")
    overloaded = {"detail": {"error_type": "overloaded_error", "message": "later"}}
    replies = [
        httpx.Response(200, json={"answers": {"urgent-0": {}}}),
        httpx.Response(200, json={"answers": {"urgent-0": {}}}),  # of another request
        httpx.Response(200, text="{"),
        httpx.Response(529, json=overloaded, headers={"retry-after": "1"}),
        httpx.Response(529, json=overloaded),
        httpx.Response(502, text="<html>"),
        httpx.Response(422, json={"detail": [{"msg": "no"}]}),
        httpx.ReadError("gone"),
    ]

    async def reply(request: httpx.Request) -> httpx.Response:
        one = replies.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    async def run() -> list[str]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(reply), base_url="http://test") as http:
            asks = [load.Ask.new(number, 5) for number in range(8)]
            return [(await load.send(http, ask)).outcome for ask in asks]

    assert asyncio.run(run()) == [
        "answered",
        "lost",
        "lost",
        "overloaded_error",
        "lost",
        "lost",
        "invalid_request_error",
        "lost",
    ]


def test_time_counts_from_when_a_request_was_due(modules: Callable[[str], ModuleType]) -> None:
    load = modules("load")

    async def blocked(request: httpx.Request) -> httpx.Response:
        # The generator itself stands still: what is due meanwhile has waited too.
        time.sleep(0.2)  # noqa: ASYNC251
        ids = json.loads(request.content)["questions"]
        return httpx.Response(200, json={"answers": {key: {} for key in ids}})

    async def run(handler: Callable[[httpx.Request], Awaitable[httpx.Response]]) -> Any:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="http://test") as http:
            asks = [load.Ask.new(number, 5) for number in range(4)]
            return await load.open_loop(http, asks, 1000.0, seed=1)

    done = asyncio.run(run(blocked))
    assert done.outcomes == {"answered": 4}
    assert done.percentile(1.0) == max(done.latencies) > 0.7
    assert done.percentile(0.5) == done.latencies[1]


def test_a_scenario_that_there_is_not_is_named(
    modules: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        modules("serve").arguments(["--scenarios", "new,old"])
    assert "there is no scenario 'old'; choose from new," in capsys.readouterr().err
