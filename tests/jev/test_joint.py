"""Proves the joint layout: its text, its slots row by row, its chunks, its ids and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev.errors import InvalidRequestError
from jev.model import embedded
from jev.plan import Plan, Unit
from jev.schemas import Choice, Noul, Question, Score, SystemOneRequest

if TYPE_CHECKING:
    from jev.engine import Engine

STATE = "My card was charged twice and I want my money back."
ANGRY = Noul("Is the customer angry?")
TEAM = Choice("Which team?", {"billing": "money", "travel": None, "sales": None})
BAD = Score("How bad?", ["fine", "annoying", "blocking"])
THREE = {"angry": ANGRY, "team": TEAM, "bad": BAD}

TASK = (
    "Answer the questions below about the state that the user sends. "
    "Each question lists its labels; give exactly one of them for each question."
)
LINES = 'Reply with one line for each question, in this order, written as "id: label".'
INDEXED = "Reply on a single line: each id directly followed by its label, one space between questions."
PARTIAL = "A reply may cover only some of the questions."


@cache
def reference() -> Callable[[str], list[int]]:
    from transformers import AutoTokenizer

    loaded: Any = AutoTokenizer.from_pretrained(embedded.path())
    return lambda text: loaded(text, add_special_tokens=False)["input_ids"]


def request(questions: dict[str, Question], **fields: Any) -> SystemOneRequest:
    return SystemOneRequest(**{"state": STATE, "questions": questions, "layout": "joint", **fields})


def plan(engine: Engine, questions: dict[str, Question], **fields: Any) -> Plan:
    return engine.prepare(request(questions, **fields))


def refusal(engine: Engine, questions: dict[str, Question], **fields: Any) -> tuple[list[str | int], str]:
    with pytest.raises(InvalidRequestError) as error:
        plan(engine, questions, **fields)
    (issue,) = error.value.issues
    return issue.loc, issue.msg


def many(count: int, question: Question = ANGRY, id: str = "{}") -> dict[str, Question]:
    return {id.format(n): question for n in range(count)}


def label_texts(question: Question) -> list[str]:
    if isinstance(question, Noul):
        return ["yes", "no"]
    count = len(question.criteria)
    if isinstance(question, Score) and count < 10:
        return [str(n + 1) for n in range(count)]
    return [chr(ord("A") + n) for n in range(count)]


def prompt(*blocks: str, state: str = STATE) -> str:
    system = "\n\n".join(blocks)
    return f"<bos><|turn>system\n{system}<turn|>\n<|turn>user\n{state}<turn|>\n<|turn>model\n"


def check_slots(engine: Engine, unit: Unit, questions: dict[str, Question], indexed: bool) -> None:
    """Put every label in every slot and see that the canvas then reads as the answer that it means."""
    tokenizer, template = engine.context.tokenizer, engine.context.template
    names = [slot.question for slot in unit.slots]
    firsts = [label_texts(questions[name])[0] for name in names]

    def reads(labels: Sequence[str], ids: Sequence[int]) -> str:
        rows = list(unit.canvas)
        for slot, id in zip(unit.slots, ids, strict=True):
            rows[slot.position] = id
        pairs = zip(names, labels, strict=True)
        text = " ".join(map("".join, pairs)) if indexed else "\n".join(f"{n}: {label}" for n, label in pairs)
        expected = ["<|channel>thought\n<channel|>", text, "<turn|>"]
        shown = tokenizer.decode(rows)
        # Not one row more: what is not the answer is pads.
        assert shown.removesuffix(
            "<pad>" * (len(unit.canvas) - rows.index(template.turn_end) - 1)
        ) == "".join(expected)
        return shown

    seen = {reads(firsts, [slot.labels[0] for slot in unit.slots])}
    for place, slot in enumerate(unit.slots):
        texts = label_texts(questions[slot.question])
        assert len(texts) == len(slot.labels) == len(set(slot.labels))
        assert slot.order == tuple(range(len(texts)))
        for text, id in zip(texts[1:], slot.labels[1:], strict=True):
            labels, ids = list(firsts), [one.labels[0] for one in unit.slots]
            labels[place], ids[place] = text, id
            seen.add(reads(labels, ids))
    assert len(seen) == 1 + sum(len(slot.labels) - 1 for slot in unit.slots)
    assert len({slot.position for slot in unit.slots}) == len(unit.slots)


# The prompt


def test_whole_prompt(engine: Engine) -> None:
    (unit,) = plan(engine, THREE).units
    expected = prompt(
        TASK,
        "Question angry: Is the customer angry?\n  yes\n  no",
        "Question team: Which team?\n  A: billing (money)\n  B: travel\n  C: sales",
        "Question bad: How bad?\n  1: fine\n  2: annoying\n  3: blocking",
        LINES,
    )
    assert [*unit.prefix, *unit.branch] == reference()(expected)
    rows = reference()("<|channel>thought\n<channel|>angry: yes\nteam: A\nbad: 1<turn|>")
    assert list(unit.canvas) == rows + [0] * (-len(rows) % 16)
    check_slots(engine, unit, THREE, indexed=False)


def test_described_sides_missing_instructions_and_structure(engine: Engine) -> None:
    questions: dict[str, Question] = {
        "a": Noul(true="they shout", false={"or": "sing"}),
        "b": Choice(["x", "y"]),
        "c": Score(instructions={"ask": "ü"}, criteria=[["low"], "high"]),
    }
    (unit,) = plan(engine, questions, state={"k": ["ä", 1]}, instructions=" Be fair. ").units
    expected = prompt(
        TASK,
        "Be fair.",
        'Question a: Does this hold: they shout?\n  yes: they shout\n  no: {"or":"sing"}',
        "Question b: Which is it: x or y?\n  A: x\n  B: y",
        'Question c: {"ask":"ü"}\n  1: ["low"]\n  2: high',
        LINES,
        state='{"k":["ä",1]}',
    )
    assert [*unit.prefix, *unit.branch] == reference()(expected)


@pytest.mark.parametrize("state", ["  padded \n\n", "padded", "\tpadded"])
def test_state_is_trimmed_as_by_the_chat_template(engine: Engine, state: str) -> None:
    (unit,) = plan(engine, {"a": ANGRY}, state=state).units
    assert list(unit.branch) == reference()("padded<turn|>\n<|turn>model\n")


# Lines and indexed


@pytest.mark.parametrize(("count", "indexed"), [(1, False), (10, False), (11, True), (20, True)])
def test_more_than_ten_questions_are_answered_on_one_line(engine: Engine, count: int, indexed: bool) -> None:
    questions = many(count)
    units = plan(engine, questions).units
    for unit in units:
        check_slots(engine, unit, questions, indexed)
        said = engine.context.tokenizer.decode(unit.prefix)
        assert (INDEXED in said, LINES in said) == (indexed, not indexed)
    assert [slot.question for unit in units for slot in unit.slots] == list(questions)


def test_form_depends_on_all_questions_of_the_request(engine: Engine) -> None:
    """Not on the chunk's, nor on whether a question needs to be read."""
    questions = {**many(8), **{f"only{n}": Choice(["x"]) for n in range(3)}}
    for unit in plan(engine, questions, chunk_rows=16).units:
        check_slots(engine, unit, questions, indexed=True)


