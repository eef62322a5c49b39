"""`jev batch`: decide the rows of a file, and say how far a job is."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from jev.cli.batch_run import RunFlags, run_job
from jev.cli.console import one_line
from jev.cli.errors import UsageError, one_line_errors
from jev.cli.options import (
    JSON,
    REQUEST,
    SERVER_PANEL,
    Adapters,
    ApiKey,
    Config,
    Device,
    DType,
    Layout,
    ModelDir,
    Threads,
    Url,
    flag,
    load_settings,
    server_url,
)
from jev.cli.questions import parse_questions

RUN_HELP = """
Decide every row of a file. What is done is kept in a ledger beside the output, so that the same command \
goes on after a kill, a crash or Ctrl+C.

\b
jev batch run --input mails.jsonl --output answers.jsonl --noul "spam=Is it spam?"
jev batch run --input tickets.csv --state-column text --questions q.json --output out.parquet
jev batch run --input invoices/ --questions q.json --output out.jsonl --review-below 0.8
jev batch run job.toml --url http://127.0.0.1:8000
jev batch run job.toml --dry-run --price 0.10

Exit code: 0 all rows answered, 3 finished and some rows failed, 2 the job cannot run as it is, 1 it \
stopped (the server is gone, the disk is full), 130 interrupted (143 by SIGTERM).
"""

STATUS_HELP = """
Say how far the job of an output is, also while it runs.

