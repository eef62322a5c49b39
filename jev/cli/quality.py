"""`jev quality run` and `smoke`: how well a backend decides, and whether another decides alike."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from jev.cli.console import Screen, one_line, shown, spinner
from jev.cli.errors import FailureError, UsageError, one_line_errors
from jev.cli.options import (
    JSON,
    MODEL_PANEL,
    REQUEST,
    Adapters,
    Config,
    Samples,
    Seed,
    check_writable,
    flag,
    load_settings,
)
from jev.quality.data import LabelledRow, read_questions, read_rows

if TYPE_CHECKING:
    from jev.quality.cache import ReplyCache
    from jev.quality.run import BackendRun
    from jev.settings import Settings

REPORT = "Report"
GATES = "Gates (each may be repeated)"

HELP = "Measure decisions: accuracy, calibration, agreement between backends, stability."

RUN_HELP = """
Ask one or more backends about labelled rows and report how well they decide.

\b
jev quality run --data set.jsonl
jev quality run --data set.jsonl --backend torch:fp32 --backend torch:int8 --html report.html
jev quality run --data set.jsonl --questions questions.json --backend systemone=http://127.0.0.1:8000
jev quality run --data set.jsonl --adapter support=DIR --backend torch --backend torch+support
jev quality run --data set.jsonl --fail-under accuracy=0.8 --fail-over ece=0.1

A row is a JSON object with state, questions (or --questions for all rows), answers and perhaps attachments.

Exit code: 0 done, 1 a gate fails or the backend does, 2 the input is wrong.
"""

SMOKE_HELP = """
The same with the set that ships with jev: typed decisions of several domains, some about attached files.

