"""Proves that a review goes through the open items in order, counts right, and comes back by undo."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_lines import items, line

from jev.review import Item, Session, Summary


class Memory:
    """Keeps decisions in a list; refuses them when it is full."""

    def __init__(self, done: frozenset[int] = frozenset()) -> None:
        self.done = done
        self.kept: list[tuple[int, int | str]] = []
        self.full = False

    def decided(self, item: Item) -> bool:
        return item.number in self.done

    def answer(self, item: Item, index: int) -> None:
        self._put(item, index)

    def unsure(self, item: Item) -> None:
        self._put(item, "unsure")

    def undo(self) -> None:
        self.kept.pop()

    def _put(self, item: Item, what: int | str) -> None:
        if self.full:
            raise OSError("full")
        self.kept.append((item.number, what))


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> list[Item]:
    return items(tmp_path_factory.mktemp("eight"), [line(number) for number in range(1, 9)])


@given(
    done=st.frozensets(st.integers(1, 8)),
    limit=st.none() | st.integers(1, 9),
    steps=st.lists(st.sampled_from([0, 1, "later", "unsure", "undo"]), max_size=20),
)
def test_a_review_is_what_its_last_decisions_say(
    eight: list[Item], done: frozenset[int], limit: int | None, steps: list[int | str]
) -> None:
    memory = Memory(done)
    session = Session(eight, memory, limit=limit)
    todo = [number for number in range(1, 9) if number not in done]
    mine = todo[:limit]
    made: list[int | str] = []
    for step in steps:
        at = len(made)
        up = mine[at] if at < len(mine) else None
        assert (session.current.number if session.current else None) == up
        assert (session.position, session.total) == (at, len(mine))
        if step == "undo":
            assert session.undo() == bool(made)
            made = made[:-1]
        elif up is None:
            with pytest.raises(IndexError):
                session.answer(0)
            with pytest.raises(IndexError):
                session.later()
        else:
            made.append(step)
            if isinstance(step, int):
                session.answer(step)
            else:
                {"later": session.later, "unsure": session.unsure}[step]()
    assert memory.kept == [one for one in zip(mine, made, strict=False) if one[1] != "later"]
    reviewed = [one for one in made if isinstance(one, int)]
    assert session.summary == Summary(
        before=len(done),
        reviewed=len(reviewed),
        corrected=reviewed.count(0),  # the proposed answer is 1
        skipped=len(made) - len(reviewed),
        unsure=made.count("unsure"),
        left=len(todo) - len(reviewed) - made.count("unsure"),
    )


def test_what_could_not_be_kept_is_still_up(eight: list[Item]) -> None:
    memory = Memory()
    session = Session(eight, memory)
    session.answer(0)
    memory.full = True
    for decide in (lambda: session.answer(0), session.unsure):
        with pytest.raises(OSError, match="full"):
            decide()
    assert (session.position, session.summary.reviewed, session.summary.skipped) == (1, 1, 0)


def test_a_row_without_a_proposed_answer_cannot_be_corrected(tmp_path: Path) -> None:
    lines = [{"state": "x", "questions": line(1)["questions"], "answers": {"is": False}}]
    session = Session(items(tmp_path, lines), Memory())
    for _ in range(3):
        session.answer(0)
    assert (session.summary.reviewed, session.summary.corrected) == (3, 1)  # the label was false
