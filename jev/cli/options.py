"""What several commands take: the model to load and how, and the server to ask."""

from __future__ import annotations

import os
from enum import StrEnum
from functools import partial
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from jev import configs
from jev.adapters import load_adapters
from jev.cli.console import BAR_WIDTH, bar, shown, size
from jev.cli.errors import FailureError, UsageError
from jev.loading import check_pulled, load_engine
from jev.model import embedded
from jev.model.source import read_config
from jev.settings import Settings, SettingsError

if TYPE_CHECKING:
    from rich.status import Status

    from jev.engine import Engine

MODEL_PANEL = "Model"
SERVER_PANEL = "Server"
REQUEST = "Request"


class Layout(StrEnum):
    """The layouts of a request."""

    isolated = "isolated"
    joint = "joint"


Config: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TOML", help="Settings file.", rich_help_panel=MODEL_PANEL)
]
Device: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="DEVICE", help="Torch device, such as cpu or cuda:0.", rich_help_panel=MODEL_PANEL),
]
ModelDir: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Checkpoint folder or GGUF file to load; by default the embedded model.",
        rich_help_panel=MODEL_PANEL,
    ),
]
DType: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        help="auto, float32, bfloat16, float16, float8, int8 or int4.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Threads: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Torch threads.", rich_help_panel=MODEL_PANEL)
]
Adapters: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="NAME=FOLDER",
        help="An adapter that a model name may end in, as in jev-latest+NAME; repeatable.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Url: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Ask this server.", envvar="JEV_BASE_URL", rich_help_panel=SERVER_PANEL),
]
ApiKey: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Bearer key of the server.",
        envvar="JEV_API_KEY",
        rich_help_panel=SERVER_PANEL,
    ),
]

Samples: TypeAlias = Annotated[
    str | None, typer.Option(metavar="N|auto", help="Reads a question, 1 to 32.", rich_help_panel=REQUEST)
]
Seed: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Decides the slot noise.", rich_help_panel=REQUEST)
]


def flag(name: str, text: str, panel: str | None = None) -> Any:
    """An option without a value; with `name` it has no `--no-` twin."""
    return typer.Option(name, metavar="", help=text, rich_help_panel=panel)


JSON: TypeAlias = Annotated[bool, flag("--json", "Print one line of JSON.")]


def load_settings(model: str | None, config: str | None, **overrides: Any) -> Settings:
    """Read the settings with what was typed on top; a `model` that ends in .toml is a settings file.

    Raises:
        SettingsError: for a bad setting.
        UsageError: for two settings files.
    """
    if model is not None and Path(model).suffix == ".toml":
        if config is not None:
            raise UsageError(f"{model} and {config} are both settings files; give one")
        model, config = None, model
    return Settings.load(config_file(config), model=model, **overrides)


def config_file(config: str | None) -> Path | None:
    """The settings file that was typed, or that ships with the package under this name."""
    if config is None:
        return None
    # Not `Path.is_file`, which raises for a name that is too long and a folder that may not be entered.
    return Path(config) if isfile(config) else configs.path(config) or Path(config)  # noqa: PTH113


def check_writable(option: str, path: str | Path | None, *read: str | Path | None) -> Path | None:
    """The path, if it can be written and is none of what is `read`: found out before an hour of asking.

    Raises:
        UsageError: naming the option.
    """
    if path is None:
        return None
    file = Path(path)
    if not file.parent.is_dir() or file.is_dir():
        raise UsageError(f"{option} {shown(file)}: it is not a file in a folder that exists")
    if any(one is not None and file.resolve() == Path(one).resolve() for one in read):
        raise UsageError(f"{option} {shown(file)}: it is a file that is read")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"{option} {shown(file)}: it cannot be written")
    return file


def model_folder(settings: Settings) -> Path:
    """The folder of the checkpoint that the settings name.

    Raises:
        CheckpointError: it is one that has not been pulled.
    """
    check_pulled(settings)
    return settings.model or embedded.path()


def server_url(context: typer.Context, url: str | None, *, here: bool) -> str | None:
    """The server to ask, or None to use a model here; what is typed wins over JEV_BASE_URL.

    Args:
        context: of the command.
        url: from the command line or JEV_BASE_URL.
        here: whether an option of a model in this process was typed.

    Raises:
        UsageError: when both were typed.
    """
    source = context.get_parameter_source("url")
    if url and here and source is not None and source.name == "COMMANDLINE":
        raise UsageError("--url asks a server, so the options of a model loaded here have no meaning")
    return None if here else url or None


def check_loadable(settings: Settings) -> None:
    """Find what is wrong with the model's folder or the device before anything large is loaded.

    Raises:
        CheckpointError: it does not exist or has no usable config, or an adapter does not fit it.
        SettingsError: the device cannot be used.
    """
    folder = model_folder(settings)
    read_config(folder)
    load_adapters(settings.adapters, folder)  # cheap beside the model
    if settings.device != "cpu":
        import torch  # noqa: PLC0415 - seconds, and the CPU is always there

        try:
            torch.empty(1, device=settings.device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise SettingsError(f"device {settings.device!r} cannot be used: {reason}") from None


def load_model(settings: Settings, status: Status | None = None) -> Engine:
    """Load the model that the settings name.

    Args:
        settings: the model and how to load it.
        status: what is shown meanwhile, for how far it is.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        SettingsError: the device cannot be used.
        FailureError: there is not enough memory, or torch failed otherwise.
    """
    check_loadable(settings)
    try:
        return load_engine(settings, None if status is None else partial(_show_progress, status))
    except (RuntimeError, MemoryError) as error:
        raise FailureError(f"the model cannot be loaded: {error or type(error).__name__}") from error


def _show_progress(status: Status, done: int, total: int) -> None:
    status.update(f"loading the model {bar(done / total):{BAR_WIDTH}} {size(done)} of {size(total)}")
