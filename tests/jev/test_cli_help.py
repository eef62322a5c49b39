"""Proves that what the help of every command says reaches the reader: nothing of it is taken for markup."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from rich.text import Text

from jev.cli import app


def commands(group: object, name: str) -> Iterator[tuple[str, object]]:
    yield name, group
    for child, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{name} {child}")


EVERY = dict(commands(typer.main.get_command(app), "jev"))


def test_there_are_commands() -> None:
    assert {"jev ask", "jev serve", "jev batch run", "jev quality run", "jev calibrate"} <= set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_no_help_text_is_eaten_as_markup(name: str) -> None:
    command = EVERY[name]
    texts = [getattr(command, "help", None), *(getattr(one, "help", None) for one in command.params)]  # type: ignore[attr-defined]
    for text in filter(None, texts):
        assert Text.from_markup(text).plain == text.replace("\b", "")  # a mark of click's, not text