KINDS: list[Question] = [
    ANGRY,
    BAD,
    Choice("Which?", ["x", "y"]),
    Choice("Which?", [f"o{n}" for n in range(26)]),
    Score("How?", [f"l{n}" for n in range(9)]),
    Score("How?", [f"l{n}" for n in range(10)]),
]


@pytest.mark.parametrize(
    "id", ["{}", "question{}", "a b {}", "Überschrift {}", "the-{}", "日本{}", "{}.", "<|turn>{}"]
)
@pytest.mark.parametrize("count", [6, 12])
def test_slots_of_all_kinds(engine: Engine, id: str, count: int) -> None:
    questions = {id.format(n): KINDS[n % len(KINDS)] for n in range(count)}
    for unit in plan(engine, questions).units:
        check_slots(engine, unit, questions, indexed=count > 10)


def test_slots_on_the_tiny_tokenizer(tiny: Path) -> None:
    from jev.engine import Engine as Loaded

    small = Loaded.load(tiny)  # its canvas has 16 rows
    questions = {f"{n}": KINDS[n % len(KINDS)] for n in range(12)}
    units = plan(small, questions).units
    assert len(units) > 3
    for unit in units:
        assert len(unit.canvas) == 16
        check_slots(small, unit, questions, indexed=True)


def test_labels_that_carry_their_space(engine: Engine) -> None:
    """Words and letters are one token with the space before them, digits are not."""
    (unit,) = plan(engine, THREE).units
    decoded = [[engine.context.tokenizer.decode([id]) for id in slot.labels] for slot in unit.slots]
    assert decoded == [[" yes", " no"], [" A", " B", " C"], ["1", "2", "3"]]


