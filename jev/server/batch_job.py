"""One batch from its input to its results; whenever it is interrupted, the ledger says how far it came."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from jev.batch.ledger import Ledger, Totals
from jev.batch.outcome import Outcome
from jev.batch.readers import JobError
from jev.schemas import BadRequestError, parse_request
from jev.schemas.batches import Batch, BatchCounts, BatchIssue, BatchIssues, BatchLine, BatchUsage
from jev.server.batch_lines import (
    BadLineError,
    Line,
    decide_line,
    lines_of,
    parse_line,
    refused,
    request_id,
    result_line,
)
from jev.server.batch_store import ERRORS, INPUT, LEDGER, LIVE, OUTPUT, BatchStore, result_id, write_lines
from jev.server.file_folder import stored
from jev.server.service import Service

T = TypeVar("T")

MAX_ISSUES = 100
"""Most faulty lines that a failed batch names."""

VALIDATED = "validated"
"""Note in the ledger: all lines have been looked at, and how many there are."""

NOT_RUN = {
    "expired": "This request was not run: the batch expired before its turn",
    "cancelled": "This request was not run: the batch was cancelled before its turn",
}


def counted(totals: Totals) -> tuple[BatchCounts, BatchUsage]:
    """What a ledger holds, as the API shows it; the total is that of what is done."""
    counts = BatchCounts(total=totals.done, completed=totals.answered, failed=totals.failed)
    return counts, usage_of(totals.input_tokens, totals.output_tokens)


def usage_of(read: int, written: int) -> BatchUsage:
    """Tokens with their sum."""
    return BatchUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)


def _opened(path: Path) -> Ledger:
    """The ledger; sqlite3.OperationalError where the disk is at fault and not what is in the file."""
    try:
        return Ledger(path)
    except JobError as error:
        if isinstance(cause := error.__cause__, sqlite3.OperationalError):
            raise cause from None
        raise


class UnusableError(Exception):
    """A batch that cannot run; the issues say why."""

    def __init__(self, issues: list[BatchIssue]) -> None:
        super().__init__(issues[0].message)
        self.issues = issues


class BatchJob:
    """Runs a batch, once; if that is interrupted, another one goes on, in this process or a later one.

    Args:
        service: decides the lines.
        store: holds the batch.
        id: the batch's.
        decided: called with every outcome that is new.
    """

    def __init__(
        self, service: Service, store: BatchStore, id: str, decided: Callable[[Outcome], None]
    ) -> None:
        self._service = service
        self._store = store
        self._id = id
        self._decided = decided
        self._input = store.folder(id) / INPUT
        self._turn = asyncio.Semaphore(1)
        # A ledger is used by one thread at a time, so it has a thread.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="jev-batch")

    async def run(self) -> None:
        """Validate, decide and write results: whatever is still to be done of that.

        Raises:
            ModelUnavailableError: the server is shutting down.
            ServerError: 503; the disk is full or fails.
        """
        ledger: Ledger | None = None
        try:
            folder = self._store.folder(self._id)
            ledger = await self._on_disk(partial(_opened, folder / LEDGER))
            if not self._ending():
                await self._decide_all(ledger)
            batch = await self._on_disk(partial(self._finish, ledger))
        except UnusableError as error:
            batch = await self._on_disk(partial(self._failed, error.issues))
        finally:
            if ledger is not None:
                self._disk.submit(ledger.close)
            # Waits for the thread: what it is writing must not overlap with another run.
            await asyncio.shield(asyncio.to_thread(self._disk.shutdown))
        await self._end(batch)

    async def fail(self, issue: BatchIssue) -> None:
        """End the batch without results; ServerError 503 if the disk fails."""
        await self._end(await asyncio.to_thread(stored, partial(self._failed, [issue])))

    async def _end(self, batch: Batch) -> None:
        """Show that the batch has ended, now that the disk knows and nothing is left to do."""
        await asyncio.to_thread(self._store.tidy, self._id)
        self._store.show(self._id, lambda _: dict(batch))

    def _failed(self, issues: list[BatchIssue]) -> Batch:
        errors = BatchIssues(data=issues)
        return self._store.write(self._id, status="failed", failed_at=self._now(), errors=errors)

    async def _decide_all(self, ledger: Ledger) -> None:
        """Validate if that is still to be done, and decide all lines that have no outcome."""
        await self._on_disk(partial(self._validate, ledger))
        # All takers share one iterator: lines are begun in order, and few are in memory.
        lines = lines_of(self._input)
        width = self._service.settings.batch_in_flight
        takers = [asyncio.create_task(self._take(ledger, lines)) for _ in range(width)]
        try:
            await asyncio.gather(*takers)
        finally:
            for taker in takers:
                taker.cancel()
            await asyncio.gather(*takers, return_exceptions=True)

    async def _take(self, ledger: Ledger, lines: Iterator[Line]) -> None:
        """Decide one open line after another."""
        outcome: Outcome | None = None
        while True:
            line = await self._on_disk(partial(self._exchange, ledger, outcome, lines))
            if outcome is not None:
                self._decided(outcome)
            if line is None or self._ending():
                return
            try:
                known = parse_line(line, self._service.settings.max_body_bytes)
            except BadLineError as error:  # the limit was lowered since it was validated
                outcome = refused(line.number, error)
                continue
            with self._service.tracing.decision(request_id(self._id, line.number)) as decision:
                outcome = await decide_line(
                    self._service,
                    line.number,
                    known,
                    turn=self._turn,
                    give_up=lambda: self._ending() is not None,
                    decision=decision,
                )

    def _exchange(self, ledger: Ledger, outcome: Outcome | None, lines: Iterator[Line]) -> Line | None:
        """Enter an outcome and return the next line without one."""
        if outcome is not None:
            ledger.add([outcome])
            self._show(outcome)
        return next((line for line in lines if not ledger.has(line.number)), None)

    def _validate(self, ledger: Ledger) -> None:
        """Look at every line and enter those that are no requests, all together.

        Raises:
            UnusableError: there are too many lines, or no good one.
        """
        total = int(ledger.get(VALIDATED, "0"))
        if not total:
            bad, total = self._sorted_out()
            with ledger.transaction():
                ledger.add(bad)
                ledger.set(**{VALIDATED: total})
        if self._store.get(self._id).status == "validating":
            counts = BatchCounts(total=total, failed=ledger.totals().failed)
            model = self._service.serving()[0].name
            self._store.update(
                self._id,
                only=("validating",),
                status="in_progress",
                in_progress_at=self._now(),
                request_counts=counts,
                model=model,
            )

    def _sorted_out(self) -> tuple[list[Outcome], int]:
        """The lines that are no requests, and how many lines there are."""
        limit = self._service.settings.max_batch_rows
        names: set[str] = set()
        bad: list[Outcome] = []
        issues: list[BatchIssue] = []
        total = good = 0
        for line in lines_of(self._input):
            total += 1
            if total > limit:
                message = f"The file has more requests than the limit of {limit}"
                raise UnusableError([BatchIssue(code="too_many_requests", message=message)])
            try:
                known = self._named(line, names)
                parse_request(known.body)
                good += 1
                continue
            except BadLineError as error:
                bad.append(refused(line.number, error))
                issue = BatchIssue(code=error.code, message=error.message, line=line.number)
            except BadRequestError as error:  # it gets its 422 when its turn comes
                message = f"Line {line.number}: {error}"[:1000]
                issue = BatchIssue(code="invalid_request", message=message, line=line.number)
            if len(issues) < MAX_ISSUES:
                issues.append(issue)
        if not total:
            raise UnusableError([BatchIssue(code="empty_file", message="The file has no requests")])
        if not good:
            raise UnusableError(issues)
        return bad, total

    def _named(self, line: Line, names: set[str]) -> BatchLine:
        known = parse_line(line, self._service.settings.max_body_bytes)
        if known.custom_id in names:
            message = f"Line {line.number}: the custom_id {known.custom_id[:64]!r} is there twice"
            raise BadLineError("duplicate_custom_id", message, known.custom_id)
        names.add(known.custom_id)
        return known

    def _finish(self, ledger: Ledger) -> Batch:
        """Write the results and that the batch has ended; done again if it is interrupted."""
        store, id = self._store, self._id
        end = self._ending()
        if end is not None and not self._enter_unrun(ledger, end) and end == "expired":
            end = None  # its time is over, but it was done before
        # One that is cancelled says "cancelling" until it is over.
        now = store.update(id, only=LIVE, status="finalizing", finalizing_at=self._now())
        if now.status == "cancelling" and end != "cancelled":  # it came just now
            end = "cancelled"
            self._enter_unrun(ledger, end)
        answers = (result_line(id, one) for one in ledger.outcomes() if one.answered)
        errors = (result_line(id, one) for one in ledger.outcomes(failed=True))
        folder = store.folder(id)
        output = result_id(id, "output") if write_lines(folder / OUTPUT, answers) else None
        refusals = result_id(id, "errors") if write_lines(folder / ERRORS, errors) else None
        status = end or "completed"
        counts, usage = counted(ledger.totals())
        return store.write(
            id,
            status=status,
            request_counts=counts,
            usage=usage,
            output_file_id=output,
            error_file_id=refusals,
            **{f"{status}_at": self._now()},
        )

    def _enter_unrun(self, ledger: Ledger, end: str) -> int:
        """Enter all lines without an outcome as not run; returns how many."""
        count = 0
        with ledger.transaction():
            for line in lines_of(self._input):
                if not ledger.has(line.number):
                    error = BadLineError(f"batch_{end}", NOT_RUN[end], line.custom_id)
                    ledger.add([refused(line.number, error)])
                    count += 1
        return count

    def _show(self, outcome: Outcome) -> None:
        """Count one more outcome; the ledger has it, so nothing is written."""
        read, written = outcome.tokens

        def counts(batch: Batch) -> dict[str, Any]:
            known, usage = batch.request_counts, batch.usage or BatchUsage()
            counts = BatchCounts(
                total=known.total,
                completed=known.completed + outcome.answered,
                failed=known.failed + (not outcome.answered),
            )
            tokens = usage_of(usage.input_tokens + read, usage.output_tokens + written)
            return {"request_counts": counts, "usage": tokens}

        self._store.show(self._id, counts)

    def _ending(self) -> str | None:
        """How the batch ends before all its lines are decided, if it does."""
        batch = self._store.get(self._id)
        if batch.status == "cancelling":
            return "cancelled"
        late = batch.expires_at is not None and self._store.clock() >= batch.expires_at
        return "expired" if late else None

    def _now(self) -> int:
        return int(self._store.clock())

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, stored, work)
