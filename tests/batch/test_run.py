"""A job keeps to the input that it was opened with, also when the file changes meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from jev.batch import Job, JobError, OpenJob, in_process
from jev.batch.deciders import Decided
from jev.batch.ledger import Ledger
from jev.batch.outcome import Outcome
from jev.errors import JevError
from jev.schemas import NoulAnswer, SystemOneRequest, SystemOneResponse, Usage


class Fake:
    """Says yes to everything."""

    model = "fake"
    rows = 2
    groups = 1

    async def decide(self, requests: Sequence[SystemOneRequest]) -> list[Decided]:
        usage = Usage(input_tokens=1, output_tokens=1)
        return [
            SystemOneResponse(model="fake", answers={"q": NoulAnswer(noul=1.0)}, usage=usage)
            for _ in requests
        ]

    def stops(self, error: JevError) -> bool:
        return False

    async def aclose(self) -> None:
        return None


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., OpenJob]]:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"state": "{number}"}}\n' for number in range(6)))
    made: list[OpenJob] = []

    def open_job(**given: object) -> OpenJob:
        questions = {"q": {"type": "noul", "instructions": "Is it?"}}
        job = Job.load(input=str(rows), output=tmp_path / "out.jsonl", questions=questions, **given)
        made.append(OpenJob(job, model="fake"))
        return made[-1]

    yield open_job
    for one in made:
        one.close()


def test_rows_that_are_added_meanwhile_are_none_of_its_rows(
    opened: Callable[..., OpenJob], tmp_path: Path
) -> None:
    job = opened(keep_input=True, review_below=1.0)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"state": "late"}\n' * 5)
    summary = asyncio.run(job.run(in_process(Fake)))
    assert summary.finished
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["input"]["state"] for line in lines] == [str(number) for number in range(6)]
    assert summary.reviewed == 0
    job.close()
    with pytest.raises(JobError, match="other input; --restart"):
        opened()


def test_an_input_that_becomes_shorter_ends_the_job(opened: Callable[..., OpenJob], tmp_path: Path) -> None:
    job = opened()
    (tmp_path / "rows.jsonl").write_text('{"state": "0"}\n')
    with pytest.raises(JobError, match="it became shorter while the job ran"):
        asyncio.run(job.run(in_process(Fake)))
    assert not (tmp_path / "out.jsonl").exists()


def test_an_output_that_was_removed_is_written_again(opened: Callable[..., OpenJob], tmp_path: Path) -> None:
    job = opened()
    asyncio.run(job.run(in_process(Fake)))
    first = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl").unlink()
    job.close()

    def never() -> Fake:
        raise AssertionError("there is no row to decide")

    again = opened()
    assert asyncio.run(again.run(in_process(never))).finished
    assert (tmp_path / "out.jsonl").read_bytes() == first


def test_a_review_queue_of_something_else_is_not_written_over(
    opened: Callable[..., OpenJob], tmp_path: Path
) -> None:
    """A file of that name from before the job is refused; the job's own is replaced."""
    queue = tmp_path / "out.review.jsonl"
    queue.write_text("somebody's\n")
    with pytest.raises(JobError, match="it exists already; remove it, or name another"):
        opened(review_below=1.0)
    assert queue.read_text() == "somebody's\n"
    queue.unlink()
    for _ in range(2):
        job = opened(review_below=1.0)
        assert asyncio.run(job.run(in_process(Fake))).finished
        job.close()
        assert queue.exists()


def test_names_of_its_own_queues_are_remembered(opened: Callable[..., OpenJob], tmp_path: Path) -> None:
    """One after the other, and those of a job that was done before names were noted."""
    for review in (None, tmp_path / "second.jsonl", None):
        job = opened(review_below=1.0, **({} if review is None else {"review": review}))
        assert asyncio.run(job.run(in_process(Fake))).finished
        job.close()
    job = opened()
    job.ledger._db.execute("DELETE FROM meta WHERE name = 'reviews'")
    job.close()
    opened(review_below=1.0).close()


def test_a_kill_while_failed_rows_are_forgotten_forgets_none(
    opened: Callable[..., OpenJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are open again and their lines are to be written anew, both or neither."""
    job = opened()
    job.ledger.add([Outcome(2, None, {"error": {"message": "x", "type": "x"}})])
    job.ledger.set(output_form="lines")
    forget = Ledger.forget_failed

    def killed(ledger: Ledger) -> int:
        forget(ledger)
        raise SystemExit(137)

    definition = job.job
    job.close()
    monkeypatch.setattr(Ledger, "forget_failed", killed)
    with pytest.raises(SystemExit):
        OpenJob(definition, model="fake", retry_failed=True)
    monkeypatch.undo()
    after = OpenJob(definition, model="fake")
    assert after.ledger.has(2)
    after.close()
    again = OpenJob(definition, model="fake", retry_failed=True)
    assert (again.retried, again.ledger.has(2), again.ledger.get("output_form")) == (1, False, "")
    again.close()
