"""`jev review`: go through uncertain rows with single keys, on a terminal or on a local web page."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jev.cli import labelled
from jev.cli.console import one_line
from jev.cli.errors import FailureError, UsageError, one_line_errors
from jev.cli.options import JSON, flag

if TYPE_CHECKING:
    from jev.review import Queue, Session, Store

SOME_BAD = 3
MAX_NAMED = 5

HELP = """
Go through uncertain rows with single keys and keep the right answers, for jev tune, calibrate and quality.

\b
jev batch run job.toml --review-below 0.8
jev review answers.review.jsonl --out reviewed.jsonl
jev review answers.review.jsonl --out reviewed.jsonl --web

Every decision is on disk before the next row is shown; the same command goes on where it was left. Rows \
need not come from jev batch: labelled rows are checked, others labelled.

Exit code: 0, 3 some rows could not be reviewed, 2 it cannot run as it is, 1 nothing can be kept any more.
"""


def command(
    queue: Annotated[
        Path,
        typer.Argument(metavar="QUEUE", help="A review queue of jev batch, or other rows that it reads."),
    ],
    out: Annotated[Path, typer.Option(metavar="JSONL", help="The reviewed rows; they are added to it.")],
    questions: labelled.QuestionFile = None,
    attachments_root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the attachments' paths; by default the queue's."),
    ] = None,
    all_questions: Annotated[
        bool, flag("--all-questions", "Review all questions of a row, not only the least certain one.")
    ] = False,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Most questions of this run.")] = None,
    web: Annotated[bool, flag("--web", "Serve a page on 127.0.0.1 instead.")] = False,
    port: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=65535, help="Port of --web; 0, the default, is any.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Run `jev review`; see `HELP`."""
    with one_line_errors():
        from jev.quality.data import read_questions  # noqa: PLC0415 - only this command needs them
        from jev.review import Session, Store, load_queue  # noqa: PLC0415

        if port is not None and not web:
            raise UsageError("--port: it needs --web")
        if str(queue) == "-":
            raise UsageError("QUEUE: it must be a file; standard input is where keys come from")
        if attachments_root is not None and not attachments_root.is_dir():
            raise UsageError(f"--attachments-root {attachments_root}: there is no such folder")
        _check_apart(out, queue, questions)
        asked = None if questions is None else read_questions(questions)
        with Store(out) as store:
            found = load_queue(
                queue, out=out, questions=asked, root=attachments_root, all_questions=all_questions
            )
            _warn(queue, found, store)
            session = Session(found.items, store, limit=limit)
            if session.total:
                _go_through(session, web, port or 0)
        _say(session, found, out, as_json)
        if found.bad:
            raise typer.Exit(SOME_BAD)


def _check_apart(out: Path, *read: Path | None) -> None:
    from jev.review.store import skipped_file  # noqa: PLC0415

    written = {os.path.realpath(out), os.path.realpath(skipped_file(out))}
    for path in read:
        if path is not None and os.path.realpath(path) in written:
            raise UsageError(f"--out {out}: the review reads {path}, so it must be another file")


def _warn(path: Path, found: Queue, store: Store) -> None:
    for torn in store.torn:
        typer.echo(f"warning: {torn}: its last line was cut off and is dropped", err=True)
    for bad in found.bad[:MAX_NAMED]:
        typer.echo(f"warning: row {bad.number}: {one_line(bad.reason)[:500]}; it is passed over", err=True)
    if len(found.bad) > MAX_NAMED:
        typer.echo(f"warning: {len(found.bad) - MAX_NAMED:,} more rows are passed over", err=True)
    if not found.items:
        why = "none of its rows can be reviewed" if found.bad else "it has no rows"
        raise UsageError(f"{path}: {why}")


def _go_through(session: Session, web: bool, port: int) -> None:
    before = signal.signal(signal.SIGTERM, _ended)
    try:
        if web:
            from jev.review.web import serve  # noqa: PLC0415 - a web framework

            serve(session, port, lambda url: typer.echo(f"jev review on {url}  (Ctrl+C ends it)", err=True))
        else:
            _on_terminal(session)
    except OSError as error:
        raise FailureError(f"{error.filename or 'the decision'}: {error.strerror or error}") from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _on_terminal(session: Session) -> None:
    shown: Any = next((stream for stream in (sys.stdout, sys.stderr) if stream.isatty()), None)
    if not sys.stdin.isatty() or shown is None:
        raise UsageError(
            "jev review reads keys from a terminal, and this is none; --web serves a page instead"
        )
    from rich.console import Console  # noqa: PLC0415

    from jev.review.keys import Keys  # noqa: PLC0415
    from jev.review.terminal import Terminal  # noqa: PLC0415

    console = Console(file=shown, highlight=False, markup=False, emoji=False)
    with Keys(sys.stdin.fileno(), shown.fileno()) as keyboard:
        Terminal(session, console, keyboard).run()


def _ended(number: int, frame: FrameType | None) -> None:
    """SIGTERM as an exception, so that the terminal is put back."""
    raise SystemExit(128 + number)


def _say(session: Session, found: Queue, out: Path, as_json: bool) -> None:
    from jev.review.store import skipped_file  # noqa: PLC0415

    summary = session.summary
    if as_json:
        report = {**asdict(summary), "bad": len(found.bad), "output": str(out)}
        typer.echo(json.dumps(report, ensure_ascii=False))
        return
    unsure = f" ({summary.unsure:,} unsure: {skipped_file(out)})" if summary.unsure else ""
    typer.echo(f"{summary.reviewed:,} reviewed, {summary.corrected:,} corrected")
    typer.echo(f"{summary.skipped:,} skipped{unsure}, {summary.left:,} left")
    if out.exists():
        typer.echo(f"reviewed rows: {out}")
