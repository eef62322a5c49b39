"""A whole job: input, ledger, decider, output and review queue put together."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from jev.batch.deciders import Decider
from jev.batch.inputs import STDIN, Input, open_input
from jev.batch.job import Job, fingerprint
from jev.batch.ledger import Ledger
from jev.batch.outcome import Outcome
from jev.batch.output import LinesOutput
from jev.batch.parquet import ParquetOutput
from jev.batch.readers import JobError, Parquet, Record, RowError
from jev.batch.requests import Requests
from jev.batch.review import write_review
from jev.batch.runner import Progress, Rows, run_rows
from jev.schemas import Row, SystemOneRequest

LEDGER = "ledger.sqlite"
SPOOL = "input.jsonl"
PARTIAL = "partial"
SCRATCH = "review.sqlite"


@dataclass(frozen=True)
class Summary:
    """How a job stands after a run.

    Attributes:
        progress: rows and tokens.
        finished: whether all rows are done and the output is in its place.
        reviewed: rows in the review queue; None where none was asked for.
        failures: the first failed rows.
    """

    progress: Progress
    finished: bool
    reviewed: int | None
    failures: tuple[Outcome, ...]


Report: TypeAlias = Callable[[Progress], None]

Decide: TypeAlias = "Callable[[OpenJob, asyncio.Event, Report], Awaitable[Progress]]"
"""Decides the open rows of a job and enters them, until all are done or the event is set."""


class OpenJob:
    """A job with its ledger and its input open; one process at a time may have it.

    Args:
        job: the job.
        model: what answers, exactly: another one makes it another job.
        restart: forget what is done.
        retry_failed: make failed rows open again.

    Raises:
        JobError: it cannot run: the input, the output or the ledger.
        MissingExtraError: pyarrow is needed and not installed.
    """

    def __init__(self, job: Job, *, model: str, restart: bool = False, retry_failed: bool = False) -> None:
        self.job = job
        self.template, own = job.template()
        self._remove_stale(job, restart)
        self.ledger = Ledger(job.folder / LEDGER, later=True)
        try:
            spool = job.folder / SPOOL
            # What is kept of standard input is the only copy, until nothing speaks against the new one.
            piped = job.folder / f"{SPOOL}.new" if restart and str(job.input) == STDIN else spool
            if piped != spool:
                piped.unlink(missing_ok=True)
            self.input = open_input(job.input, job.columns, root=job.attachments_root, spool=piped)
            if piped != spool and spool.exists() and piped.stat().st_size == 0:
                raise JobError("input -: nothing is piped in")
            digest = self.input.digest()
            self.requests = Requests(
                self.template, questions=own, root=self.input.root, own_questions=not job.parquet
            )
            self.output = self._opened_output(self.template, self.input)
            self.ledger.open(restart=restart)  # what is done is forgotten once nothing speaks against the job
            if piped != spool:
                piped.replace(spool)
                self.input = open_input(job.input, job.columns, root=job.attachments_root, spool=spool)
            self.ledger.identify(fingerprint(job, self.template, model=model, input_digest=digest))
            self.total = self._count(digest)
            self._claim_review(restart)
            with self.ledger.transaction():
                self.retried = self.ledger.forget_failed() if retry_failed else 0
                if self.retried:
                    self.ledger.set(output_form="")  # what is written of them is written anew
        except BaseException:
            self.ledger.close()
            raise

    @property
    def complete(self) -> bool:
        """Whether every row has an outcome."""
        return self.ledger.totals().done >= self.total

    async def run(
        self,
        decide: Decide,
        *,
        stop: asyncio.Event | None = None,
        report: Report = lambda _: None,
    ) -> Summary:
        """Decide what is open and bring output and review queue into their places.

        Args:
            decide: decides the open rows, such as `in_process`; not called when no row is open.
            stop: ends the run early once it is set.
            report: called with the progress.

        Raises:
            JobStopped, JobError, sqlite3.Error, OSError: see `run_rows`.
        """
        done = self.ledger.totals()
        progress = Progress(self.total, done.done, done, 0.0)
        if not (self.complete and self.output.finished):
            self.output.open()
            try:
                if not self.complete:
                    stop = stop or asyncio.Event()
                    progress = await decide(self, stop, report)
                    if not (self.complete or stop.is_set()):
                        raise JobError(f"input {self.input.label}: it became shorter while the job ran")
                if self.complete:
                    self.output.finish()
            finally:
                self.output.close()
        reviewed = None
        if self.complete and self.job.review_below is not None:
            reviewed = write_review(
                self.job.review_file,
                self.ledger,
                self.job.review_below,
                self.records,
                self.asked,
                self.job.folder / SCRATCH,
            )
        failures = self.ledger.outcomes(failed=True)
        first = tuple(one for one, _ in zip(failures, range(3), strict=False))
        return Summary(progress, self.complete, reviewed, first)

    def rows(self, skip: int = 0) -> Iterator[tuple[int, Row | RowError]]:
        """The rows behind the first so many; what a file has got behind them since is none of the job's."""
        return islice(self.input.rows(skip), self.total - skip)

    def records(self, skip: int = 0) -> Iterator[Record]:
        """The rows as they stand in the input."""
        return islice(self.input.records(skip), self.total - skip)

    def asked(self, record: Any) -> dict[str, Any]:
        """The state, attachments and questions of a record's row; nothing of one that cannot be read."""
        row = self.input.row(record)
        if isinstance(row, RowError):
            return {}
        own = self.template.questions if row.questions is None else row.questions
        found: dict[str, Any] = {"state": row.state}
        if row.attachments:
            found["attachments"] = row.attachments
        return {
            **found,
            "questions": {name: question.model_dump(mode="json") for name, question in own.items()},
        }

    def close(self) -> None:
        """Let go of the ledger."""
        self.ledger.close()

    def _count(self, digest: str) -> int:
        """How many rows there are; counted once for an input."""
        known = self.ledger.get("input_rows")
        if known and self.ledger.get("input_digest") == digest:
            return int(known)
        total = self.input.count()
        self.ledger.set(input_rows=total, input_digest=digest)
        return total

    def _claim_review(self, restart: bool) -> None:
        """Refuse to write over a review queue that is not this job's."""
        if self.job.review_below is None:
            return
        file = self.job.review_file
        name = os.path.relpath(file, self.job.folder)
        kept = self.ledger.get("reviews")
        names: list[str] = json.loads(kept) if kept else []
        # Without a note it was written by a version of jev that made none.
        ours = name in names or restart or (not kept and self.ledger.get("output_finished") == "1")
        if file.exists() and not ours:
            raise JobError(f"review {file}: it exists already; remove it, or name another with --review")
        self.ledger.set(reviews=json.dumps(sorted({*names, name})))

    def _opened_output(self, template: SystemOneRequest, source: Input) -> LinesOutput | ParquetOutput:
        job, partial = self.job, self.job.folder / PARTIAL
        inputs = self.records if job.keep_input else None
        if not job.parquet:
            return LinesOutput(job.output, partial, self.ledger, ordered=job.ordered, inputs=inputs)
        if job.questions is None:
            raise JobError(f"output {job.output}: Parquet needs questions that all rows share")
        schema = source.reader.schema if isinstance(source.reader, Parquet) else None
        return ParquetOutput(
            job.output, partial, self.ledger, template.questions, inputs=inputs, schema=schema
        )

    @staticmethod
    def _remove_stale(job: Job, restart: bool) -> None:
        """Refuse to write over an output that no ledger knows."""
        if restart or job.output.exists() is False or (job.folder / LEDGER).exists():
            return
        raise JobError(f"output {job.output}: it exists already; --restart writes over it")


def in_process(open_decider: Callable[[], Decider]) -> Decide:
    """Decide open rows from this process.

    Args:
        open_decider: makes the decider; it is closed in the end.
    """

    async def decide(opened: OpenJob, stop: asyncio.Event, report: Report) -> Progress:
        decider = open_decider()
        try:
            return await run_rows(
                Rows(opened.rows, opened.requests.prepare),
                decider,
                opened.ledger,
                opened.output,
                total=opened.total,
                dedup=opened.job.dedup,
                stop=stop,
                report=report,
            )
        finally:
            await decider.aclose()

    return decide


def ledger_of(output: Path) -> Path:
    """Where the ledger of an output is."""
    return output.with_name(output.name + ".job") / LEDGER
