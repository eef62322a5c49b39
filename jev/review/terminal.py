"""A review on a terminal: one item a screen, one key a decision."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.text import Text

from jev.review import keys
from jev.review.keys import Keys
from jev.review.queue import Item
from jev.review.session import Session
from jev.review.view import (
    FEW,
    FIND,
    LATER,
    MORE,
    QUIT,
    UNDO,
    UNSURE,
    Option,
    instructions_of,
    matching,
    one_line,
    options_of,
    text_of,
)

LEAST_LINES = 4
"""Lines of the state that are shown at least."""


class Terminal:
    """Goes through a session.

    Args:
        session: the review.
        console: where it is shown.
        keyboard: where keys come from.
    """

    def __init__(self, session: Session, console: Console, keyboard: Keys) -> None:
        self._session = session
        self._console = console
        self._keyboard = keyboard
        self._note = ""
        self._first = 0  # line of the state
        self._lines: list[Text] = []
        self._wrapped: tuple[Item, int] | None = None
        self._room = LEAST_LINES

    def run(self) -> None:
        """Until the reviewer quits (also by Ctrl+C or Ctrl+D), or all is decided and confirmed.

        Raises:
            OSError: a decision could not be kept.
        """
        try:
            while self._step():
                pass
        except (KeyboardInterrupt, EOFError):
            return

    def _step(self) -> bool:
        """Show where it stands and do what a key says; False for the end."""
        item = self._session.current
        if item is None:
            self._show(Text(self._progress()), Text("\nThat was the last one."), self._help_at_end())
        else:
            self._show(self._head(item), self._body(item))
        self._note = ""
        key = self._keyboard.read()
        key = key.lower() if len(key) == 1 else key
        if key == QUIT or (item is None and key == keys.ENTER):
            return False
        if key == UNDO:
            if self._session.undo():
                self._first = 0
            else:
                self._note = "there is nothing to undo"
        elif item is not None:
            self._decide(item, key)
        return True

    def _decide(self, item: Item, key: str) -> None:
        options = options_of(item)
        # Options beyond the likeliest have no key, and a terminal that has changed its size gives none.
        chosen = next((option for option in options if key and option.key == key), None)
        if chosen is not None:
            self._next(lambda: self._session.answer(chosen.index))
        elif key == keys.ENTER:
            if item.proposed is None:
                self._note = "there is no answer to accept"
            else:
                proposed = item.proposed
                self._next(lambda: self._session.answer(proposed))
        elif key == LATER:
            self._next(self._session.later)
        elif key == UNSURE:
            self._next(self._session.unsure)
        elif key == MORE:
            self._first += self._room
            if self._first >= len(self._lines):
                self._first = 0
        elif key == keys.PASTE:
            self._note = "what is pasted decides nothing"
        elif key == FIND:
            found = self._find(item, options)
            if found is not None:
                self._next(lambda: self._session.answer(found.index))
        elif key:
            self._note = f"{key!r} is no key here"

    def _next(self, decide: Callable[[], None]) -> None:
        decide()
        self._first = 0

    def _find(self, item: Item, options: list[Option]) -> Option | None:
        """The option that is found by typing; None if the reviewer goes back."""
        typed, at = "", 0
        while True:
            found = matching(options, typed)
            at = min(at, max(0, len(found) - 1))
            self._show(self._head(item), self._found(typed, found, at))
            key = self._keyboard.read()
            if key == keys.ESCAPE or (key == keys.BACKSPACE and not typed):
                return None
            if key == keys.ENTER and found:
                return found[at]
            if key == keys.BACKSPACE:
                typed, at = typed[:-1], 0
            elif key in (keys.DOWN, keys.TAB) and found:
                at = (at + 1) % len(found)
            elif key == keys.UP and found:
                at = (at - 1) % len(found)
            elif len(key) == 1:
                typed, at = typed + key, 0

    def _show(self, *parts: RenderableType) -> None:
        self._console.clear()
        self._console.print(Group(*parts))

    def _progress(self) -> str:
        summary = self._session.summary
        at = min(self._session.position + 1, self._session.total)
        parts = [
            f"{at} of {self._session.total}",
            f"{summary.reviewed} reviewed",
            f"{summary.corrected} corrected",
            f"{summary.skipped} skipped",
        ]
        return " | ".join(parts)

    def _head(self, item: Item) -> Text:
        head = Text(self._progress(), "dim", overflow="ellipsis", no_wrap=True)
        about = [f"row {item.number}"]
        if item.row.id is not None:
            about.append(f"id {one_line(item.row.id)[:80]}")
        if item.certainty is not None:
            about.append(f"certainty {item.certainty:.2f}")
        return head.append("\n" + " | ".join(about))

    def _body(self, item: Item) -> Group:
        """The state as far as there is room, the question, its options and the keys."""
        options = options_of(item)
        tail = [*self._question(item), self._options(options), Text(), self._help(item, options)]
        files = [Text(f"attached: {one_line(file.name)}", "cyan") for file in item.files]
        height = self._console.height
        used = sum(len(self._console.render_lines(part, pad=False)) for part in (*tail, *files))
        self._room = max(LEAST_LINES, height - used - 5)
        return Group(Text(), *self._state(item), *files, *tail)

    def _state(self, item: Item) -> list[Text]:
        width = self._console.width
        if self._wrapped != (item, width):
            text = text_of(item.row.state) if item.row.state else ""
            self._lines = list(Text(text).wrap(self._console, width))
            self._wrapped = (item, width)
        lines = self._lines[self._first : self._first + self._room]
        if len(self._lines) > self._room:
            last = self._first + len(lines)
            more = f"[lines {self._first + 1} to {last} of {len(self._lines)}; {MORE} shows more]"
            lines = [*lines, Text(more, "dim")]
        return lines

    def _question(self, item: Item) -> list[Text]:
        asked = Text("\n").append(one_line(item.name)[:80], "bold")
        if told := instructions_of(item):
            asked.append(": ").append(one_line(told)[:1000])
        if item.proposed is None:
            return [asked]
        option = options_of(item)[item.proposed]
        whose = "label" if item.probabilities is None else "model"
        share = "" if option.probability is None else f" {option.probability:.2f}"
        line = Text().append(f"Enter {whose}: ", "dim")
        return [asked, line.append(f"{option.name[:80]}{share}", "bold green")]

    def _options(self, options: list[Option]) -> RenderableType:
        shown = [option for option in options if option.key]
        lines = [self._option(option) for option in shown]
        if len(lines) <= max(6, self._console.height // 2 - 4):
            found: RenderableType = Group(*lines)
        else:  # in columns, by their names alone
            brief = [Text(f"{option.key} {option.name[:24]}", _style(option)) for option in shown]
            found = Columns(brief, equal=True, column_first=True, padding=(0, 2))
        if len(shown) < len(options):
            more = Text(f"and {len(options) - len(shown)} more: {FIND} finds them", "dim")
            return Group(found, more)
        return found

    def _option(self, option: Option) -> Text:
        share = "    " if option.probability is None else f"{option.probability:4.2f}"
        line = Text(overflow="ellipsis", no_wrap=True)
        line.append(f" {option.key} ", "bold").append(f"{share} ", "dim")
        line.append(option.name, _style(option))
        if option.about:
            line.append(f"  {option.about}", "dim")
        return line

    def _found(self, typed: str, found: list[Option], at: int) -> Group:
        room = max(3, self._console.height - 8)
        first = max(0, at - room + 1)
        lines = [Text(), Text(f"{FIND}{typed}", "bold")]
        for place, option in enumerate(found[first : first + room], first):
            line = self._option(option)
            if place == at:
                line.stylize("reverse", 0, max(1, cell_len(line.plain)))
            lines.append(line)
        if not found:
            lines.append(Text("no option has this in it", "yellow"))
        lines.append(Text("\nEnter takes it | arrows | Esc back", "dim"))
        return Group(*lines)

    def _help(self, item: Item, options: list[Option]) -> Text:
        parts = [
            f"{LATER} skip",
            f"{UNSURE} unsure, none fits",
            f"{UNDO} undo",
            f"{MORE} more",
            f"{QUIT} quit",
        ]
        if item.proposed is not None:
            parts.insert(0, "Enter accept")
        if len(options) > FEW:
            parts.append(f"{FIND} find")
        return self._noted(" | ".join(parts))

    def _help_at_end(self) -> Text:
        return self._noted(f"\nEnter or {QUIT} ends | {UNDO} undo")

    def _noted(self, text: str) -> Text:
        found = Text(text, "dim")
        return found.append(f"\n{self._note}", "yellow") if self._note else found


def _style(option: Option) -> str:
    return "bold green" if option.proposed else ""
