"""`batch` gives each row what `decide` gives it, in order and in the kind of table that it came in."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import pandas
import polars
import pyarrow
import pyarrow.dataset
import pydantic
import pytest
from starlette.testclient import TestClient

from jev import (
    APIError,
    AsyncJev,
    AuthenticationError,
    Choice,
    Decision,
    InvalidRequestError,
    Jev,
    LocalJev,
    Noul,
    RetryPolicy,
    Row,
    RowResult,
    Score,
    batch_line,
)
from jev.engine import Engine
from jev.server.app import create_app
from jev.settings import Settings

QUESTIONS = {
    "new": Noul("Is it new?"),
    "kind": Choice("What is it?", ["a", "b", "c"]),
    "size": Score("How large?", ["small", "large"]),
}
TEXTS = ["first", "second", None, "fourth", "", "sixth \u00e9"]
NUMBERS = [1.5, None, 3.0, 4.0, 5.0, 6.0]
NEW_COLUMNS = ["new", "new_probability", "kind", "kind_probability", "size", "size_probability", "error"]


class Thing:
    new: Annotated[bool, "Is it new?"]
    kind: Annotated[Literal["a", "b"], "What is it?"]


@pytest.fixture(scope="module")
def local(tiny: Path) -> Iterator[LocalJev]:
    with LocalJev(engine=Engine.load(tiny)) as client:
        yield client


@pytest.fixture(scope="module")
def remote(local: LocalJev) -> Iterator[Callable[[httpx.Request], httpx.Response]]:
    """Answers HTTP requests from an app around the same model."""
    with TestClient(create_app(Settings(max_pending_requests=64), local._engine)) as app:

        def answer(request: httpx.Request) -> httpx.Response:
            kept = {name: request.headers[name] for name in ("content-type",) if name in request.headers}
            response = app.request(
                request.method, request.url.raw_path.decode(), content=request.read(), headers=kept
            )
            return httpx.Response(
                response.status_code, content=response.content, headers=dict(response.headers)
            )

        yield answer


@pytest.fixture
def jev(remote: Callable[[httpx.Request], httpx.Response]) -> Jev:
    return Jev(transport=httpx.MockTransport(remote))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


TABLES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pandas.DataFrame({"text": TEXTS, "n": NUMBERS}, index=[7, 7, 3, 2, 1, 0]),
    "polars": lambda: polars.DataFrame({"text": TEXTS, "n": NUMBERS}),
    "pyarrow": lambda: pyarrow.table({"text": TEXTS, "n": NUMBERS}),
    "dataset": lambda: pyarrow.dataset.dataset(pyarrow.table({"text": TEXTS, "n": NUMBERS})),
}


def columns(table: Any) -> dict[str, list[Any]]:
    """A table's columns as lists, with None for what is not there."""
    if isinstance(table, pandas.DataFrame):
        return {
            str(name): [None if gone else x for x, gone in zip(table[name], table[name].isna(), strict=True)]
            for name in table
        }
    if isinstance(table, pyarrow.dataset.Dataset):
        table = table.to_table()
    return table.to_pydict() if isinstance(table, pyarrow.Table) else table.to_dict(as_series=False)


# --- tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("client", ["local", "jev"])
def test_a_table_comes_back_as_what_it_was_with_answers(
    kind: str, client: str, request: pytest.FixtureRequest
) -> None:
    asked: LocalJev | Jev = request.getfixturevalue(client)
    table = TABLES[kind]()
    given = columns(table)
    answered = asked.batch(table, QUESTIONS, state_columns="text", seed=7)
    assert isinstance(answered, type(table))
    found = columns(answered)
    assert list(found) == ["text", "n", *NEW_COLUMNS]
    assert {name: found[name] for name in given} == given
    assert columns(table) == given  # what was given is as it was
    if kind == "pandas":
        assert list(answered.index) == list(table.index)
    for index, text in enumerate(TEXTS):
        row = {name: values[index] for name, values in found.items()}
        if not text:
            assert "'text' is empty" in row.pop("error")
            assert all(row[name] is None for name in NEW_COLUMNS[:-1])
            continue
        alone = asked.decide(text, QUESTIONS, seed=7)
        assert row["error"] is None
        assert row["new"] == alone.nouls["new"].yes
        assert row["kind"] == alone.choices["kind"].choice
        assert row["new_probability"] == pytest.approx(alone.nouls["new"].noul, abs=1e-5)
        assert row["kind_probability"] == pytest.approx(
            max(alone.choices["kind"].probabilities.values()), abs=1e-5
        )
        assert row["size"] == pytest.approx(alone.scores["size"].score, abs=1e-5)