@pytest.mark.parametrize(("levels", "labels"), [(2, "12"), (9, "123456789"), (10, "ABCDEFGHIJ")])
def test_score_labels(engine: Engine, levels: int, labels: str) -> None:
    questions: dict[str, Question] = {"a": Score("How?", [f"level {n}" for n in range(levels)])}
    (unit,) = plan(engine, questions).units
    said = engine.context.tokenizer.decode(unit.prefix)
    for n, label in enumerate(labels):
        assert f"\n  {label}: level {n}" in said
    check_slots(engine, unit, questions, indexed=False)


@pytest.mark.parametrize("id", ["pia", "topic", "k"])
def test_id_that_runs_into_its_label(engine: Engine, id: str) -> None:
    """On one line `pia` and `no` make `p` and `iano`."""
    loc, message = refusal(engine, {**many(10), id: ANGRY})
    assert loc == ["body", "questions", id]
    assert message.startswith("The label 'no' does not take exactly one canvas row behind this id")
    assert "use another id or the isolated layout" in message
    assert plan(engine, {**many(9), id: ANGRY}).units  # with a colon between they stay apart


def test_id_and_label_that_are_one_token(engine: Engine) -> None:
    """`B` and `A` make `BA`: one row, one token a label, so it can be read."""
    questions = {**many(10), "B": Choice("?", ["a", "b", "c"])}
    unit = plan(engine, questions).units[-1]
    check_slots(engine, unit, questions, indexed=True)
    decoded = [engine.context.tokenizer.decode([id]) for id in unit.slots[-1].labels]
    assert decoded in ([" BA", " BB", " BC"], ["BA", "BB", "BC"])


# Chunks


def rows(engine: Engine, names: Sequence[str], questions: dict[str, Question], indexed: bool) -> int:
    parts = [(name, label_texts(questions[name])[0]) for name in names]
    text = " ".join(map("".join, parts)) if indexed else "\n".join(f"{a}: {b}" for a, b in parts)
    return 4 + len(reference()(text)) + 1


