"""A job keeps to the input that it was opened with, also when the file changes meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from jev.batch import Job, JobError, OpenJob, in_process
from jev.batch.deciders import Decided
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
