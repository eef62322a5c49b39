"""`jev tune`: adapt a checkpoint to reviewed answers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jev.cli.errors import UsageError, one_line_errors
from jev.cli.options import (
    JSON,
    MODEL_PANEL,
    Config,
    Device,
    DType,
    Threads,
    check_loadable,
    flag,
    load_settings,
)
from jev.machine import memory, usable_cores

if TYPE_CHECKING:
    from jev.tune.recipe import Recipe

DATA = "Data"
WHAT = "What is trained"
HOW = "How it is trained"
RUN = "Run"

HELP = """
Adapt a checkpoint to rows with reviewed answers: a LoRA adapter, or all weights.

\b
jev tune --data reviewed.jsonl --questions questions.json --out support-v1
jev tune --data reviewed.jsonl --out support-v1 --minutes 20 --held-out held-out.jsonl
jev tune --data reviewed.jsonl --out support-v1 --teacher http://127.0.0.1:8000
jev serve --adapter support=support-v1

Rows are those of jev batch and jev quality: state, questions, answers, perhaps attachments, weight, soft. \
Bad rows are listed before anything is trained. Killed or stopped, the same command goes on where it was.

Exit code: 0 done, 1 the machine or the teacher fails, 2 the input is wrong, 130 or 143 stopped by a signal.
"""


class Stored(StrEnum):
    """Precision of a full checkpoint's tensors."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Precision(StrEnum):
    """Precision of the forward's matmuls."""

    float32 = "float32"
    bfloat16 = "bfloat16"


def _option(metavar: str, text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **more)