@pytest.mark.parametrize("kind", TABLES)
def test_all_columns_are_the_state_unless_some_are_named(kind: str) -> None:
    states: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        states.append(json.loads(request.content)["state"])
        return httpx.Response(400, json={})

    client = Jev(transport=httpx.MockTransport(answer))
    found = client.batch(TABLES[kind](), QUESTIONS, concurrency=1)
    assert states == [
        dict(zip(("text", "n"), pair, strict=True)) for pair in zip(TEXTS, NUMBERS, strict=True)
    ]
    assert all(columns(found)["error"])
    states.clear()
    client.batch(TABLES[kind](), QUESTIONS, concurrency=1, state_columns=["n"], id_column="text")
    assert states == [{"n": number} for number in NUMBERS]
    states.clear()
    client.batch(TABLES[kind](), QUESTIONS, concurrency=1, id_column="text")
    assert states == [{"n": number} for number in NUMBERS]


def test_any_other_arrow_stream_comes_back_as_a_pyarrow_table(local: LocalJev) -> None:
    class Stream:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return pyarrow.table({"text": ["a", "b"]}).__arrow_c_stream__(requested_schema)

    found = local.batch(Stream(), QUESTIONS)
    assert isinstance(found, pyarrow.Table)
    assert found.column_names == ["text", *NEW_COLUMNS]