\b
jev batch status answers.jsonl
"""

DATA = "Rows"
QUESTIONS = "Questions"
RESULT = "Output"
RUNNING = "Running"

Many = list[str] | None

app = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})


class Engine(StrEnum):
    """Where the rows of a job are decided."""

    local = "local"
    ray = "ray"


def _option(metavar: str, text: str, panel: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel)


@app.command("run", help=RUN_HELP)
def run(
    context: typer.Context,
    job_file: Annotated[
        Path | None, typer.Argument(metavar="JOB.toml", help="The job; flags win over what it says.")
    ] = None,
    input: Annotated[
        str | None,
        _option("PATH", ".jsonl, .csv, .tsv (also .gz), .parquet, a folder, or '-'.", DATA, "--input", "-i"),
    ] = None,
    state_column: Annotated[
        Many, _option("NAME", "Column with the state; several make a JSON object.", DATA)
    ] = None,
    id_column: Annotated[str | None, _option("NAME", "Column with the row's name.", DATA)] = None,
    attachment_column: Annotated[
        Many, _option("NAME", "Column with the path of a file; repeatable.", DATA)
    ] = None,
    attachments_root: Annotated[
        Path | None, _option("DIR", "Folder of the attachments; by default the input's.", DATA)
    ] = None,
    questions: Annotated[
        str | None, _option("JSON", "File with questions by id.", QUESTIONS, "--questions", "-q")
    ] = None,
    noul: Annotated[Many, _option("QUESTION", "As in jev ask.", QUESTIONS)] = None,
    choice: Annotated[Many, _option("LIST", "As in jev ask.", QUESTIONS)] = None,
    score: Annotated[Many, _option("LIST", "As in jev ask.", QUESTIONS)] = None,
    output: Annotated[Path | None, _option("PATH", ".jsonl or .parquet.", RESULT, "--output", "-o")] = None,
    unordered: Annotated[bool, flag("--unordered", "Write rows as they are done.", RESULT)] = False,
    keep_input: Annotated[bool, flag("--keep-input", "Write the input's columns too.", RESULT)] = False,
    review_below: Annotated[
        float | None,
        _option("P", "Also write rows with a less certain answer apart, least certain first.", RESULT),
    ] = None,
    review: Annotated[
        Path | None, _option("PATH", "Where to; by default OUTPUT.review.jsonl.", RESULT)
    ] = None,
    instructions: Annotated[str | None, _option("TEXT", "Text before all questions.", REQUEST)] = None,
    layout: Annotated[
        Layout | None,
        typer.Option(help="Each question alone, or all on one canvas.", rich_help_panel=REQUEST),
    ] = None,
    samples: Annotated[str | None, _option("N|auto", "Reads a question, 1 to 32.", REQUEST)] = None,
    seed: Annotated[int | None, _option("N", "Decides the slot noise.", REQUEST)] = None,
    permutations: Annotated[
        int | None, _option("N", "Rotations of a choice's options to average.", REQUEST)
    ] = None,
    calibration: Annotated[str | None, _option("NAME", "Calibration to apply.", REQUEST)] = None,
    model: Annotated[str | None, _option("NAME", "The requests' model field.", REQUEST)] = None,
    backend: Annotated[
        str | None, _option("SPEC", "Who decides, such as torch:int8 or systemone=URL.", RUNNING)
    ] = None,
    concurrency: Annotated[int | None, _option("N", "Rows at once with a remote backend.", RUNNING)] = None,
    retries: Annotated[
        int | None, _option("N", "Tries after the first when a server says 'not now'; by default 8.", RUNNING)
    ] = None,
    group_rows: Annotated[
        int | None, _option("N", "Rows the model here decides together; by default 64.", RUNNING)
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(help="In this process, or by actors of Ray.", rich_help_panel=RUNNING),
    ] = Engine.local,
    actors: Annotated[
        int, typer.Option(metavar="N", min=1, help="Actors of Ray.", rich_help_panel=RUNNING)
    ] = 1,
    no_dedup: Annotated[bool, flag("--no-dedup", "Ask equal rows again.", RUNNING)] = False,
    restart: Annotated[bool, flag("--restart", "Forget what is done and begin anew.", RUNNING)] = False,
    retry_failed: Annotated[bool, flag("--retry-failed", "Ask failed rows again.", RUNNING)] = False,
    dry_run: Annotated[
        bool, flag("--dry-run", "Estimate rows, tokens, time and cost; write nothing.", RUNNING)
    ] = False,
    price: Annotated[float | None, _option("N", "Of a million tokens, for --dry-run.", RUNNING)] = None,
    model_path: ModelDir = None,
    adapter: Adapters = None,
    config: Config = None,
    device: Device = None,
    dtype: DType = None,
    threads: Threads = None,
    url: Url = None,
    api_key: ApiKey = None,
    timeout: Annotated[float | None, _option("SECONDS", "For one try; by default 120.", SERVER_PANEL)] = None,
    as_json: JSON = False,
) -> None:
    """Run `jev batch run`; see `RUN_HELP`."""
    with one_line_errors():
        from jev.batch.job import Job  # noqa: PLC0415 - not for --help

        asked = parse_questions(noul or (), choice or (), score or ())
        if asked and questions is not None:
            raise UsageError("--questions and --noul, --choice or --score: give one or the other")
        here = {
            "model": model_path,
            "config": config,
            "device": device,
            "dtype": dtype,
            "threads": threads,
            "adapters": adapter or None,
        }
        typed = any(value is not None for value in here.values())
        server = server_url(context, url, here=typed or backend is not None)
        given: dict[str, Any] = {
            "input": input,
            "output": output,
            "questions": asked or questions,
            "state_columns": tuple(state_column) if state_column else None,
            "id_column": id_column,
            "attachment_columns": tuple(attachment_column) if attachment_column else None,
            "attachments_root": attachments_root,
            "backend": backend,
            "ordered": False if unordered else None,
            "keep_input": keep_input or None,
            "dedup": False if no_dedup else None,
            "concurrency": concurrency,
            "retries": retries,
            "group_rows": group_rows,
            "review_below": review_below,
            "review": review,
            "options": {
                "model": model,
                "instructions": instructions,
                "layout": layout and layout.value,
                "samples": int(samples) if samples and samples.isdecimal() else samples,
                "seed": seed,
                "permutations": permutations,
                "calibration": calibration,
            },
        }
        job = Job.load(job_file, **given)
        source = context.get_parameter_source("url")
        # The backend of a job file wins over JEV_BASE_URL, but not over what was typed.
        in_file = "backend" in job.model_fields_set and source is not None and source.name != "COMMANDLINE"
        if server is not None and not in_file:
            job = job.model_copy(update={"backend": f"systemone={server}"})
        if timeout is not None and not timeout > 0:
            raise UsageError("--timeout must be more than 0")
        if price is not None and not 0 <= price < float("inf"):
            raise UsageError("--price must be 0 or more")
        flags = RunFlags(
            restart=restart,
            retry_failed=retry_failed,
            dry_run=dry_run,
            price=price,
            api_key=api_key,
            timeout=timeout,
            as_json=as_json,
            engine=engine.value,
            actors=actors,
        )
        code = run_job(job, load_settings(**here), flags)
    raise typer.Exit(code)


@app.command("status", help=STATUS_HELP)
def status(
    output: Annotated[Path, typer.Argument(help="The job's output file.")], as_json: JSON = False
) -> None:
    """Run `jev batch status`; see `STATUS_HELP`."""
    with one_line_errors():
        from jev.batch.ledger import read_totals  # noqa: PLC0415 - not for --help
        from jev.batch.run import ledger_of  # noqa: PLC0415

        totals, notes = read_totals(ledger_of(output))
        known = notes.get("input_rows")
        total = int(known) if known else None
        finished = notes.get("output_finished") == "1"
        report = {
            "rows": total,
            "answered": totals.answered,
            "failed": totals.failed,
            "copied": totals.copied,
            "input_tokens": totals.input_tokens,
            "output_tokens": totals.output_tokens,
            "finished": finished,
        }
    if as_json:
        typer.echo(json.dumps(report))
        return
    of = f" of {total:,}" if total is not None else ""
    typer.echo(
        f"{totals.done:,}{of} rows done: {totals.answered:,} answered, {totals.failed:,} failed; "
        f"{'finished' if finished else 'not finished'}"
    )
    typer.echo(one_line(f"{totals.input_tokens:,} + {totals.output_tokens:,} tokens"))
