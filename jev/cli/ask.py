"""`jev ask`: questions on the command line, answers as a table or as JSON."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from typing import Annotated, Any, TypedDict

import typer

from jev._attachments import LoadedFile
from jev._body import DEFAULT_MODEL
from jev._draft import Draft
from jev.cli.attach import check_attachments, coverage_lines, load_attachments
from jev.cli.body import build_body
from jev.cli.console import Screen, one_line, spinner
from jev.cli.errors import FailureError, UsageError, one_line_errors
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
    load_model,
    load_settings,
    server_url,
)
from jev.cli.questions import parse_questions
from jev.cli.tables import show_decision, show_footer
from jev.client import Jev
from jev.errors import InvalidRequestError, NotFoundError
from jev.local import LocalJev
from jev.model import embedded
from jev.results import Decision
from jev.schemas import BadRequestError, SystemOneResponse, parse_request
from jev.settings import Settings

QUESTIONS = "Questions (each may be repeated)"
STATE = "State and body"
READING = "Reading attachments here"

HELP = """
Ask questions about a text. The model runs in this process unless there is a URL.

\b
jev ask "My card was charged twice!" --noul "Is it about money?"
jev ask "..." --noul "urgent=Is it urgent?" --choice "team=billing,technical"
jev ask "..." --choice "team: Which team?=billing,technical,sales"
jev ask "..." --score "mood: How is the mood?=calm,annoyed,furious"
cat mail.txt | jev ask --noul "spam=Is it spam?" --json
jev ask --attach invoice.pdf --noul "Is it paid?"
jev ask --file request.json

An ID only names an answer: the model does not see it. Descriptions of options, and names with '=' \
or commas, need a JSON body (--file); what is typed besides is added to it or replaces it.