@pytest.mark.parametrize(
    ("table", "questions", "options", "message"),
    [
        ({"new": ["a"]}, QUESTIONS, {}, "has a column 'new' already"),
        ({"error": ["a"]}, QUESTIONS, {}, "has a column 'error' already"),
        ({"text": ["a"]}, QUESTIONS, {"state_columns": "txt"}, "no column 'txt'; it has 'text'"),
        ({"text": ["a"]}, QUESTIONS, {"attachment_column": "file"}, "no column 'file'"),
        ({"text": ["a"]}, {"a": Noul("?"), "a_probability": Noul("?")}, {}, "named 'a_probability'"),
        ({"text": ["a"]}, {"error": Noul("?")}, {}, "named 'error'"),
        ({"text": ["a"]}, QUESTIONS, {"concurrency": 0}, "concurrency must be 1 or more"),
    ],
)
def test_a_table_that_cannot_be_extended_is_refused_before_anything_is_asked(
    table: dict[str, list[str]], questions: Any, options: dict[str, Any], message: str
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise AssertionError("it was asked")

    with pytest.raises(ValueError, match=message):
        Jev(transport=httpx.MockTransport(answer)).batch(pyarrow.table(table), questions, **options)


def test_an_empty_table_gets_its_columns(local: LocalJev) -> None:
    for kind in ("pandas", "polars", "pyarrow"):
        table = TABLES[kind]()[:0]
        assert list(columns(local.batch(table, QUESTIONS))) == ["text", "n", *NEW_COLUMNS]


# --- other rows ---------------------------------------------------------------------------------------


def test_rows_come_back_in_order_with_what_became_of_them(local: LocalJev, jev: Jev, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("It is new.")
    rows: list[Any] = [
        "a state",
        {"text": "a state"},
        3,
        Row(id="own", state="a state", questions={"other": Noul("Is it?")}),
        Row(id="file", attachments=["note.txt"]),
        Row(id="gone", attachments=["gone.txt"]),
    ]
    for client in (local, jev):
        seen: list[tuple[int, int | None]] = []
        found = client.batch(
            rows, QUESTIONS, folder=tmp_path, progress=lambda *at, seen=seen: seen.append(at)
        )
        assert seen == [(number, 6) for number in range(1, 7)]
        assert [one.number for one in found] == list(range(6))
        assert [one.row for one in found] == rows
        assert [one.id for one in found] == [None, None, None, "own", "file", "gone"]
        assert [type(one.error) for one in found] == [
            type(None),
            type(None),
            InvalidRequestError,
            type(None),
            type(None),
            FileNotFoundError,
        ]
        assert [one.decision is None for one in found] == [False, False, True, False, False, True]
        assert found[3].decision is not None
        assert list(found[3].decision) == ["other"]
        alone = client.decide("a state", QUESTIONS)
        record = found[0].record()
        assert list(record) == ["state", *NEW_COLUMNS]
        assert record["new_probability"] == pytest.approx(alone.nouls["new"].noul, abs=1e-5)
        assert list(found[1].record()) == ["text", *NEW_COLUMNS]
        assert found[2].record().keys() == {"state", "error"}


def test_a_class_gives_instances(local: LocalJev, jev: Jev) -> None:
    for client in (local, jev):
        (one,) = client.batch(iter(["a state"]), Thing)
        assert one.decision is not None
        thing = one.decision.value
        assert (type(thing), thing.kind in ("a", "b")) == (Thing, True)
        (bad,) = client.batch([Row(state="s", questions={"q": Noul("?")})], Thing)
        assert isinstance(bad.error, InvalidRequestError)


@pytest.mark.parametrize(
    ("rows", "questions", "options"),
    [
        ("text", QUESTIONS, {}),
        ({"a": 1}, QUESTIONS, {}),
        (5, QUESTIONS, {}),
        (["a"], {"q": 3}, {}),
        (["a"], QUESTIONS, {"colour": "red"}),
    ],
)
def test_arguments_that_cannot_be_are_type_errors(rows: Any, questions: Any, options: Any) -> None:
    with pytest.raises(TypeError):
        Jev(transport=httpx.MockTransport(lambda request: httpx.Response(500))).batch(
            rows, questions, **options
        )


# --- asking a server ----------------------------------------------------------------------------------

ANSWER = {
    "model": "m",
    "answers": {"q": {"type": "noul", "noul": 0.75}},
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


class Slow:
    """Answers after a moment, and notes how many it answers at once."""

    def __init__(self) -> None:
        self.now = self.most = self.count = 0
        self._lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            self.now += 1
            self.count += 1
            self.most = max(self.most, self.now)
        time.sleep(0.02)
        with self._lock:
            self.now -= 1
        return httpx.Response(200, json=ANSWER)


def test_no_more_rows_are_asked_or_read_at_once_than_wanted() -> None:
    slow, read = Slow(), 0

    def rows() -> Iterator[str]:
        nonlocal read
        for number in range(40):
            read += 1
            assert read - slow.count <= 5
            yield f"state {number}"

    progress: list[tuple[int, int | None]] = []
    found = Jev(transport=httpx.MockTransport(slow)).batch(
        rows(), {"q": Noul("?")}, concurrency=4, progress=lambda *at: progress.append(at)
    )
    assert [one.row for one in found] == [f"state {number}" for number in range(40)]
    assert (slow.most, slow.count) == (4, 40)
    assert progress == [(number, None) for number in range(1, 41)]


def test_a_wrong_key_ends_the_batch() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(401, json={"detail": {"error_type": "authentication_error", "message": "no"}})

    with pytest.raises(AuthenticationError):
        Jev(transport=httpx.MockTransport(answer)).batch(["s"] * 100, {"q": Noul("?")}, concurrency=2)
    assert len(asked) < 10


@pytest.mark.parametrize(("retry", "fails"), [(None, False), (RetryPolicy(max_retries=1), True)])
def test_rows_wait_longer_for_a_busy_server_than_single_decisions(
    retry: RetryPolicy | None, fails: bool
) -> None:
    left = [5, 5]

    def answer(request: httpx.Request) -> httpx.Response:
        row = int(json.loads(request.content)["state"])
        left[row] -= 1
        return httpx.Response(529, json={}) if left[row] >= 0 else httpx.Response(200, json=ANSWER)

    client = Jev(transport=httpx.MockTransport(answer))
    waits: list[float] = []
    client._sleep = waits.append
    found = client.batch(["0", "1"], {"q": Noul("?")}, retry=retry)
    assert [one.error is not None for one in found] == [fails, fails]
    assert len(waits) == (2 if fails else 10)


@pytest.mark.anyio
async def test_the_async_client_does_the_same() -> None:
    import anyio

    now = most = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await anyio.sleep(0.005)
        now -= 1
        state = json.loads(request.content)["state"]
        return httpx.Response(401 if state == "no key" else 422 if state == "bad" else 200, json=ANSWER)

    async with AsyncJev(transport=httpx.MockTransport(answer)) as client:
        frame = polars.DataFrame({"text": ["a", "bad", *"cdefgh"]})
        found = await client.batch(frame, {"q": Noul("?")}, state_columns="text", concurrency=3)
        assert isinstance(found, polars.DataFrame)
        assert found["q_probability"].to_list() == [0.75, None, *[0.75] * 6]
        assert most == 3
        results: list[RowResult[Decision]] = await client.batch((x for x in ["a", "b"]), {"q": Noul("?")})
        assert [one.row for one in results] == ["a", "b"]
        with pytest.raises(AuthenticationError):
            await client.batch(["a", "no key", *"xyz"], {"q": Noul("?")})


def test_no_table_library_is_loaded_that_was_not_there() -> None:
    program = """
import sys, httpx
from jev import Jev, Noul
usage = {"input_tokens": 1, "output_tokens": 1}
answer = {"model": "m", "answers": {"q": {"type": "noul", "noul": 0.5}}, "usage": usage}
client = Jev(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=answer)))
assert client.batch(["a", {"b": 1}], {"q": Noul("?")})[1].decision is not None
print(sorted({"pandas", "polars", "pyarrow", "numpy", "torch"} & sys.modules.keys()))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


# --- batches of the server ----------------------------------------------------------------------------


def test_the_server_runs_a_batch_of_its_own(jev: Jev, local: LocalJev) -> None:
    lines = [batch_line(f"row {number}", f"state {number}", QUESTIONS, seed=3) for number in range(5)]
    batch = jev.batches.create(lines, completion_window="2h", metadata={"a": "b"})
    batch = jev.batches.wait(batch.id, poll=0.02, timeout=60)
    assert (batch.status, batch.request_counts.completed, batch.metadata) == ("completed", 5, {"a": "b"})
    results = jev.batches.results(batch.id)
    assert [one.custom_id for one in results] == [f"row {number}" for number in range(5)]
    assert results[2].response is not None
    alone = local.decide("state 2", QUESTIONS, seed=3).nouls["new"].noul
    assert results[2].response.body["answers"]["new"]["noul"] == pytest.approx(alone, abs=1e-5)
    assert jev.batches.list(limit=1).data[0].id == batch.id
    assert jev.batches.cancel(batch.id).status == "completed"
    for bad in ("", "a/b", "a?b"):
        with pytest.raises(ValueError, match="not the id of a batch"):
            jev.batches.get(bad)
    with pytest.raises(InvalidRequestError, match="completion_window"):
        jev.batches.create(lines, completion_window="1d")


@pytest.mark.anyio
async def test_the_async_client_starts_batches_too(local: LocalJev, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps(batch_line("a", "state", QUESTIONS)) + "\n{\n")
    app = create_app(Settings(), local._engine)
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), AsyncJev("http://test", transport=transport) as client:
        batch = await client.batches.wait((await client.batches.create(path)).id, poll=0.02, timeout=60)
        assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
        results = await client.batches.results(batch.id)
        assert [(one.response is None, one.error is None) for one in results] == [
            (False, True),
            (True, False),
        ]
        assert (await client.batches.list()).data == [await client.batches.get(batch.id)]
        assert (await client.batches.cancel(batch.id)).status == "completed"


def test_a_batch_is_not_started_twice_when_the_answer_is_lost() -> None:
    paths: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        if request.url.path == "/v1/files":
            file = {"id": "file-1", "name": "n", "bytes": 1, "kind": "text"}
            return httpx.Response(200, json={"files": [file]})
        raise httpx.ReadError("gone")

    client = Jev(transport=httpx.MockTransport(answer))
    with pytest.raises(ConnectionError):
        client.batches.create(b"{}")
    assert paths == ["/v1/files", "/v1/batches"]


@pytest.mark.parametrize(
    ("status", "content", "again"),
    [
        (504, {}, False),
        (502, {}, False),
        (408, {}, False),
        (503, {"message": "upstream"}, False),
        (503, {"detail": {"error_type": "storage_unavailable", "message": "m"}}, False),
        (503, {"detail": {"error_type": "model_unavailable", "message": "loading"}}, True),
        (429, {}, True),
        (529, {}, True),
    ],
)
def test_a_batch_is_started_again_only_where_it_was_not_taken_up(
    status: int, content: dict[str, Any], again: bool
) -> None:
    """A gateway's answer says nothing about what the server behind it has begun."""
    asked = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        if request.url.path == "/v1/files":
            file = {"id": "file-1", "name": "n", "bytes": 1, "kind": "text"}
            return httpx.Response(200, json={"files": [file]})
        asked += 1
        return httpx.Response(status, json=content)

    client = Jev(transport=httpx.MockTransport(answer), retry=RetryPolicy(max_retries=2, backoff=0))
    with pytest.raises(APIError):
        client.batches.create(b"{}")
    assert asked == (3 if again else 1)


def test_a_file_object_belongs_to_every_row() -> None:
    """It can be read once only, so that is done once."""
    sent: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content)["files"])
        return httpx.Response(200, json=ANSWER)

    client = Jev(transport=httpx.MockTransport(answer))
    found = client.batch(["a", "b", "c"], {"q": Noul("?")}, attachments=[io.BytesIO(b"hello")])
    assert all(one.error is None for one in found)
    assert [one["data"] for (one,) in sent] == ["aGVsbG8="] * 3
    with pytest.raises(TypeError, match="attachments must be a list"):
        client.batch(["a"], {"q": Noul("?")}, attachments="a.pdf")
    assert len(sent) == 3


@pytest.mark.anyio
async def test_errors_of_the_program_are_no_groups() -> None:
    """As with the client that blocks."""

    def rows() -> Iterator[str]:
        yield "a"
        raise RuntimeError("the rows end here")

    def told(done: int, total: int | None) -> None:
        raise KeyError("progress")

    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=ANSWER))
    async with AsyncJev(transport=transport) as client:
        with pytest.raises(RuntimeError, match="the rows end here"):
            await client.batch(rows(), {"q": Noul("?")})
        with pytest.raises(KeyError, match="progress"):
            await client.batch(["a"], {"q": Noul("?")}, progress=told)
        with pytest.raises(TypeError):
            await client.batch(["a"], {"q": Noul("?")}, attachments=[3])  # type: ignore[list-item]


def test_a_batch_that_ends_waits_for_no_retry() -> None:
    """A wrong key, or Ctrl+C, ends it at once; what waits for a busy server sends nothing more."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content)["state"])
        if asked[-1] == "busy":
            return httpx.Response(503, json={}, headers={"retry-after": "20"})
        time.sleep(0.3)
        return httpx.Response(401, json={"detail": {"error_type": "authentication_error", "message": "no"}})

    began = time.monotonic()
    with pytest.raises(AuthenticationError):
        Jev(transport=httpx.MockTransport(answer)).batch(["busy", "no key"], {"q": Noul("?")}, concurrency=2)
    assert time.monotonic() - began < 10
    assert sorted(asked) == ["busy", "no key"]


def test_a_row_that_a_class_refuses_is_that_rows_error(local: LocalJev, jev: Jev) -> None:
    class Picky(pydantic.BaseModel):
        new: Annotated[bool, "Is it new?"]

        @pydantic.field_validator("new")
        @classmethod
        def _never(cls, value: bool) -> bool:
            raise ValueError("not this one")

    for client in (local, jev):
        found = client.batch(["a", "b"], Picky)
        assert [isinstance(one.error, ValueError) for one in found] == [True, True]
