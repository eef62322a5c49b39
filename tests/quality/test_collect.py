"""Proves that every row gets an outcome, a run that stopped goes on, and a second report asks nothing."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path

import pytest
from quality_fakes import Fake, rows_file, tempered

from jev.errors import AuthenticationError, ConnectionError, InvalidRequestError, TimeoutError
from jev.quality.cache import ReplyCache
from jev.quality.data import DataError, LabelledRow, read_rows
from jev.quality.replies import Failure, Reply, reply_of
from jev.quality.report import build_report
from jev.quality.run import BackendRun, QualityError, run_backend
from jev.schemas import Choice, ChoiceAnswer, Noul, NoulAnswer, Question, SystemOneResponse, Usage


@pytest.fixture
def rows(tmp_path: Path) -> list[LabelledRow]:
    return read_rows(rows_file(tmp_path / "rows.jsonl", 30))


def run(fake: Fake, rows: list[LabelledRow], **options: object) -> BackendRun:
    return asyncio.run(run_backend(fake, rows, **options))  # type: ignore[arg-type]


def failing(states: set[str], error: Exception) -> Fake:
    def answers(state: str, name: str, question: Question) -> list[float]:
        if state in states:
            raise error
        return list(tempered(1)(state, name, question))

    return Fake(answers)


def test_requests_are_bounded_and_in_order(rows: list[LabelledRow]) -> None:
    fake = Fake(tempered(1))
    found = run(fake, rows, concurrency=3, options={"seed": 7})
    assert fake.most_in_flight == 3
    assert len(fake.requests) == 30
    assert all(request.seed == 7 for request in fake.requests)
    # Only what was asked for is set: other servers refuse fields that they do not know.
    assert fake.requests[0].model_fields_set == {"state", "questions", "seed"}
    for row, reply in zip(rows, found.replies, strict=True):
        assert isinstance(reply, Reply)
        assert reply.answers["animal"].probabilities == pytest.approx(
            list(tempered(1)(row.row.state, "animal", row.questions["animal"]))
        )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InvalidRequestError.at("state", msg="too long"), "InvalidRequestError: state: too long"),
        (RuntimeError("out of memory"), "RuntimeError: out of memory"),
        (ValueError("odd"), "bad answer: odd"),
    ],
)
def test_a_row_that_fails_is_kept_with_its_reason(
    rows: list[LabelledRow], error: Exception, reason: str
) -> None:
    found = run(failing({"thing 4"}, error), rows)
    entry = build_report(rows, [found], source="rows")["backends"][0]
    assert entry["failures"] == [{"row": 5, "id": "r4", "reason": reason}]
    assert entry["costs"]["failed"] == 1
    assert entry["costs"]["answered"] == 29
    assert entry["figures"]["n"] == 87


@pytest.mark.parametrize("error", [ConnectionError("refused"), AuthenticationError()])
def test_what_no_other_row_would_change_ends_the_run(rows: list[LabelledRow], error: Exception) -> None:
    fake = failing({"thing 4"}, error)
    with pytest.raises(type(error)):
        run(fake, rows, concurrency=1)
    assert len(fake.requests) == 5


def test_a_backend_that_answers_nothing_is_an_error_with_the_reason(rows: list[LabelledRow]) -> None:
    fake = failing({row.row.state for row in rows}, InvalidRequestError.at("seed", msg="unknown field"))
    with pytest.raises(QualityError, match=r"fake answered none of 30 rows; the first: .*unknown field"):
        run(fake, rows)


def test_a_full_disk_ends_the_run(rows: list[LabelledRow], tmp_path: Path) -> None:
    with ReplyCache(tmp_path / "cache.jsonl") as cache:

        def put(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        cache.put = put  # type: ignore[method-assign]
        with pytest.raises(OSError, match="No space left"):
            run(Fake(tempered(1)), rows, cache=cache)


def test_a_stopped_run_goes_on_and_a_second_one_asks_nothing(rows: list[LabelledRow], tmp_path: Path) -> None:
    path = tmp_path / "cache.jsonl"
    whole = run(Fake(tempered(1)), rows)
    with ReplyCache(path) as cache, pytest.raises(ConnectionError):
        run(failing({"thing 20"}, ConnectionError("gone")), rows, cache=cache, concurrency=1)
    # A kill in the middle of a line.
    content = path.read_bytes()
    path.write_bytes(content + b'{"key":"half')
    fake = Fake(tempered(1))
    with ReplyCache(path) as cache:
        found = run(fake, rows, cache=cache)
    assert len(fake.requests) == 10
    assert [reply.answers for reply in found.replies] == [reply.answers for reply in whole.replies]  # type: ignore[union-attr]
    again = Fake(tempered(1))
    with ReplyCache(path) as cache:
        run(again, rows, cache=cache, stability=5)
        asked = len(again.requests)
        run(again, rows, cache=cache, stability=5)
    assert asked == len(again.requests) > 0  # the probes, once
    assert path.read_bytes().startswith(content)


def test_another_question_seed_model_or_backend_is_asked_anew(
    rows: list[LabelledRow], tmp_path: Path
) -> None:
    with ReplyCache(tmp_path / "cache.jsonl") as cache:
        for count, (name, options) in enumerate([("a", {}), ("a", {"seed": 1}), ("b", {})], 1):
            run(Fake(tempered(1), name), rows, cache=cache, options=options)
            assert len((tmp_path / "cache.jsonl").read_bytes().splitlines()) == 30 * count
        changed = Fake(tempered(1), "b")
        changed.fingerprint = "other weights"  # type: ignore[attr-defined]
        run(changed, rows, cache=cache)
        assert len(changed.requests) == 30


@pytest.mark.parametrize(
    "content",
    [
        b"not a cache\n",
        b"some text",
        b'{"key": 1}\n',
        b"[" * 100_000 + b"\n",
        b'{"key":"a","answers":{},"seconds":1,"input_tokens":1e999,"output_tokens":1,"rounded":false}\n',
        b'{"key":"a","answers":{"q":{"p":[NaN],"winner":0}},"seconds":1,"input_tokens":1,"output_tokens":1,'
        b'"rounded":false}\n',
    ],
)
def test_a_file_that_is_no_cache_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"notes.txt: .*--cache"):
        ReplyCache(path)
    assert path.read_bytes() == content


TWO = {"n": Noul("Red?"), "c": Choice(["ant", "bee", "cow"])}


class TestReplies:
    def response(self, noul: float, choice: str, *p: float) -> SystemOneResponse:
        return SystemOneResponse(
            model="m",
            answers={
                "n": NoulAnswer(noul=noul),
                "c": ChoiceAnswer(
                    choice=choice,
                    probabilities=dict(zip(("ant", "bee", "cow"), p, strict=False)),
                    confidence=0.5,
                ),
            },
            usage=Usage(input_tokens=1, output_tokens=1),
        )

    def test_rounded_numbers_are_renormalised_and_the_stated_choice_wins_ties(self) -> None:
        reply = reply_of(TWO, self.response(0.25, "bee", 0.33, 0.33, 0.33), 0.1)
        assert reply.rounded
        assert reply.answers["c"].probabilities == pytest.approx([1 / 3] * 3)
        assert reply.answers["c"].winner == 1
        assert reply.answers["n"].probabilities == (0.25, 0.75)
        assert reply.answers["n"].winner == 1
        assert not reply_of(TWO, self.response(0.251, "bee", 0.3, 0.4, 0.3), 0.1).rounded

    @pytest.mark.parametrize(
        ("p", "choice", "reason"),
        [
            ((0.2, 0.2, 0.2), "ant", "sum to 0.6"),
            ((-0.1, 0.6, 0.5), "bee", "negative or not a number"),
            ((float("nan"), 0.5, 0.5), "bee", "negative or not a number"),
            ((0.2, 0.8), "bee", "not those of the question's alternatives"),
            ((0.2, 0.5, 0.3), "dog", "none of the options"),
        ],
    )
    def test_what_is_no_distribution_is_refused(self, p: tuple[float, ...], choice: str, reason: str) -> None:
        with pytest.raises(ValueError, match=f"'c'.*{reason}"):
            reply_of(TWO, self.response(0.5, choice, *p), 0.1)

    def test_a_missing_answer_is_a_failure_of_its_row(self, rows: list[LabelledRow]) -> None:
        class Forgetful(Fake):
            async def decide(self, request: object) -> SystemOneResponse:
                response = await super().decide(request)  # type: ignore[arg-type]
                if len(self.requests) == 3:
                    del response.answers["red"]
                return response

        found = run(Forgetful(tempered(1)), rows, concurrency=1)
        assert found.replies[2] == Failure("bad answer: no answer to 'red'")


def test_a_row_that_takes_too_long_does_not_end_the_run(rows: list[LabelledRow]) -> None:
    found = run(failing({"thing 4"}, TimeoutError("no answer in 120 s")), rows)
    assert [type(reply) for reply in found.replies].count(Failure) == 1
    assert found.replies[4] == Failure("TimeoutError: no answer in 120 s")


def test_rows_of_weight_0_count_nowhere(tmp_path: Path) -> None:
    """Neither as a label of a mean over labels nor as a flip."""
    path = rows_file(tmp_path / "rows.jsonl", 10)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    figures = []
    for count in (5, 10):
        for row in kept[5:]:
            row["weight"] = 0
        path.write_text("".join(json.dumps(row) + "\n" for row in kept[:count]))
        few = read_rows(path)
        other = failing(set(), RuntimeError())
        mild, wild = run(other, few), run(Fake(lambda s, n, q: [*tempered(1)(s, n, q)][::-1]), few)
        report = build_report(few, [mild, wild], source="rows")
        figures.append((report["backends"][1]["figures"], report["comparisons"]))
    assert figures[0] == figures[1]
