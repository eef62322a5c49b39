"""`jev generate`: a text on the command line, drawn while its canvases are refined."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jev.cli.body import read_text
from jev.cli.console import Screen, one_line, spinner
from jev.cli.errors import FailureError, UsageError, one_line_errors
from jev.cli.options import (
    JSON,
    Config,
    Device,
    DType,
    ModelDir,
    Threads,
    check_loadable,
    load_model,
    load_settings,
    model_folder,
)
from jev.model.config import ModelConfig
from jev.model.source import read_config
from jev.model.writing import Options
from jev.settings import Settings

if TYPE_CHECKING:
    from jev.engine import Engine
    from jev.model.denoise import Generation
    from jev.model.packed import ImageSpan
    from jev.model.pixels import Patches

HELP = """
Write a text. The model runs in this process.

\b
jev generate -p "Why is the sky blue?"
jev generate -p "What is in the picture?" --image photo.png
jev generate -p "..." --max-tokens 512 --seed 7 --json
cat question.txt | jev generate --diffusion-sampler confidence-threshold --threshold 0.8

A terminal shows every canvas while it is refined: dim what the next step may change. Defaults are the \
checkpoint's own; one seed gives one text. Steps and speed are on standard error.

Exit code: 0 written, 2 the input is wrong, 1 anything else.
"""

LENGTH = "Length"
STEPS = "Denoising steps"


class SamplerName(StrEnum):
    """The samplers."""

    entropy_bound = "entropy-bound"
    confidence_threshold = "confidence-threshold"


def _whole(text: str, panel: str) -> Any:
    return typer.Option(metavar="N", help=text, rich_help_panel=panel)


def _number(text: str) -> Any:
    return typer.Option(metavar="X", help=text, rich_help_panel=STEPS)


def command(
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="What to answer; without it, standard input."),
    ] = None,
    system: Annotated[str, typer.Option(metavar="TEXT", help="The system turn before it.")] = "",
    image: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A picture before the prompt; repeatable."),
    ] = None,
    max_tokens: Annotated[int | None, _whole("Most tokens of the text.", LENGTH)] = None,
    blocks: Annotated[int | None, _whole("Most canvases.", LENGTH)] = None,
    max_canvas: Annotated[int | None, _whole("Width of a canvas; at most the checkpoint's.", LENGTH)] = None,
    full_canvas: Annotated[
        bool | None,
        typer.Option(
            "--full-canvas/--short-canvas",
            help="Whether the last canvas is as wide as the others, or what is left.",
            rich_help_panel=LENGTH,
        ),
    ] = None,
    min_canvas: Annotated[int | None, _whole("Least width of a short last canvas.", LENGTH)] = None,
    seed: Annotated[int | None, _whole("Decides every draw.", STEPS)] = None,
    max_denoising_steps: Annotated[int | None, _whole("Most steps of a canvas, 1 to 1000.", STEPS)] = None,
    diffusion_sampler: Annotated[
        SamplerName | None,
        typer.Option(metavar="NAME", help="entropy-bound or confidence-threshold.", rich_help_panel=STEPS),
    ] = None,
    threshold: Annotated[
        float | None, _number("confidence-threshold: least probability of a token that is kept, 0 to 1.")
    ] = None,
    entropy_bound: Annotated[
        float | None, _number("entropy-bound: nats that the kept tokens may have together.")
    ] = None,
    t_min: Annotated[float | None, _number("Temperature that the last step comes close to.")] = None,
    t_max: Annotated[float | None, _number("Temperature of the first step.")] = None,
    stability: Annotated[
        int | None, _whole("Steps that must agree before a canvas is final early.", STEPS)
    ] = None,
    confidence: Annotated[
        float | None, _number("Mean entropy in nats under which a canvas may be final early.")
    ] = None,
    self_conditioning: Annotated[
        bool | None,
        typer.Option(
            "--self-conditioning/--no-self-conditioning",
            help="Whether a step is told what the one before predicted.",
            rich_help_panel=STEPS,
        ),
    ] = None,
    model: ModelDir = None,
    config: Config = None,
    device: Device = None,
    dtype: DType = None,
    threads: Threads = None,
    as_json: JSON = False,
) -> None:
    """Run `jev generate`; see `HELP`."""
    with one_line_errors():
        text = _prompt_text(prompt)
        _check_utf8("--system", system)
        files = [(path, _bytes(path)) for path in image or ()]
        settings = load_settings(model, config, device=device, dtype=dtype, threads=threads)
        check_loadable(settings)
        folder = model_folder(settings)
        options = _options(
            read_config(folder),
            max_tokens=max_tokens,
            blocks=blocks,
            max_canvas=max_canvas,
            full_canvas=full_canvas,
            min_canvas=min_canvas,
            seed=seed,
            max_denoising_steps=max_denoising_steps,
            sampler=diffusion_sampler and diffusion_sampler.value,
            threshold=threshold,
            entropy_bound=entropy_bound,
            t_min=t_min,
            t_max=t_max,
            stability=stability,
            confidence=confidence,
            self_conditioning=self_conditioning,
        )
        with spinner().status("loading the model") as status:
            engine = load_model(settings, status)
        warning = engine.warning and f"{one_line(engine.warning)}; --model loads another"
        if warning:
            typer.echo(f"warning: {warning}", err=True)
        screen = Screen.standard()
        started = time.perf_counter()
        try:
            generation = _start(engine, text, system, _patches(engine, settings, files), options)
            _run(engine, generation, screen, draw=not (screen.plain or as_json))
        except (ArithmeticError, RuntimeError, MemoryError) as error:
            raise FailureError(f"the model failed: {error or type(error).__name__}") from error
        seconds = time.perf_counter() - started
        written = engine.context.tokenizer.decode(engine.context.template.shown(generation.tokens))
        if as_json:
            typer.echo(json.dumps(_report(engine, generation, written, seconds, warning), ensure_ascii=False))
            return
        _print(screen, written)
        typer.echo(_footer(screen, engine, generation, seconds), err=True)


def _prompt_text(prompt: str | None) -> str:
    text = read_text() if prompt is None else prompt
    _check_utf8("--prompt", text)
    if not text.strip():
        raise UsageError("the prompt is empty; give it with --prompt or a pipe")
    return text.strip()


def _check_utf8(option: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{option}: it is not valid UTF-8 text") from None


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"--image {path}: cannot be read ({error.strerror})") from None


def _options(config: ModelConfig, **given: Any) -> Options:
    """Options with the checkpoint's defaults; one that is wrong is named as it is typed."""
    try:
        return Options.of(config, **given)
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        option = "--diffusion-sampler" if name == "sampler" else f"--{name.replace('_', '-')}"
        raise UsageError(f"{option} {rest}") from None


