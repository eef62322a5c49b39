"""`jev adapter`: look at a LoRA adapter, or merge one into a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from jev.cli.console import Screen, number, one_line, size
from jev.cli.errors import FailureError, UsageError, one_line_errors
from jev.cli.options import JSON
from jev.model import embedded
from jev.model.source import gguf_path

if TYPE_CHECKING:
    from jev.model.lora import Adapter, AdapterFacts

HELP = "Look at adapters, or merge one into its checkpoint."

SHOW_HELP = """
Say what an adapter holds, and with --model whether it fits a checkpoint.

\b
jev adapter show support
jev adapter show support --model path/to/checkpoint
"""

MERGE_HELP = """
Write a checkpoint with an adapter merged into its weights. It is loaded like any other.

\b
jev adapter merge --adapter support --out merged
jev serve --model merged
"""

app = typer.Typer(name="adapter", help=HELP, no_args_is_help=True)


class Stored(StrEnum):
    """Types that changed weights can be written in."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@app.command("show", help=SHOW_HELP)
def show(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The adapter.")],
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Check it against this checkpoint.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Run `jev adapter show`; see `SHOW_HELP`."""
    with one_line_errors():
        from jev.model.lora import adapter_facts  # noqa: PLC0415 - torch

        facts = adapter_facts(folder)
        if model is not None:
            _read(folder, model)
        if as_json:
            body = {**dataclasses.asdict(facts), "path": str(folder)}
            if isinstance(facts.alpha, float) and not math.isfinite(facts.alpha):
                body["alpha"] = str(facts.alpha)  # JSON has no such number
            # JSON can hold half a surrogate pair, which UTF-8 cannot.
            text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
            typer.echo(text.encode(errors="replace"))
            return
        _show(facts, folder, model)


@app.command("merge", help=MERGE_HELP)
def merge(
    adapter: Annotated[Path, typer.Option(metavar="FOLDER", help="The adapter.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; it must not hold anything.")],
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Its checkpoint; by default the embedded model.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the new model; by default BASE+ADAPTER.")
    ] = None,
    dtype: Annotated[Stored, typer.Option(help="Type of the weights that change.")] = Stored.float32,
) -> None:
    """Run `jev adapter merge`; see `MERGE_HELP`."""
    with one_line_errors():
        import torch  # noqa: PLC0415 - seconds, which --help does without

        from jev.model.lora import checkpoint_name, merge_checkpoint  # noqa: PLC0415

        source = model or embedded.path()
        if name is not None and not name.strip():
            raise UsageError("--name: it is empty")
        if source.exists() and gguf_path(source) is not None:
            raise UsageError(
                f"{source} is a GGUF file, into which nothing is merged; serve the adapter with it"
            )
        loaded = _read(adapter, source)
        called = name or f"{checkpoint_name(source)}+{adapter.resolve().name}"
        try:
            merge_checkpoint(source, loaded, out, name=called, dtype=getattr(torch, dtype.value))
        except OSError as error:
            raise FailureError(f"--out {out}: cannot be written ({error.strerror or error})") from None
        typer.echo(f"wrote {out} ({one_line(called)}); serve it with: jev serve --model {out}")


def _read(folder: Path, model: Path) -> Adapter:
    """The adapter, checked against a checkpoint.

    Raises:
        CheckpointError: it does not fit, or one of them cannot be read.
    """
    from jev.model.lora import load_adapter  # noqa: PLC0415 - torch
    from jev.model.source import read_config  # noqa: PLC0415
    from jev.model.weights.identity import weights_digest  # noqa: PLC0415

    if not model.exists():
        raise UsageError(f"{model} is not a checkpoint folder")
    config = read_config(model)
    return load_adapter(folder, config.text, base_fingerprint=weights_digest(model))


def _show(facts: AdapterFacts, folder: Path, model: Path | None) -> None:
    screen = Screen.standard()
    table = screen.grid(2)
    base = facts.base_name or "not said"
    if facts.base_fingerprint:
        base += f" (weights {facts.base_fingerprint[:12]})"
    for title, value in (
        ("rank", str(facts.rank)),
        ("alpha", f"{facts.alpha:g}" if isinstance(facts.alpha, float) else str(facts.alpha)[:40]),
        ("targets", ", ".join(facts.targets) or "none"),
        ("layers", str(facts.layers)),
        ("base", base),
        ("parameters", number(facts.parameters)),
        ("weights", size(facts.file_bytes)),
        ("path", str(folder)),
        *([("fits", str(model))] if model is not None else []),
    ):
        table.add_row(Text(f"  {title}", "dim"), one_line(value))
    screen.show(table)
