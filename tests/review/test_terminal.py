"""Proves on a real terminal that a key is a decision, and that no row can steer the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from queue_lines import NOUL, items, labels, line, write
from rich.console import Console

from jev.review import Session, Store
from jev.review.keys import Keys
from jev.review.terminal import Terminal
from jev.review.view import KEYS, text_of

SEQUENCE = re.compile(rb"\x1b\[[?0-9;]*[a-zA-Z]")
WAIT_S = 60


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal of 80 x 24: the reviewer's and the program's."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    yield master, slave
    os.close(master)
    os.close(slave)


class Screen(threading.Thread):
    """Takes what the terminal gets, so that nothing waits for it, until the block ends."""

    def __init__(self, master: int) -> None:
        super().__init__()
        self.master, self.over, self.raw = master, threading.Event(), b""

    def run(self) -> None:
        while (ready := select.select([self.master], [], [], 0.02)[0]) or not self.over.is_set():
            if ready:
                self.raw += os.read(self.master, 65536)

    def __enter__(self) -> Screen:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


def typed(
    ends: tuple[int, int], folder: Path, lines: list[Any], keys: bytes, *, end: bytes = b"\x04"
) -> tuple[Session, list[str]]:
    """A review with these keys; gives it and the screens that were shown, without their colours."""
    master, slave = ends
    before = termios.tcgetattr(slave)
    with (
        Screen(master) as screen,
        os.fdopen(os.dup(slave), "w") as file,
        Store(folder / "out.jsonl") as store,
        Keys(slave) as keyboard,
    ):
        session = Session(items(folder, lines), store)
        os.write(master, keys + end)  # the end, should a key be lost
        console = Console(
            file=file, force_terminal=True, width=80, height=24, highlight=False, markup=False, emoji=False
        )
        Terminal(session, console, keyboard).run()
    assert termios.tcgetattr(slave) == before
    raw = screen.raw
    plain = SEQUENCE.sub(b"", raw)
    assert not set(plain) & (set(range(32)) - set(b"\r\n")), plain
    return session, [SEQUENCE.sub(b"", one).decode() for one in raw.split(b"\x1b[2J")[1:]]


def test_every_kind_of_question_has_its_keys(ends: tuple[int, int], tmp_path: Path) -> None:
    lines = [line(1, "is"), line(2, "is"), line(3, "which"), line(4, "how"), line(5, "how"), line(6, "is")]
    session, screens = typed(ends, tmp_path, lines, b"yN30\r\nq")
    assert labels(tmp_path / "out.jsonl") == {
        ("r1", "is"): "yes",
        ("r2", "is"): "no",
        ("r3", "which"): "c",
        ("r4", "how"): "0",
        ("r5", "how"): "0",  # Enter: what the model said
        ("r6", "is"): "yes",
    }
    assert (session.summary.reviewed, session.summary.corrected, session.summary.left) == (6, 2, 0)
    assert "state 1" in screens[0]
    assert "is: Is it?" in screens[0]
    assert "row 1 | id r1 | certainty 0.60" in screens[0]
    assert "Enter model: yes 0.60" in screens[0]
    assert re.search(r" 2 0\.60 b  bees", screens[2])
    assert re.search(r" 0 0\.60 low", screens[3])
    assert "That was the last one." in screens[-1]


def test_skip_unsure_undo_and_keys_that_are_none(ends: tuple[int, int], tmp_path: Path) -> None:
    lines = [line(number) for number in range(1, 5)]
    session, screens = typed(ends, tmp_path, lines, b"u1sxuu2\x1b[15~zxq")
    assert labels(tmp_path / "out.jsonl") == {("r1", "which"): "a", ("r2", "which"): "b"}
    assert (session.summary.skipped, session.summary.unsure, session.summary.left) == (1, 1, 1)
    assert "there is nothing to undo" in screens[1]
    assert any("'z' is no key here" in screen for screen in screens)


def test_what_is_pasted_decides_nothing(ends: tuple[int, int], tmp_path: Path) -> None:
    pasted = b"\x1b[200~1\r2 sxq\x1b[31m/\x1b[201~"
    session, screens = typed(ends, tmp_path, [line(1), line(2)], pasted + b"3q")
    assert "what is pasted decides nothing" in screens[1]
    assert (session.position, session.summary.corrected) == (1, 1)
    assert labels(tmp_path / "out.jsonl") == {("r1", "which"): "c"}


def test_a_row_without_an_answer_has_none_to_accept(ends: tuple[int, int], tmp_path: Path) -> None:
    lines = [{"id": "x", "state": "x", "questions": {"is": NOUL}}]
    session, screens = typed(ends, tmp_path, lines, b"\rnu\x7fyq")
    assert "there is no answer to accept" in screens[1]
    assert labels(tmp_path / "out.jsonl") == {("x", "is"): "yes"}
    assert session.summary.corrected == 0


def test_letters_go_on_where_digits_end_and_none_has_two_meanings(
    ends: tuple[int, int], tmp_path: Path
) -> None:
    assert len(set(KEYS)) == len(KEYS) == 30
    assert not set(KEYS) & set("suxqm/")
    question = {"type": "choice", "criteria": {f"option {number}": None for number in range(30)}}
    lines = [{"id": key, "state": "x", "questions": {"q": question}} for key in KEYS]
    typed(ends, tmp_path, lines, KEYS.encode() + b"q")
    assert labels(tmp_path / "out.jsonl") == {(k, "q"): f"option {n}" for n, k in enumerate(KEYS)}


def test_many_options_are_found_by_typing(ends: tuple[int, int], tmp_path: Path) -> None:
    criteria = {f"city {number}": "Rome" if number == 77 else None for number in range(100)}
    criteria["größe"] = None
    question = {"type": "choice", "criteria": criteria}
    lines = [{"id": f"r{n}", "state": "x", "questions": {"q": question}} for n in range(5)]
    keys = "/CITY 12\r" + "/rome\r" + "/zzz\r\x1b" + "/9x\x7f\x1b[B\t\x1b[A\r" + "/GRÖ\r" + "3q"
    # A lone Escape is one only when nothing follows it at once.
    session, screens = typed_in_parts(ends, tmp_path, lines, keys.partition("\x1b/"))
    assert labels(tmp_path / "out.jsonl") == {
        ("r0", "q"): "city 12",
        ("r1", "q"): "city 77",
        ("r2", "q"): "city 19",
        ("r3", "q"): "größe",
        ("r4", "q"): "city 2",
    }
    assert "and 92 more: / finds them" in screens[0]
    assert any("no option has this in it" in screen for screen in screens)
    assert session.summary.reviewed == 5


@pytest.mark.parametrize("key", [b"\x1b[15~", b"\x1b[H", b"\x01"])
def test_a_key_without_a_name_chooses_no_option_without_a_key(
    ends: tuple[int, int], tmp_path: Path, key: bytes
) -> None:
    """As does a terminal that changes its size: most of many options have no key of their own."""
    question = {"type": "choice", "criteria": {f"city {number}": None for number in range(40)}}
    lines = [{"id": f"r{n}", "state": "x", "questions": {"q": question}} for n in range(2)]
    session, _ = typed(ends, tmp_path, lines, key * 3 + b"q")
    assert session.summary.reviewed == 0
    assert not (tmp_path / "out.jsonl").exists()


def typed_in_parts(
    ends: tuple[int, int], folder: Path, lines: list[Any], parts: tuple[str, str, str]
) -> tuple[Session, list[str]]:
    """As `typed`, with a pause behind the Escape between the parts."""
    first, middle, last = parts
    late = threading.Timer(1.0, os.write, (ends[0], (middle[1:] + last).encode()))
    late.start()
    try:
        return typed(ends, folder, lines, (first + middle[:1]).encode(), end=b"")
    finally:
        late.join()


def test_a_long_state_is_shown_in_pages(ends: tuple[int, int], tmp_path: Path) -> None:
    state = {"lines": [f"item {number:03}" for number in range(60)]}
    _, screens = typed(ends, tmp_path, [line(1, state=state)], b"mmmmmmmmq")
    pages = [set(re.findall(r"item \d+", screen)) for screen in screens]
    assert set.union(*pages) == {f"item {number:03}" for number in range(60)}
    assert all(len(screen.splitlines()) <= 24 for screen in screens)
    assert all("which: Which?" in screen for screen in screens)
    assert "m shows more" in screens[0]


EVIL = "\x1b[31mred\x1b]0;title\x07\x9b2J [bold]x[/bold] \u202egnp\u2066 :smile: \x00\x08\x7f\r\nnext\ttab"


def test_texts_are_cut_where_no_one_reads_on() -> None:
    assert text_of("a\r\nb\rc\td\n") == "a\nb\nc   d\n"
    assert text_of("\n" * 4_999) == "\n" * 4_999
    assert text_of("x\n" * 5_000 + "y") == "x\n" * 5_000 + "[cut off: it has 10,001 characters]"
    assert text_of("x" * 200_001) == "x" * 200_000 + "\n[cut off: it has 200,001 characters]"


def test_hostile_texts_are_only_texts(ends: tuple[int, int], tmp_path: Path) -> None:
    question = {"type": "choice", "instructions": EVIL, "criteria": {EVIL: EVIL, "b": None}}
    answer = {"type": "choice", "choice": "b", "probabilities": {EVIL: 0.1, "b": 0.9}, "confidence": 0.1}
    (tmp_path / "a [bold]b").write_text("x")
    lines = [
        line(
            1,
            EVIL,
            id=EVIL,
            state=state,
            questions={EVIL: question},
            answers={EVIL: answer},
            attachments=["a [bold]b"],
        )
        for state in (EVIL, {EVIL: [EVIL]})
    ]
    session, screens = typed(ends, tmp_path, lines, b"s/\x1b[31m\x7f\rq")
    assert session.summary.skipped == 1
    for screen in screens[:2]:
        assert screen.count("[bold]x[/bold]") >= 4
        assert "\u202e" not in screen
        assert ":smile:" in screen
    assert "attached: a [bold]b" in screens[0]


class Process:
    """`jev review` on a terminal of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.master, slave = pty.openpty()
        command = [sys.executable, "-m", "jev", "review", "queue.jsonl", "--out", "out.jsonl", *options]
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.seen = b""

    def until(self, text: bytes) -> None:
        end = time.monotonic() + WAIT_S
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 65536)

    def type(self, keys: bytes) -> None:
        self.seen = b""
        os.write(self.master, keys)

    def rest(self) -> str:
        """What it says until its end."""
        try:
            while data := os.read(self.master, 65536):
                self.seen += data
        except OSError:  # EIO: it has ended
            pass
        os.close(self.master)
        return self.seen.decode()