Exit code: 0 answered, 2 the input is wrong, 1 anything else.
"""

Many = list[str] | None


class _Server(TypedDict):
    """The server to ask, and how."""

    url: str
    api_key: str | None
    timeout: float


def command(
    context: typer.Context,
    state: Annotated[
        str | None,
        typer.Argument(help="The text that the questions are about; without it, standard input is read."),
    ] = None,
    noul: Annotated[
        Many,
        typer.Option(
            metavar="QUESTION", help="Yes or no: QUESTION or ID=QUESTION.", rich_help_panel=QUESTIONS
        ),
    ] = None,
    choice: Annotated[
        Many,
        typer.Option(
            metavar="LIST",
            help="One of several: ID=OPTION,OPTION or 'ID: QUESTION=OPTION,OPTION'.",
            rich_help_panel=QUESTIONS,
        ),
    ] = None,
    score: Annotated[
        Many,
        typer.Option(
            metavar="LIST",
            help="A level on a scale, lowest first: as --choice.",
            rich_help_panel=QUESTIONS,
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            metavar="JSON",
            help="A whole /v1/systemone body; '-' is standard input.",
            rich_help_panel=STATE,
        ),
    ] = None,
    state_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Read the state from a file.", rich_help_panel=STATE)
    ] = None,
    state_json: Annotated[bool, flag("--state-json", "The state is JSON, not text.", STATE)] = False,
    attach: Annotated[
        Many,
        typer.Option(
            metavar="PATH",
            help="A file that belongs to the state: document, mail, picture, video or recording; repeatable.",
            rich_help_panel=STATE,
        ),
    ] = None,
    instructions: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Text before all questions.", rich_help_panel=REQUEST),
    ] = None,
    layout: Annotated[
        Layout | None,
        typer.Option(help="Each question alone, or all on one canvas.", rich_help_panel=REQUEST),
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="Reads a question, 1 to 32.", rich_help_panel=REQUEST),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Decides the slot noise.", rich_help_panel=REQUEST)
    ] = None,
    permutations: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Rotations of a choice's options to average.", rich_help_panel=REQUEST
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The request's model field.", rich_help_panel=REQUEST),
    ] = None,
    diagnostics: Annotated[
        bool,
        flag("--diagnostics", "Show reads, entropies, timings and what was read of attachments.", REQUEST),
    ] = False,
    full_diagnostics: Annotated[
        bool,
        flag("--full-diagnostics", "Also token and noise ids; they are in the JSON only.", REQUEST),
    ] = False,
    model_path: ModelDir = None,
    adapter: Adapters = None,
    config: Config = None,
    device: Device = None,
    dtype: DType = None,
    threads: Threads = None,
    speech_model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|NAME", help="faster-whisper model that hears recordings.", rich_help_panel=READING
        ),
    ] = None,
    ocr: Annotated[
        bool | None,
        typer.Option(
            "--ocr/--no-ocr",
            help="Read the text in pictures; by default if the model sees none.",
            rich_help_panel=READING,
        ),
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="For one try.", rich_help_panel=SERVER_PANEL),
    ] = 60.0,
    local: Annotated[
        bool,
        flag("--local", "Load the model here even if JEV_BASE_URL is set.", SERVER_PANEL),
    ] = False,
    as_json: JSON = False,
) -> None:
    """Run `jev ask`; see `HELP`."""
    with one_line_errors():
        files = load_attachments(attach or ())
        body = build_body(
            file=file,
            state=state,
            state_file=state_file,
            state_json=state_json,
            questions=parse_questions(noul or (), choice or (), score or ()),
            options={
                "model": model,
                "instructions": instructions,
                "layout": layout and layout.value,
                "samples": int(samples) if samples and samples.isdecimal() else samples,
                "seed": seed,
                "permutations": permutations,
                "diagnostics": "full" if full_diagnostics else diagnostics or None,
            },
            attached=bool(files),
        )
        here: dict[str, Any] = {
            "model": model_path,
            "config": config,
            "device": device,
            "dtype": dtype,
            "threads": threads,
            "adapters": adapter or None,
            "speech_model": speech_model,
            "ocr": None if ocr is None else "on" if ocr else "off",
        }
        typed = local or any(value is not None for value in here.values())
        server = server_url(context, url, here=typed)
        if server is not None:
            asked: _Server = {"url": server, "api_key": api_key, "timeout": timeout}
            decision, timing = _ask_server(body, files, asked)
        else:
            _choose_adapter(body, adapter or [])
            decision, timing = _ask_here(body, files, load_settings(**here))
        if as_json:
            typer.echo(wire_json(decision))
            return
        _show(decision, body["questions"], timing)


def _choose_adapter(body: dict[str, Any], adapters: list[str]) -> None:
    """Ask the one adapter that was typed, where the request names no model.

    Raises:
        UsageError: there are several, so that nobody knows which is meant.
    """
    if not adapters or "model" in body:
        return
    # One name for two folders is refused where they are read.
    names = list(dict.fromkeys(f"{DEFAULT_MODEL}+{one.partition('=')[0]}" for one in adapters))
    if len(names) > 1:
        raise UsageError(f"which adapter shall answer? --model is one of {', '.join(names)}")
    body["model"] = names[0]


def wire_json(decision: Decision) -> bytes:
    """The response body that a server sends for this decision, byte for byte."""
    response = SystemOneResponse(
        model=decision.model,
        answers=decision.answers,
        usage=decision.usage,
        x_warnings=list(decision.warnings) or None,
        x_diagnostics=decision.diagnostics,
    ).model_dump(mode="json")
    for key in ("x_warnings", "x_diagnostics"):
        if response[key] is None:
            del response[key]
    return json.dumps(response, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _ask_server(body: dict[str, Any], files: list[LoadedFile], server: _Server) -> tuple[Decision, list[str]]:
    try:
        client = Jev(server["url"], server["api_key"], timeout=server["timeout"])
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not server["timeout"] > 0:
        raise UsageError("--timeout must be more than 0")
    with client, spinner().status("asking the server"):
        started = time.perf_counter()
        decision = _decide(client, body, files)
        return decision, [f"{time.perf_counter() - started:.2f} s"]


def _ask_here(
    body: dict[str, Any], files: list[LoadedFile], settings: Settings
) -> tuple[Decision, list[str]]:
    whole = Draft.of(body["state"], body["questions"], {"extra_body": body, "attachments": files}).complete()
    try:
        request, _ = parse_request(whole)  # before the model is loaded, which takes longer
    except BadRequestError as error:
        raise InvalidRequestError.of(error.issues) from None
    check_attachments(request, settings)
    with spinner().status("loading the model") as status, ExitStack() as stack:
        started = time.perf_counter()
        local = stack.enter_context(LocalJev(engine=load_model(settings, status), settings=settings))
        loaded = time.perf_counter()
        status.update("reading")
        try:
            decision = _decide(local, body, files)
        except NotFoundError as error:
            raise UsageError(
                f"model: {error.message}; --model-path loads another checkpoint, --adapter an adapter"
            ) from None
        except (ArithmeticError, RuntimeError, MemoryError) as error:
            raise FailureError(f"the model failed: {error or type(error).__name__}") from error
        finished = time.perf_counter()
    return decision, [f"{finished - loaded:.2f} s", f"loaded in {loaded - started:.1f} s"]


def _decide(jev: Jev | LocalJev, body: dict[str, Any], files: list[LoadedFile]) -> Decision:
    return jev.decide(body["state"], body["questions"], extra_body=body, attachments=files)


def _show(decision: Decision, questions: dict[str, Any], timing: list[str]) -> None:
    screen = Screen.standard()
    show_decision(screen, decision, questions)
    notes = list(coverage_lines(decision))
    if decision.model == embedded.NAME:
        notes.append(f"{embedded.NAME} is a small model for trying jev (see README)")
    show_footer(screen, decision, timing, notes)
    sys.stdout.flush()
    for warning in decision.warnings:
        where = ".".join(map(str, warning.loc))
        typer.echo(f"warning: {one_line(f'{where}: {warning.msg}')}", err=True)
