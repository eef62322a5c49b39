"""Many decisions at once: `batch` of the clients, over iterables, data frames and Arrow tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sized
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Any, TypeVar, Unpack, overload

import anyio

from jev._batch_rows import HOPELESS, BatchOptions, Item, Job, RowResult
from jev._body import Questions, State
from jev._frames import ArrowDataset, ArrowStream, frame_of
from jev.errors import JevError
from jev.results import Decision, TypedDecision
from jev.schemas import Row

T = TypeVar("T")
F = TypeVar("F", bound=ArrowStream | ArrowDataset)

_PASSED = (JevError, OSError, ValueError)
"""Errors of a row; anything else is an error of the program."""


class Batches:
    """`batch` for clients that block."""

    @abstractmethod
    def _decide_rows(self, job: Job, items: Iterator[Item]) -> Iterator[RowResult[Any]]:
        """Decide rows in any order."""

    @overload
    def batch(self, rows: F, questions: Questions | type[Any], **options: Unpack[BatchOptions]) -> F: ...
    @overload
    def batch(
        self, rows: Iterable[State | Row], questions: type[T], **options: Unpack[BatchOptions]
    ) -> list[RowResult[TypedDecision[T]]]: ...
    @overload
    def batch(
        self, rows: Iterable[State | Row], questions: Questions, **options: Unpack[BatchOptions]
    ) -> list[RowResult[Decision]]: ...
    def batch(self, rows: Any, questions: Questions | type[Any], **options: Unpack[BatchOptions]) -> Any:
        """Ask the same questions about many rows, several at once; what fails is that row's error.

        Args:
            rows: states as in `decide`, `Row`s, or a table: a pandas or polars DataFrame, a pyarrow Table
                or Dataset, or anything else with Arrow's stream interface.
            questions: questions by id, or a typed class (see `jev.typed`).
            options: see `RowOptions`, and `DecideOptions`.

        Returns:
            For a table the same kind of table (a pyarrow Table for other kinds): its rows in their order
            and its columns, then for each question `q` the columns `q` and `q_probability` (see
            `columns_of`), then `error`, which is null where there are answers. For anything else a list
            of `RowResult`, in order.

        Raises:
            TypeError: for questions or options that cannot be, before anything is sent.
            ValueError: for an option out of range, or a question named as a column of the table.
            AuthenticationError, PermissionDeniedError: no row can be asked.
        """
        job = Job.of(questions, options)
        frame = frame_of(rows, job)
        given, total = _rows_of(rows) if frame is None else (frame.records(), frame.count)
        results: list[RowResult[Any]] = []
        for result in self._decide_rows(job, job.items(given)):
            results.append(result)
            job.report(len(results), total)
        results.sort(key=lambda result: result.number)
        return results if frame is None else frame.answered(results)


class AsyncBatches:
    """`batch` for clients that do not."""

    @abstractmethod
    async def _decide_row(self, job: Job, item: Item) -> Decision:
        """Decide one row."""

    @overload
    async def batch(
        self, rows: F, questions: Questions | type[Any], **options: Unpack[BatchOptions]
    ) -> F: ...
    @overload
    async def batch(
        self, rows: Iterable[State | Row], questions: type[T], **options: Unpack[BatchOptions]
    ) -> list[RowResult[TypedDecision[T]]]: ...
    @overload
    async def batch(
        self, rows: Iterable[State | Row], questions: Questions, **options: Unpack[BatchOptions]
    ) -> list[RowResult[Decision]]: ...
    async def batch(
        self, rows: Any, questions: Questions | type[Any], **options: Unpack[BatchOptions]
    ) -> Any:
        """Ask the same questions about many rows, several at once; what fails is that row's error.

        Args:
            rows: states as in `decide`, `Row`s, or a table: a pandas or polars DataFrame, a pyarrow Table
                or Dataset, or anything else with Arrow's stream interface.
            questions: questions by id, or a typed class (see `jev.typed`).
            options: see `RowOptions`, and `DecideOptions`.

        Returns:
            For a table the same kind of table (a pyarrow Table for other kinds): its rows in their order
            and its columns, then for each question `q` the columns `q` and `q_probability` (see
            `columns_of`), then `error`, which is null where there are answers. For anything else a list
            of `RowResult`, in order.

        Raises:
            TypeError: for questions or options that cannot be, before anything is sent.
            ValueError: for an option out of range, or a question named as a column of the table.
            AuthenticationError, PermissionDeniedError: no row can be asked.
        """
        job = Job.of(questions, options)
        frame = frame_of(rows, job)
        given, total = _rows_of(rows) if frame is None else (frame.records(), frame.count)
        results: list[RowResult[Any]] = []
        ended: list[Exception] = []
        items = job.items(given)

        async def work() -> None:
            # All workers take from one iterator, so that no more rows are held than are asked.
            try:
                for item in items:
                    results.append(item.done(item.error or await self._outcome(job, item)))
                    job.report(len(results), total)
            except Exception as error:  # as such, and not in a group
                ended.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for _ in range(job.concurrency):
                group.start_soon(work)
        if ended:
            raise ended[0]
        results.sort(key=lambda result: result.number)
        return results if frame is None else frame.answered(results)

    async def _outcome(self, job: Job, item: Item) -> Decision | Exception:
        """What came of a row; what no other row would change is raised."""
        try:
            return await self._decide_row(job, item)
        except HOPELESS:
            raise
        except _PASSED as error:
            return error


def _rows_of(rows: Any) -> tuple[Iterable[Any], int | None]:
    """Rows that are no table, and how many there are, where that is known."""
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        kind = type(rows).__name__  # pyright: ignore[reportUnknownArgumentType]
        raise TypeError(f"rows must be a table or an iterable of states, got {kind}")
    return rows, len(rows) if isinstance(rows, Sized) else None  # pyright: ignore[reportUnknownVariableType]


class Pause:
    """A `time.sleep` for the threads of one batch that its end cuts short."""

    def __init__(self) -> None:
        self._over = Event()

    def __call__(self, seconds: float) -> None:
        """Wait.

        Raises:
            BatchOverError: the batch is over, so that nothing more is to be sent.
        """
        if self._over.wait(seconds):
            raise BatchOverError

    def end(self) -> None:
        """Have all waits end."""
        self._over.set()


class BatchOverError(BaseException):
    """Nobody waits for the row any more."""


def in_threads(job: Job, items: Iterator[Item], decide: Any, pause: Pause) -> Iterator[RowResult[Any]]:
    """Decide rows in as many threads as are to be asked at once.

    Args:
        job: the batch.
        items: its rows.
        decide: returns the decision of one item.
        pause: what it waits with before it asks again; ended with the batch, however that ends.
    """
    pool = ThreadPoolExecutor(job.concurrency, thread_name_prefix="jev-batch")
    asked: dict[Future[Decision], Item] = {}
    try:
        for item in items:
            if item.error is not None:
                yield item.done(item.error)
                continue
            asked[pool.submit(decide, item)] = item
            if len(asked) >= job.concurrency:
                yield from _finished(asked)
        while asked:
            yield from _finished(asked)
    finally:
        pause.end()
        pool.shutdown(cancel_futures=True)


def _finished(asked: dict[Future[Decision], Item]) -> Iterator[RowResult[Any]]:
    done, _ = wait(asked, return_when=FIRST_COMPLETED)
    for future in done:
        item = asked.pop(future)
        try:
            outcome: Decision | Exception = future.result()
        except HOPELESS:
            raise
        except _PASSED as error:
            outcome = error
        yield item.done(outcome)