def command(
    data: Annotated[Path, _option("JSONL", "Labelled rows, as .jsonl or .jsonl.gz.", DATA)],
    out: Annotated[Path, _option("DIR", "Folder for the result; an unfinished one goes on.", RUN)],
    questions: Annotated[
        Path | None, _option("JSON", "Questions of rows that have none of their own.", DATA)
    ] = None,
    held_out: Annotated[
        str, _option("SHARE|JSONL", "Share of the states to measure with, or a file of rows.", DATA)
    ] = "0.1",
    limit: Annotated[int | None, _option("N", "Only the first N rows.", DATA, min=1)] = None,
    strict: Annotated[bool, flag("--strict", "Train nothing while any row is bad.", DATA)] = False,
    teacher: Annotated[
        str | None, _option("SPEC", "Backend whose probabilities are learned too: a URL, torch=DIR.", DATA)
    ] = None,
    soft_weight: Annotated[
        float,
        _option(
            "SHARE",
            "Share of the teacher or of soft labels beside a reviewed answer.",
            DATA,
            "--teacher-weight",
            min=0,
            max=1,
        ),
    ] = 0.5,
    teacher_key: Annotated[
        str | None, _option("KEY", "Bearer key of the teacher.", DATA, envvar="JEV_API_KEY")
    ] = None,
    instructions: Annotated[
        str | None, _option("TEXT", "Text before all questions, as it will be served.", DATA)
    ] = None,
    model: Annotated[
        str | None,
        _option("DIR", "Checkpoint to tune; by default the embedded model.", MODEL_PANEL),
    ] = None,
    config: Config = None,
    device: Device = None,
    dtype: DType = None,
    threads: Threads = None,
    full: Annotated[bool, flag("--full", "Train all weights instead of an adapter.", WHAT)] = False,
    rank: Annotated[int, _option("N", "Rank of the adapter.", WHAT, min=1, max=1024)] = 16,
    alpha: Annotated[
        float | None, _option("X", "The adapter is scaled by alpha / rank; by default twice the rank.", WHAT)
    ] = None,
    targets: Annotated[
        str | None, _option("A,B,...", "Projections that get an adapter; by default all seven.", WHAT)
    ] = None,
    stored: Annotated[
        Stored, typer.Option("--store", help="Precision of a --full checkpoint's file.", rich_help_panel=WHAT)
    ] = Stored.float32,
    name: Annotated[str | None, _option("NAME", "Name of a --full checkpoint.", WHAT)] = None,
    lr: Annotated[
        float | None, _option("X", "Learning rate; by default 1e-3, with --full 1e-4.", HOW)
    ] = None,
    batch: Annotated[int, _option("N", "States a step, in each process.", HOW, min=1)] = 16,
    rows: Annotated[int, _option("N", "Most tokens of one forward: memory.", HOW, min=1)] = 2048,
    steps: Annotated[int | None, _option("N", "Steps; by default 500.", HOW, min=0)] = None,
    epochs: Annotated[float | None, _option("X", "Looks at every row.", HOW)] = None,
    minutes: Annotated[float | None, _option("X", "Time of training and looks.", HOW)] = None,
    warmup: Annotated[
        float, _option("SHARE", "Share of the run in which the rate rises.", HOW, min=0, max=1)
    ] = 0.05,
    weight_decay: Annotated[float, _option("X", "Of matrices, as in AdamW.", HOW, min=0)] = 0.01,
    clip: Annotated[float, _option("X", "Largest norm of the gradient.", HOW)] = 1.0,
    draws: Annotated[int, _option("N", "Noise draws of each question and step.", HOW, min=1, max=32)] = 1,
    keep_order: Annotated[bool, flag("--keep-order", "Do not shuffle options.", HOW)] = False,
    subset: Annotated[
        float, _option("SHARE", "How often wrong options are left out.", HOW, min=0, max=1)
    ] = 0.3,
    undescribed: Annotated[
        float, _option("SHARE", "How often descriptions are left out.", HOW, min=0, max=1)
    ] = 0.2,
    precision: Annotated[
        Precision, typer.Option(help="Precision of matmuls; the weights keep theirs.", rich_help_panel=HOW)
    ] = Precision.float32,
    every: Annotated[
        int | None, _option("N", "Steps between looks at the held-out part; by default 10 looks.", HOW, min=1)
    ] = None,
    patience: Annotated[
        int, _option("N", "Looks without a lower loss that end it; 0 = it goes on.", HOW, min=0)
    ] = 5,
    seed: Annotated[int, _option("N", "Decides order, augmentation, noise and start.", HOW, min=0)] = 0,
    processes: Annotated[int, _option("N", "Processes that share the steps, on CPUs.", RUN, min=1)] = 1,
    shard: Annotated[bool, flag("--shard", "Spread the weights over the processes (FSDP).", RUN)] = False,
    restart: Annotated[
        bool,
        typer.Option("--restart/--resume", help="Begin anew, or go on where a run was.", rich_help_panel=RUN),
    ] = False,
    force: Annotated[bool, flag("--force", "Train although memory seems too small.", RUN)] = False,
    save_seconds: Annotated[
        float, _option("S", "Time between saves; a kill costs at most so much.", RUN, min=0)
    ] = 60.0,
    as_json: JSON = False,
) -> None:
    """Run `jev tune`; see `HELP`."""
    with one_line_errors():
        from jev.cli.tune_run import run_job  # noqa: PLC0415 - torch, which --help does without
        from jev.quality.data import read_questions  # noqa: PLC0415
        from jev.tune.recipe import Recipe  # noqa: PLC0415
        from jev.tune.run import Job  # noqa: PLC0415

        recipe = Recipe.of(
            full=full,
            rank=rank,
            alpha=alpha,
            targets=None if targets is None else tuple(part.strip() for part in targets.split(",")),
            lr=lr,
            batch=batch,
            rows=rows,
            steps=steps,
            epochs=epochs,
            minutes=minutes,
            warmup=warmup,
            weight_decay=weight_decay,
            clip=clip,
            draws=draws,
            shuffle=not keep_order,
            subset=subset,
            undescribed=undescribed,
            soft_weight=soft_weight,
            precision=precision.value,
            every=every,
            patience=patience,
            seed=seed,
            instructions=instructions,
            processes=processes,
            shard=shard,
        )
        _check(recipe, name=name, stored=stored)
        for option, path in (("--data", data), ("--out", out), ("--held-out", held_out)):
            _check_text(option, str(path))  # the report has them
        settings = load_settings(
            model, config, device=device, dtype=dtype, threads=threads or _threads(processes)
        )
        check_loadable(settings)
        job = Job(
            data=data,
            out=out,
            recipe=recipe,
            settings=settings,
            questions=None if questions is None else read_questions(questions),
            held_out=_held_out(held_out),
            teacher=teacher,
            teacher_key=teacher_key,
            limit=limit,
            strict=strict,
            force=force,
            restart=restart,
            stored=stored.value,
            name=name,
            free=memory()[1],
            save_seconds=save_seconds,
            reads=tuple(Path(one) for one in (questions, config) if one is not None),
        )
        code = run_job(job, as_json=as_json)
    if code:
        raise typer.Exit(code)


def _check(recipe: Recipe, *, name: str | None, stored: Stored) -> None:
    """Refuse combinations that have no meaning, before anything is read.

    Raises:
        UsageError: naming them.
        TuneError: the adapter's shape is none.
    """
    from jev.tune.trained import lora_config  # noqa: PLC0415 - torch

    if recipe.full and (recipe.targets or recipe.alpha is not None):
        raise UsageError("--full trains all weights, so --targets and --alpha have no meaning")
    if not recipe.full and (name is not None or stored is not Stored.float32):
        raise UsageError("--name and --store are for --full; an adapter is named by who serves it")
    if name is not None:
        _check_text("--name", name)
    if not recipe.full:
        lora_config(recipe)


def _check_text(option: str, text: str) -> None:
    if not text.strip() or not text.isprintable():
        raise UsageError(
            f"{option} {text!r}: it is empty, or has control characters or bytes that are no UTF-8"
        )


def _held_out(text: str) -> float | Path:
    """A share of the rows or a file of them."""
    try:
        share = float(text)
    except ValueError:
        path = Path(text)
        if not path.is_file():
            raise UsageError(f"--held-out {text}: it is neither a share of the rows nor a file") from None
        return path
    if not 0 <= share < 1:
        raise UsageError(f"--held-out {text}: a share is at least 0 and less than 1")
    return share


def _threads(processes: int) -> int | None:
    """Threads of each of several processes on this machine; None = torch decides."""
    return None if processes == 1 else max(1, int(usable_cores()) // processes)