def test_a_kill_loses_nothing_and_the_same_command_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "queue.jsonl", [line(number) for number in range(1, 5)])
    killed = Process(tmp_path)
    killed.until(b"state 1")
    killed.type(b"1")
    killed.until(b"state 2")
    busy = subprocess.run(
        [sys.executable, "-m", "jev", "review", "queue.jsonl", "--out", "out.jsonl"],
        cwd=tmp_path,
        capture_output=True,
        timeout=WAIT_S,
    )
    assert (busy.returncode, busy.stdout) == (2, b"")
    assert busy.stderr == b"error: out.jsonl: another jev review is writing to it\n"
    killed.process.kill()
    killed.process.wait(WAIT_S)
    os.close(killed.master)
    assert labels(tmp_path / "out.jsonl") == {("r1", "which"): "a"}
    again = Process(tmp_path, "--json")
    again.until(b"state 2")
    again.type(b"2")
    again.until(b"state 3")
    again.seen = b""
    fcntl.ioctl(again.master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 20, 0, 0))
    again.process.send_signal(signal.SIGWINCH)  # of itself only to who has it as controlling terminal
    again.until(b"state 3")  # drawn anew
    again.seen = b""
    again.process.send_signal(signal.SIGTSTP)  # which stops only who has a shell that can go on with it
    again.until(b"\x1b[?1049l")  # its user's lines are back
    again.until(b"state 3")
    assert again.seen.index(b"\x1b[?1049l") < again.seen.index(b"\x1b[?1049h") < again.seen.index(b"state 3")
    again.process.send_signal(signal.SIGINT)
    assert '{"before": 1, "reviewed": 1, "corrected": 0, "skipped": 0, "unsure": 0, "left": 2' in again.rest()
    assert again.process.wait(WAIT_S) == 0
    assert labels(tmp_path / "out.jsonl") == {("r1", "which"): "a", ("r2", "which"): "b"}