@pytest.mark.parametrize("limit", [10, 15, 16, 17, 20, 32, 33, 40, 63, 64, 100, 4096])
@pytest.mark.parametrize("count", [7, 23])
def test_chunks_are_filled_in_order_up_to_the_limit(engine: Engine, limit: int, count: int) -> None:
    questions = {f"{n}": KINDS[n % 3] for n in range(count)}
    indexed = count > 10
    units = plan(engine, questions, chunk_rows=limit).units
    chunks = [[slot.question for slot in unit.slots] for unit in units]
    assert [name for chunk in chunks for name in chunk] == list(questions)
    width = min(limit, 64)
    for number, (chunk, unit) in enumerate(zip(chunks, units, strict=True)):
        needed = rows(engine, chunk, questions, indexed)
        assert needed <= width
        assert len(unit.canvas) == min(width, -(-needed // 16) * 16)
        if number + 1 < len(chunks):
            assert rows(engine, [*chunk, chunks[number + 1][0]], questions, indexed) > width
        check_slots(engine, unit, questions, indexed)


def test_chunks_are_groups_of_their_own(engine: Engine) -> None:
    made = plan(engine, many(6), chunk_rows=16)
    assert len(made.groups) > 1
    for group in made.groups:
        (unit,) = group.units
        assert group.questions == tuple(slot.question for slot in unit.slots)


def test_canvas_of_the_checkpoint_is_the_limit_without_chunk_rows(engine: Engine) -> None:
    for unit in plan(engine, many(40)).units:
        assert len(unit.canvas) <= 64
    assert engine.context.canvas_length == 64


def test_question_that_fits_no_canvas(engine: Engine) -> None:
    loc, message = refusal(engine, {"a": ANGRY, "a much longer id than that": ANGRY}, chunk_rows=9)
    needed = rows(engine, ["a much longer id than that"], {"a much longer id than that": ANGRY}, False)
    assert loc == ["body", "questions", "a much longer id than that"]
    assert message == f"The answer needs {needed} canvas rows, the limit is 9"
    longer: dict[str, Question] = {"a-b": ANGRY}
    needed = rows(engine, ["a-b"], longer, False)
    assert plan(engine, longer, chunk_rows=needed).units
    assert refusal(engine, longer, chunk_rows=needed - 1)[0] == ["body", "questions", "a-b"]


def test_own_prompts_list_their_own_questions(engine: Engine) -> None:
    questions: dict[str, Question] = {f"q{n}": Noul(f"Is it number {n}?") for n in range(6)}
    units = plan(engine, questions, chunk_rows=16).units
    assert len(units) > 1
    for unit in units:
        said = engine.context.tokenizer.decode(unit.prefix)
        names = {slot.question for slot in unit.slots}
        assert {name for name in questions if f"Question {name}: " in said} == names
        assert PARTIAL not in said


def test_shared_prompts_list_all_questions(engine: Engine) -> None:
    questions: dict[str, Question] = {f"q{n}": Noul(f"Is it number {n}?") for n in range(6)}
    units = plan(engine, questions, chunk_rows=16, chunk_prompt="shared").units
    assert len({unit.prefix for unit in units}) == 1
    expected = prompt(
        TASK, *(f"Question q{n}: Is it number {n}?\n  yes\n  no" for n in range(6)), LINES, PARTIAL
    )
    assert [*units[0].prefix, *units[0].branch] == reference()(expected)
    own = plan(engine, questions, chunk_rows=16).units
    assert [(unit.canvas, unit.slots) for unit in units] == [(unit.canvas, unit.slots) for unit in own]


def test_shared_makes_no_difference_to_one_chunk(engine: Engine) -> None:
    assert plan(engine, THREE).units == plan(engine, THREE, chunk_prompt="shared").units


# Ids and options


@pytest.mark.parametrize(
    "name", ["x", "x" * 40, "a.b", "a b", "A", "7", "ä", "日本", "a-b_c/d", "[key]", "<mask>", "'\"", "🙂"]
)
def test_ids(engine: Engine, name: str) -> None:
    (unit,) = plan(engine, {name: ANGRY}).units
    check_slots(engine, unit, {name: ANGRY}, indexed=False)


@pytest.mark.parametrize(
    "name",
    [
        " ",
        "  ",
        " x",
        "x ",
        "\tx",
        "x\n",
        "a\nb",
        "a\tb",
        "a\x00b",
        "a\x7fb",
        "a\x9fb",
        "a:b",
        ":",
        "x" * 129,
    ],
)
def test_ids_that_cannot_stand_in_a_canvas(engine: Engine, name: str) -> None:
    loc, message = refusal(engine, {"fine": ANGRY, name: ANGRY})
    assert loc == ["body", "questions", name]
    assert "128 characters" in message
    assert engine.prepare(SystemOneRequest(state=STATE, questions={name: ANGRY})).units


def test_ids_of_questions_that_are_not_read_are_free(engine: Engine) -> None:
    assert plan(engine, {"a:b": Choice(["only"]), "a": ANGRY}).units


def test_options(engine: Engine) -> None:
    names = [f"o{n}" for n in range(27)]
    assert plan(engine, {"a": Choice(names[:26])}).units
    loc, message = refusal(engine, {"a": Choice(names)})
    assert loc == ["body", "questions", "a", "criteria"]
    assert message == "27 options; the joint layout takes at most 26, the isolated one more"


def test_permutations(engine: Engine) -> None:
    assert refusal(engine, THREE, permutations=2)[0] == ["body", "permutations"]


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=30), st.integers(10, 64))
def test_any_mixture_of_questions(engine: Engine, kinds: list[Question], limit: int) -> None:
    questions = {f"{n}": question for n, question in enumerate(kinds)}
    units = plan(engine, questions, chunk_rows=limit).units
    assert [slot.question for unit in units for slot in unit.slots] == list(questions)
    for unit in units:
        assert len(unit.canvas) <= limit
        assert len(unit.canvas) % 16 == 0 or len(unit.canvas) == limit
        check_slots(engine, unit, questions, indexed=len(kinds) > 10)


def test_usage(engine: Engine) -> None:
    questions = many(23)
    made = plan(engine, questions, chunk_rows=20)
    names = [[slot.question for slot in unit.slots] for unit in made.units]
    assert made.input_tokens == sum(len(unit.prefix) + len(unit.branch) for unit in made.units)
    assert made.output_tokens == sum(rows(engine, chunk, questions, True) for chunk in names)
    usage = engine.run(made).usage
    assert (usage.input_tokens, usage.output_tokens) == (made.input_tokens, made.output_tokens)