\b
jev quality smoke
jev quality smoke --backend torch:int8 --stability 20
"""

Backends: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--backend",
        "-b",
        metavar="SPEC",
        help="Whom to ask, such as torch:int8=DIR or systemone=URL; repeat to compare; by default torch.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Cache: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Keep replies here; what is there is not asked again.", rich_help_panel=REPORT
    ),
]
Html: TypeAlias = Annotated[
    str | None, typer.Option(metavar="FILE", help="Also write one HTML page.", rich_help_panel=REPORT)
]
Stability: TypeAlias = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="Ask N rows again: options turned, other seeds, reworded, renamed, alone.",
        rich_help_panel=REPORT,
    ),
]
SliceBy: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--slice",
        metavar="KEY",
        help="Also figures by this key of the rows' metadata.",
        rich_help_panel=REPORT,
    ),
]
Limit: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Only the first N rows.", rich_help_panel=REPORT)
]
FailUnder: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIGURE=X", help="Exit code 1 if it is less, such as accuracy=0.8.", rich_help_panel=GATES
    ),
]
FailOver: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIGURE=X", help="Exit code 1 if it is more, such as ece=0.1.", rich_help_panel=GATES
    ),
]
Concurrency: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Requests in flight; by default the backend's.", rich_help_panel=MODEL_PANEL
    ),
]
Permutations: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", help="Rotations of a choice's options to average.", rich_help_panel=REQUEST),
]
Layout: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="isolated or joint.", rich_help_panel=REQUEST)
]
Calibration: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="A calibration of the backend.", rich_help_panel=REQUEST)
]

app = typer.Typer(name="quality", help=HELP, no_args_is_help=True)


@dataclass(frozen=True)
class _Job:
    """What was typed, checked."""

    source: str
    rows: list[LabelledRow]
    backends: Sequence[str]
    settings: Settings
    options: dict[str, Any]
    cache: str | None
    html: Path | None
    stability: int
    concurrency: int | None
    slice_by: str | None
    as_json: bool


@app.command("run", help=RUN_HELP)
def run(
    data: Annotated[
        str, typer.Option(metavar="FILE", help="Rows as .jsonl or .jsonl.gz.", rich_help_panel=REPORT)
    ],
    questions: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Questions of rows that have none of their own.", rich_help_panel=REPORT
        ),
    ] = None,
    backend: Backends = None,
    adapter: Adapters = None,
    config: Config = None,
    concurrency: Concurrency = None,
    limit: Limit = None,
    cache: Cache = None,
    html: Html = None,
    stability: Stability = 0,
    slice_by: SliceBy = None,
    fail_under: FailUnder = None,
    fail_over: FailOver = None,
    seed: Seed = None,
    samples: Samples = None,
    permutations: Permutations = None,
    layout: Layout = None,
    calibration: Calibration = None,
    as_json: JSON = False,
) -> None:
    """Run `jev quality run`; see `RUN_HELP`."""
    with one_line_errors():
        asked = None if questions is None else read_questions(Path(questions))
        job = _Job(
            source=shown(data),
            rows=read_rows(Path(data), asked, limit=limit),
            backends=backend or ["torch"],
            settings=load_settings(None, config, adapters=adapter or None),
            options=_options(
                seed=seed, samples=samples, permutations=permutations, layout=layout, calibration=calibration
            ),
            cache=cache,
            html=check_writable("--html", html, data, questions),
            stability=stability,
            concurrency=concurrency,
            slice_by=slice_by,
            as_json=as_json,
        )
        _measure(job, fail_under or (), fail_over or (), most_failed=0.0)


@app.command("smoke", help=SMOKE_HELP)
def smoke(
    backend: Backends = None,
    adapter: Adapters = None,
    config: Config = None,
    concurrency: Concurrency = None,
    limit: Limit = None,
    cache: Cache = None,
    html: Html = None,
    stability: Stability = 0,
    by_domain: Annotated[bool, flag("--by-domain", "Also figures by domain.", REPORT)] = False,
    fail_under: FailUnder = None,
    fail_over: FailOver = None,
    seed: Seed = None,
    samples: Samples = None,
    permutations: Permutations = None,
    layout: Layout = None,
    calibration: Calibration = None,
    as_json: JSON = False,
) -> None:
    """Run `jev quality smoke`; see `SMOKE_HELP`."""
    from jev.quality.smoke import NAME, read_smoke  # noqa: PLC0415 - only here

    with one_line_errors():
        job = _Job(
            source=NAME,
            rows=read_smoke(limit),
            backends=backend or ["torch"],
            settings=load_settings(None, config, adapters=adapter or None),
            options=_options(
                seed=seed, samples=samples, permutations=permutations, layout=layout, calibration=calibration
            ),
            cache=cache,
            html=check_writable("--html", html),
            stability=stability,
            concurrency=concurrency,
            slice_by="domain" if by_domain else None,
            as_json=as_json,
        )
        # Two of its rows are pictures, which need a model that sees or OCR.
        _measure(job, fail_under or (), fail_over or (), most_failed=0.05)


def _measure(job: _Job, under: Sequence[str], over: Sequence[str], *, most_failed: float) -> None:
    """Ask, show, write; end with exit code 1 where a gate fails."""
    from jev.quality.gates import Gate, check_gates, hold  # noqa: PLC0415 - numpy and scikit-learn
    from jev.quality.page import render_page  # noqa: PLC0415
    from jev.quality.report import build_report  # noqa: PLC0415

    gates = [Gate.parse(text, under=True) for text in under]
    gates += [Gate.parse(text, under=False) for text in over]
    check_gates(gates, backends=len(job.backends), stability=job.stability > 0)
    if not any(gate.figure == "failed" for gate in gates):
        gates.append(Gate("failed", most_failed, under=False))
    if len(job.backends) < 2 and not job.stability and not any(row.gold for row in job.rows):
        raise UsageError(
            f"{job.source}: no row has reviewed answers, so there is nothing to measure but agreement "
            "(--backend twice) and stability (--stability N)"
        )
    if job.slice_by is not None and not any(job.slice_by in (row.row.metadata or {}) for row in job.rows):
        raise UsageError(f"--slice {job.slice_by}: no row has this in its metadata")
    for row in job.rows:
        row.request(options=job.options)  # a bad option or attachment, before a model is loaded
    runs = asyncio.run(_ask_all(job))
    report = build_report(job.rows, runs, source=job.source, options=job.options, slice_by=job.slice_by)
    results = hold(gates, report)
    report["gates"] = [result.as_dict() for result in results]
    if job.as_json:
        typer.echo(json.dumps(report, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())
    else:
        from jev.cli.quality_tables import show_report  # noqa: PLC0415 - only here

        show_report(Screen.standard(), report)
    if job.html is not None:  # behind what is shown, so that no disk takes an hour's figures
        _write(job.html, render_page(report, job.rows))
    failed = [result for result in results if result.failed]
    for result in failed:
        typer.echo(f"gate: {one_line(str(result))}", err=True)
    if failed:
        raise typer.Exit(1)


async def _ask_all(job: _Job) -> list[BackendRun]:
    """One backend after the other, so that no two models are in memory at once."""
    from jev.quality.cache import ReplyCache  # noqa: PLC0415

    runs: list[BackendRun] = []
    with ExitStack() as stack:
        cache = None if job.cache is None else stack.enter_context(ReplyCache(Path(job.cache)))
        status = stack.enter_context(spinner().status("starting"))

        def progress(stage: str, done: int, total: int | None) -> None:
            status.update(f"{one_line(stage)} {done}{'' if total is None else f' of {total}'}")

        for spec in job.backends:
            status.update(f"opening {one_line(spec)}")
            runs.append(await _ask_spec(job, spec, {run.name for run in runs}, cache, progress))
            gc.collect()  # the model has gone before the next one is loaded
    return runs


async def _ask_spec(
    job: _Job, spec: str, taken: set[str], cache: ReplyCache | None, progress: Any
) -> BackendRun:
    from jev.backends import open_backend  # noqa: PLC0415 - it may load torch

    try:
        backend = open_backend(spec, job.settings)
    except (RuntimeError, MemoryError) as error:
        raise FailureError(f"{spec} cannot be opened: {error or type(error).__name__}") from error
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        return await _ask_one(job, backend, taken, cache, progress)
    finally:
        await backend.aclose()


async def _ask_one(
    job: _Job, backend: Any, taken: set[str], cache: ReplyCache | None, progress: Any
) -> BackendRun:
    from jev.quality.run import run_backend  # noqa: PLC0415 - numpy

    name = next(
        name
        for name in (backend.name, *(f"{backend.name} #{n}" for n in range(2, len(taken) + 3)))
        if name not in taken
    )
    return await run_backend(
        backend,
        job.rows,
        name=name,
        options=job.options,
        cache=cache,
        concurrency=job.concurrency,
        stability=job.stability,
        progress=progress,
    )


def _options(**given: Any) -> dict[str, Any]:
    """Request fields that were typed."""
    samples = given.get("samples")
    if isinstance(samples, str) and samples.isdecimal():
        given["samples"] = int(samples)
    return {name: value for name, value in given.items() if value is not None}


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {path}: cannot be written ({error.strerror})") from None
