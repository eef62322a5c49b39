"""Single keys from a terminal: characters as they are typed, a few named keys, nothing echoed."""

from __future__ import annotations

import codecs
import errno
import os
import select
import signal
import termios
import tty
from contextlib import suppress
from types import FrameType
from typing import Any

ENTER, ESCAPE, BACKSPACE, UP, DOWN, TAB = "enter", "escape", "backspace", "up", "down", "tab"
PASTE = "paste"

OTHER = ""
"""A key that has no name here, such as F5; also what is given when the terminal must be drawn anew."""

_NAMED = {"\r": ENTER, "\n": ENTER, "\x7f": BACKSPACE, "\b": BACKSPACE, "\t": TAB}
_SEQUENCES = {b"[A": UP, b"OA": UP, b"[B": DOWN, b"OB": DOWN}
_WAIT_S = 0.05
"""How long the rest of a key's sequence may take; a lone Escape waits for it."""
_END_OF_INPUT = "\x04"
_REDRAWN = (signal.SIGCONT, signal.SIGWINCH)

_OPEN = b"\x1b[?1049h\x1b[?25l\x1b[?2004h"
"""A screen of its own, no cursor, and what is pasted between two marks."""
_CLOSE = b"\x1b[?2004l\x1b[?25h\x1b[?1049l"
_PASTED, _PASTED_TO = b"[200~", b"\x1b[201~"


class Keys:
    """A terminal that gives keys one by one until the block ends, which puts it back as it was.

    Ctrl+C stays a signal; Ctrl+Z puts the terminal back while it stops. What is typed before it is read is
    kept; what is pasted is dropped, for each of its characters would decide something.

    Args:
        fd: of the terminal.
        screen: where it is drawn; it gets a screen of its own, which its user's other lines come back
            from. None = it is left as it is.
    """

    def __init__(self, fd: int, screen: int | None = None) -> None:
        self._fd = fd
        self._screen = screen
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._typed: list[str] = []

    def __enter__(self) -> Keys:
        self._before = termios.tcgetattr(self._fd)
        self._set()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        # By the system's handler itself: Python's runs later, and a wait that has begun meanwhile goes on.
        self._wakeup = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        # Its size has changed, or a shell, which may have changed it too, gives it back.
        self._handlers = [(number, signal.signal(number, self._changed)) for number in _REDRAWN]
        self._handlers.append((signal.SIGTSTP, signal.signal(signal.SIGTSTP, self._stopped)))
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers:
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._woken)
        os.close(self._wake)
        self._show(_CLOSE)
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def read(self) -> str:
        """The next key: a character or a name from above.

        Raises:
            EOFError: the terminal is gone, or Ctrl+D was typed.
        """
        while not self._typed:
            self._fill()
        key = self._typed.pop(0)
        if key == _END_OF_INPUT:
            raise EOFError
        return key

    def _fill(self) -> None:
        if self._woken in select.select([self._fd, self._woken], [], [])[0]:
            os.read(self._woken, 64)
            self._typed.append(OTHER)
            return
        try:
            data = os.read(self._fd, 1)
        except OSError:  # EIO: the other end has hung up
            data = b""
        if not data:
            raise EOFError
        if data == b"\x1b":
            self._typed.append(self._sequence())
            return
        for char in self._decoder.decode(data):
            known = char == _END_OF_INPUT or char.isprintable()
            self._typed.append(_NAMED.get(char, char if known else OTHER))

    def _sequence(self) -> str:
        """The key whose sequence goes on behind an escape character."""
        rest = b""
        while len(rest) < 16 and select.select([self._fd], [], [], _WAIT_S)[0]:
            try:
                rest += os.read(self._fd, 1)
            except OSError:
                break
            if (rest[:1] == b"[" and len(rest) > 1 and 0x40 <= rest[-1] <= 0x7E) or (
                rest[:1] == b"O" and len(rest) == 2
            ):
                break
            if rest[:1] not in (b"[", b"O"):
                break
        if rest == _PASTED:
            self._skip_pasted()
            return PASTE
        return _SEQUENCES.get(rest, OTHER) if rest else ESCAPE

    def _skip_pasted(self) -> None:
        """Drop what comes before the mark that ends a paste."""
        last = b""
        while last != _PASTED_TO:
            try:
                byte = os.read(self._fd, 1)
            except OSError:
                return
            if not byte:
                return
            last = (last + byte)[-len(_PASTED_TO) :]

    def _set(self) -> None:
        while True:
            try:
                tty.setcbreak(self._fd, termios.TCSADRAIN)
                break
            except termios.error as error:  # in the background it stops here, until it is in front again
                if error.args[0] != errno.EINTR:
                    raise
        self._show(_OPEN)

    def _show(self, modes: bytes) -> None:
        # Not through a buffer: a signal may have interrupted a write to it.
        if self._screen is not None:
            os.write(self._screen, modes)

    def _changed(self, number: int, frame: FrameType | None) -> Any:
        if number == signal.SIGCONT:
            self._set()
        with suppress(BlockingIOError):
            os.write(self._wake, b"!")

    def _stopped(self, number: int, frame: FrameType | None) -> Any:
        """Stop with the terminal as it was, and set it again when it goes on."""
        self._show(_CLOSE)
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        signal.signal(number, signal.SIG_DFL)  # not SIGSTOP, which stops even where no shell can go on
        signal.raise_signal(number)
        signal.signal(number, self._stopped)
        self._changed(signal.SIGCONT, frame)
