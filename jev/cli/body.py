"""From arguments, files and standard input to a request body."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from jev.cli.errors import UsageError
from jev.cli.questions import check_questions
from jev.schemas import BadRequestError, parse_json

STDIN = "-"


def build_body(
    *,
    file: str | None,
    state: str | None,
    state_file: str | None,
    state_json: bool,
    questions: dict[str, dict[str, Any]],
    options: dict[str, Any],
    attached: bool = False,
) -> dict[str, Any]:
    """Put a request body together. What is typed wins over what `file` says.

    Args:
        file: path of a JSON body, `-` for standard input.
        state: the state itself, `-` for standard input.
        state_file: path of the state, `-` for standard input.
        state_json: whether the state's text is JSON.
        questions: questions by id; they are added to those of `file`.
        options: other fields of the body; those that are None are left out.
        attached: whether there are attachments; then the state may be empty.

    Raises:
        UsageError: when there is no state, no question, or a file cannot be used.
    """
    body = _read_body(file) if file is not None else {}
    asked = {**check_questions(body.get("questions", {})), **questions}
    if not asked:
        raise UsageError("no question: use --noul, --choice, --score or --file")
    body["questions"] = asked
    text = _state_text(state, state_file, file, wanted="state" not in body, attached=attached)
    if text is not None:
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            raise UsageError("state: it is not valid UTF-8 text") from None
        body["state"] = _parse("state", raw) if state_json else text
    body.update({name: value for name, value in options.items() if value is not None})
    return body


def _read_body(file: str) -> dict[str, Any]:
    body = _parse(_shown(file), _read(file))
    if not isinstance(body, dict):
        raise UsageError(f"{_shown(file)}: a request body is a JSON object with a state and questions")
    return body


def _state_text(
    state: str | None, state_file: str | None, file: str | None, *, wanted: bool, attached: bool
) -> str | None:
    """The state's text from wherever it was given; from a pipe only when nothing else gave one."""
    if state is not None and state_file is not None:
        raise UsageError("the state is given twice: as an argument and with --state-file")
    source = STDIN if state == STDIN else state_file
    if state is not None and source is None:
        return state
    if source is None:
        if not wanted:
            return None
        if file == STDIN or sys.stdin is None or sys.stdin.isatty():
            if attached:
                return ""
            raise UsageError("no state: give it as an argument, with --state-file or a pipe")
        source = STDIN
    elif source == STDIN and file == STDIN:
        raise UsageError("standard input cannot be both the body and the state")
    try:
        text = _read(source).decode()
    except UnicodeDecodeError:
        raise UsageError(f"{_shown(source)}: the state is not UTF-8 text") from None
    if not text.strip() and not (attached and state is None and state_file is None):
        raise UsageError(
            f"{_shown(source)} is empty; give the state as an argument, with --state-file or a pipe"
        )
    # The line break that echo and editors add is not part of what is meant.
    return text.removesuffix("\n").removesuffix("\r")


def read_text() -> str:
    """The text that is piped in.

    Raises:
        UsageError: nothing is piped in, or it is not UTF-8.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("no prompt: give it with --prompt or a pipe")
    try:
        return _read(STDIN).decode()
    except UnicodeDecodeError:
        raise UsageError("standard input: it is not UTF-8 text") from None


def _read(file: str) -> bytes:
    if file == STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from None


def _parse(where: str, text: bytes) -> Any:
    try:
        return parse_json(text)
    except BadRequestError as error:
        raise UsageError(f"{where}: {error.issues[0].msg}") from None


def _shown(file: str) -> str:
    return "standard input" if file == STDIN else file