def _patches(engine: Engine, settings: Settings, files: Sequence[tuple[str, bytes]]) -> list[Patches]:
    """The pictures as the vision tower takes them; they are decoded in a process of their own."""
    if not files:
        return []
    vision = engine.context.vision
    if vision is None:
        raise UsageError(f"--image: {one_line(engine.name)} has no vision tower, so it cannot see pictures")
    from PIL import Image  # noqa: PLC0415 - only for pictures

    from jev.attachments import Source, reader_of  # noqa: PLC0415 - only for pictures
    from jev.model.pixels import patches_of  # noqa: PLC0415 - only for pictures

    reader = reader_of(settings, has_vision=True)
    try:
        sources = [Source(("--image",), "images", Path(path).name, data) for path, data in files]
        pictures = reader.read_sync(sources).pictures
    finally:
        reader.close()
    found = []
    for (path, _), picture in zip(files, pictures, strict=True):
        try:
            with Image.open(io.BytesIO(picture.png)) as image:
                found.append(patches_of(image, vision, engine.context.soft_tokens))
        except ValueError as error:
            raise UsageError(f"--image {path}: {error}") from None
    return found


def _start(
    engine: Engine, text: str, system: str, pictures: Sequence[Patches], options: Options
) -> Generation:
    from jev.model.denoise import Generation  # noqa: PLC0415 - torch is loaded with the model
    from jev.model.packed import ImageSpan  # noqa: PLC0415 - the same

    template = engine.context.template
    ids = template.chat([*(one.tokens for one in pictures), text], system.strip())
    spans: list[ImageSpan] = []
    if pictures:
        assert engine.model.vision is not None
        starts = [index + 1 for index, one in enumerate(ids) if one == template.image_start]
        spans = [
            ImageSpan(start, engine.model.vision(one)) for start, one in zip(starts, pictures, strict=True)
        ]
    try:
        return Generation(engine.model, ids, options, images=spans)
    except ValueError as error:
        raise UsageError(f"--prompt, --max-tokens: {error}") from None


def _run(engine: Engine, generation: Generation, screen: Screen, *, draw: bool) -> None:
    if not draw:
        with spinner().status("writing"):
            while not generation.done:
                generation.step()
        return
    from jev.cli.live import drawing  # noqa: PLC0415 - only for terminals

    with drawing(screen.console, engine) as draft:
        while not generation.done:
            draft.show(generation, generation.step())


def _print(screen: Screen, text: str) -> None:
    """The text as it is for a file or a pipe, and without control characters for a terminal."""
    from jev.cli.live import printable  # noqa: PLC0415 - rich.live is not needed before

    shown = printable(text) if screen.console.is_terminal else text
    typer.echo(shown, nl=not shown.endswith("\n"), color=True)  # color: nothing is taken out of it


def _report(
    engine: Engine, generation: Generation, text: str, seconds: float, warning: str | None
) -> dict[str, Any]:
    report: dict[str, Any] = {
        "model": engine.name,
        "text": text,
        "tokens": list(generation.tokens),
        "finish_reason": generation.finish,
        "seed": generation.options.seed,
        "usage": {
            "prompt_tokens": generation.prompt_tokens,
            "completion_tokens": len(generation.tokens),
        },
        "canvases": len(generation.committed),
        "denoising_steps": generation.steps,
        "tokens_per_forward": round(generation.tokens_per_forward, 3),
        "seconds": round(seconds, 3),
    }
    return report if warning is None else {**report, "warning": warning}


def _footer(screen: Screen, engine: Engine, generation: Generation, seconds: float) -> str:
    steps, canvases = generation.steps, len(generation.committed)
    parts = [
        one_line(engine.name),
        f"{len(generation.tokens)} token{'s' * (len(generation.tokens) != 1)} ({generation.finish})",
        f"{steps} step{'s' * (steps != 1)} on {canvases} canvas{'es' * (canvases != 1)}",
        f"{generation.tokens_per_forward:.2f} tokens per forward",
        f"{seconds:.1f} s",
        f"seed {generation.options.seed}",
    ]
    return screen.separator.join(parts)
