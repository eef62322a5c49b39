"""`jev serve`: the HTTP server with settings from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from jev.calibration.file import load_calibrations
from jev.cli.errors import one_line_errors
from jev.cli.options import (
    MODEL_PANEL,
    Adapters,
    Config,
    Device,
    DType,
    Threads,
    check_loadable,
    flag,
    load_settings,
)

HELP = """
Serve decisions over HTTP until Ctrl+C or SIGTERM.

\b
jev serve
jev serve --model path/to/checkpoint --device cuda --dtype bfloat16
jev serve --model configs/mini.toml --port 9000
JEV_API_KEYS=secret jev serve --host 0.0.0.0

Every setting may also stand in a settings file or in the environment (JEV_PORT=9000); what is typed \
here wins, then the environment. API keys come only from JEV_API_KEYS or the file, so that no process \
list shows them.
"""

LISTEN = "Listening"
LIMITS = "Limits"
LOGS = "Logs"


def command(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|TOML",
            help="Checkpoint to serve, or a settings file; by default the embedded model.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None,
    config: Config = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model name that answers carry.", rich_help_panel=MODEL_PANEL),
    ] = None,
    device: Device = None,
    dtype: DType = None,
    threads: Threads = None,
    adapter: Adapters = None,
    calibration: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="A calibration that requests may name; repeatable.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS", help="Most tokens of a prompt with its canvas.", rich_help_panel=MODEL_PANEL
        ),
    ] = None,
    cache_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Memory for cached prefixes, such as 256MiB.", rich_help_panel=MODEL_PANEL
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Address to listen on; by default 127.0.0.1.", rich_help_panel=LISTEN
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="0 is any free one; by default 8000.", rich_help_panel=LISTEN),
    ] = None,
    rate_limit_rpm: Annotated[
        int | None,
        typer.Option(
            "--rate-limit",
            metavar="N",
            help="Requests a minute and key (or address); 0 is no limit.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    request_timeout_s: Annotated[
        float | None,
        typer.Option(
            "--request-timeout", metavar="SECONDS", help="Deadline of a request.", rich_help_panel=LIMITS
        ),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="debug, info, warning or error.", rich_help_panel=LOGS),
    ] = None,
    log_json: Annotated[bool, flag("--log-json", "One JSON object a line.", LOGS)] = False,
) -> None:
    """Run `jev serve`; see `HELP`."""
    with one_line_errors():
        settings = load_settings(
            model,
            config,
            name=name,
            device=device,
            dtype=dtype,
            threads=threads,
            adapters=adapter or None,
            calibrations=calibration or None,
            max_context=max_context,
            cache_bytes=cache_bytes,
            host=host,
            port=port,
            rate_limit_rpm=rate_limit_rpm,
            request_timeout_s=request_timeout_s,
            log_level=log_level,
            log_json=log_json or None,
        )
        check_loadable(settings)
        load_calibrations(settings.calibrations)  # a bad file is found before a model is loaded
        from jev.server import run  # noqa: PLC0415 - the web framework, which other commands do without

        run.serve(settings)
