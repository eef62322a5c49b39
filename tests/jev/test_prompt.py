"""Proves the isolated layout id by id: prefix, branches and canvases are what transformers' tokenizer
makes of the documented text, and nothing is left to chance but the slot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev.errors import JevError
from jev.fit import orders
from jev.model import embedded
from jev.plan import Plan, Unit
from jev.schemas import (
    BadRequestError,
    Choice,
    ChoiceAnswer,
    Noul,
    Question,
    Score,
    SystemOneRequest,
    parse_request,
)

if TYPE_CHECKING:
    from jev.engine import Engine

SYSTEM = "Read the state, then answer the question about it with exactly one of the listed labels."
STATE = "My card was charged twice and I want my money back."


@cache
def reference() -> Callable[[str], list[int]]:
    from transformers import AutoTokenizer

    loaded: Any = AutoTokenizer.from_pretrained(embedded.path())
    return lambda text: loaded(text, add_special_tokens=False)["input_ids"]


def plan(engine: Engine, *questions: Question, state: Any = STATE, **fields: Any) -> Plan:
    named = {f"q{n}": question for n, question in enumerate(questions)}
    return engine.prepare(SystemOneRequest(state=state, questions=named, **fields))


def text(asked: str, *, state: str = STATE, system: str = SYSTEM) -> str:
    """The documented prompt around `asked`: the line after `Question: ` and the label lines."""
    return (
        f"<bos><|turn>system\n{system}<turn|>\n<|turn>user\n{state}"
        f"\n\nQuestion: {asked}\nAnswer with one label.<turn|>\n<|turn>model\n"
    )


def check(unit: Unit, expected: str, labels: list[str]) -> None:
    assert [*unit.prefix, *unit.branch] == reference()(expected)
    (slot,) = unit.slots
    thought, end = reference()("<|channel>thought\n<channel|>"), reference()("<turn|>")
    assert slot.position == len(thought) == 4
    for read in range(3):
        (noise,) = unit.noise_ids(read)
        assert list(unit.seeded(read).ids) == [*thought, noise, *end]
    assert [[label] for label in slot.labels] == [reference()(label) for label in labels]


@pytest.mark.parametrize(
    ("question", "asked", "labels"),
    [
        (Noul("Is it angry?"), "Is it angry?\nyes\nno", ["yes", "no"]),
        (
            Noul("Is it?", true="shouts", false="is calm"),
            "Is it?\nyes: shouts\nno: is calm",
            ["yes", "no"],
        ),
        (Noul("Is it?", true="shouts"), "Is it?\nyes: shouts\nno", ["yes", "no"]),
        (Noul("Is it?", false=["a", 1]), 'Is it?\nyes\nno: ["a",1]', ["yes", "no"]),
        (Noul(true="they shout"), "Does this hold: they shout?\nyes: they shout\nno", ["yes", "no"]),
        (
            Noul(true="they shout", false="they sing"),
            "Does this hold: they shout?\nyes: they shout\nno: they sing",
            ["yes", "no"],
        ),
        (
            Noul(false="they sing"),
            "Is it anything but this: they sing?\nyes\nno: they sing",
            ["yes", "no"],
        ),
        (Noul({"ask": "Ist es wütend?"}), '{"ask":"Ist es wütend?"}\nyes\nno', ["yes", "no"]),
        (Noul(""), "\nyes\nno", ["yes", "no"]),
        (
            Choice("Which?", ["billing", "travel plans"]),
            "Which?\nA: billing\nB: travel plans",
            ["A", "B"],
        ),
        (
            Choice("Which?", {"x": "the first", "y": None, "z": {"näh": [1, 2]}, "w": ""}),
            'Which?\nA: x (the first)\nB: y\nC: z ({"näh":[1,2]})\nD: w ()',
            ["A", "B", "C", "D"],
        ),
        (
            Choice(["red", "green", "blue"]),
            "Which is it: red, green or blue?\nA: red\nB: green\nC: blue",
            ["A", "B", "C"],
        ),
        (Choice(["on", "off"]), "Which is it: on or off?\nA: on\nB: off", ["A", "B"]),
        (
            Choice(["k" * 41, "k" * 40]),
            f"Which is it: {'k' * 39}… or {'k' * 40}?\nA: {'k' * 41}\nB: {'k' * 40}",
            ["A", "B"],
        ),
        (
            Score("How bad?", ["fine", {"level": "bad"}, ["worse"]]),
            'How bad?\n0: fine\n1: {"level":"bad"}\n2: ["worse"]',
            ["0", "1", "2"],
        ),
        (
            Score([str(n * n) for n in range(10)]),
            "Which level is it: 0, 1, 4, 9, 16, 25, 36, 49, 64 or 81?\n"
            + "\n".join(f"{n}: {n * n}" for n in range(10)),
            [str(n) for n in range(10)],
        ),
    ],
)
def test_question(engine: Engine, question: Question, asked: str, labels: list[str]) -> None:
    (unit,) = plan(engine, question).units
    check(unit, text(asked), labels)
    assert unit.slots[0].order == tuple(range(len(labels)))


def test_widest_choice(engine: Engine) -> None:
    names = [f"option {n}" for n in range(255)]
    (unit,) = plan(engine, Choice(names)).units
    labels = [label.text for label in engine.context.labels.choice]
    shown = ", ".join(names[:10]) + " …"
    lines = "\n".join(f"{label}: {name}" for label, name in zip(labels, names, strict=True))
    check(unit, text(f"Which is it: {shown}?\n{lines}"), labels)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("  kept as it is", "  kept as it is"),
        ("\n\nstarts with lines", "\n\nstarts with lines"),
        ({"näme": "Zoë", "n": [1, 2.5, None]}, '{"näme":"Zoë","n":[1,2.5,null]}'),
        (["日本語", {"a": True}], '["日本語",{"a":true}]'),
        ({}, "{}"),
    ],
)
def test_state(engine: Engine, state: Any, shown: str) -> None:
    (unit,) = plan(engine, Noul("?"), state=state).units
    check(unit, text("?\nyes\nno", state=shown), ["yes", "no"])


@pytest.mark.parametrize("state", ["", "ends with a line\n", "\n\n", "with spaces  "])
def test_state_and_question_are_tokenised_apart(engine: Engine, state: str) -> None:
    """So the line breaks between them stay tokens of the branch, and the prefix can be shared."""
    (unit,) = plan(engine, Noul("?"), state=state).units
    behind = text("?\nyes\nno").split(STATE)[1]
    assert list(unit.branch) == reference()(behind)
    assert list(unit.prefix) == reference()(text("", state=state).split("\n\nQuestion:")[0])


@pytest.mark.parametrize(
    ("instructions", "system"),
    [
        ("Be fair.", f"{SYSTEM}\n\nBe fair."),
        ("\n Be fair. \n", f"{SYSTEM}\n\nBe fair."),
        ("", SYSTEM),
        ("  \n", SYSTEM),
        ({"tone": "fair"}, f'{SYSTEM}\n\n{{"tone":"fair"}}'),
        (["a"], f'{SYSTEM}\n\n["a"]'),
    ],
)
def test_request_wide_instructions(engine: Engine, instructions: Any, system: str) -> None:
    (unit,) = plan(engine, Noul("?"), instructions=instructions).units
    check(unit, text("?\nyes\nno", system=system), ["yes", "no"])


# Text in which no token is spelled, and whose end does not run into the line break behind it.
PLAIN = st.text(st.characters(exclude_characters="<[▁", exclude_categories=["Cs"]), max_size=30)


@given(PLAIN.map(lambda state: f"{state}."), PLAIN, st.lists(PLAIN, min_size=2, max_size=4, unique=True))
def test_any_plain_text(engine: Engine, state: str, instructions: str, names: list[str]) -> None:
    (unit,) = plan(engine, Choice(instructions, dict.fromkeys(names, "x")), state=state).units
    lines = "\n".join(f"{label}: {name} (x)" for label, name in zip("ABCD", names, strict=False))
    check(unit, text(f"{instructions}\n{lines}", state=state), list("ABCD"[: len(names)]))


def test_equal_states_share_their_prefix_and_questions_their_branch(engine: Engine) -> None:
    one, other = plan(engine, Noul("?"), Choice(["a", "b"])), plan(engine, Score(["x", "y"]), Noul("?"))
    assert len({unit.prefix for unit in (*one.units, *other.units)}) == 1
    assert one.units[0].branch == other.units[1].branch
    elsewhere = plan(engine, Noul("?"), state="Another state.")
    assert elsewhere.units[0].branch == one.units[0].branch


def test_ids_are_not_shown_to_the_model(engine: Engine) -> None:
    request = SystemOneRequest(state=STATE, questions={"secretive": Noul("?")})
    (unit,) = engine.prepare(request).units
    assert "secretive" not in engine.context.tokenizer.decode([*unit.prefix, *unit.branch, *unit.canvas])


def test_questions_with_one_answer_are_not_read(engine: Engine) -> None:
    made = plan(engine, Choice(["only"]), Noul("?"), Score(["only"]))
    assert [group.questions for group in made.groups] == [("q1",)]
    assert made.questions == 3


def test_counts(engine: Engine) -> None:
    made = plan(engine, Noul("?"), Choice(["a", "b", "c"]), Score(["x", "y"]), samples=5, permutations=2)
    units = made.units
    assert len(units) == 4  # the choice in two orders
    assert made.input_tokens == len(units[0].prefix) + sum(len(unit.branch) for unit in units)
    assert made.output_tokens == 4 * 6
    assert made.tokens == made.input_tokens + 5 * made.output_tokens
    assert made.first_reads == 5
    assert plan(engine, Noul("?")).first_reads == 1


# Orders


def listed(names: str, times: int) -> list[str]:
    """The options `names` in every order that is read."""
    return ["".join(names[index] for index in order) for order in orders(Choice(list(names)), times)]


@pytest.mark.parametrize(
    ("names", "times", "expected"),
    [
        ("a", 1, "a"),
        ("a", 32, "a"),
        ("ab", 1, "ab"),
        ("ab", 2, "ab ba"),
        ("ab", 32, "ab ba"),
        ("abc", 2, "abc cba"),
        ("abc", 3, "abc bca cab"),
        ("abc", 4, "abc cba bca bac"),
        ("abc", 5, "abc cba bca bac"),
        ("abc", 32, "abc cba bca bac cab acb"),
        ("abcd", 2, "abcd dcba"),
        ("abcd", 4, "abcd dcba cdab badc"),
        ("abcde", 3, "abcde bcdea deabc"),
        ("abcdef", 4, "abcdef fedcba defabc cbafed"),
    ],
)
def test_orders(names: str, times: int, expected: str) -> None:
    assert listed(names, times) == expected.split()


@given(st.integers(1, 40), st.integers(1, 32))
def test_orders_differ_and_list_every_option_once(count: int, times: int) -> None:
    found = orders(Choice([str(n) for n in range(count)]), times)
    assert min(times - 1, count) <= len(found) == len(set(found)) <= times
    assert found[0] == tuple(range(count))
    for order in found:
        assert sorted(order) == list(range(count))


@given(st.integers(1, 20), st.integers(1, 16))
def test_an_even_number_of_orders_is_the_same_for_reversed_options(count: int, half: int) -> None:
    names = "abcdefghijklmnopqrst"[:count]
    assert set(listed(names, 2 * half)) == set(listed(names[::-1], 2 * half))


@given(st.integers(1, 32))
def test_as_many_orders_as_options_put_every_option_in_every_place(count: int) -> None:
    for times in (count, 2 * count):
        found = orders(Choice([str(n) for n in range(count)]), times)
        for place in range(count):
            assert {order[place] for order in found} == set(range(count))


@pytest.mark.parametrize("question", [Noul("?"), Score(["a", "b", "c"])])
def test_only_choices_are_reordered(question: Question) -> None:
    assert len(orders(question, 32)) == 1


@pytest.mark.parametrize("permutations", [2, 4])
@pytest.mark.parametrize("count", [2, 3, 14])
def test_a_question_made_of_options_names_them_in_their_order(
    engine: Engine, permutations: int, count: int
) -> None:
    """So that reversed options are asked in the same ways."""
    names = [f"option {number}" for number in range(count)]
    branches = [
        {unit.branch for unit in plan(engine, Choice(given), permutations=permutations).units}
        for given in (names, names[::-1])
    ]
    assert branches[0] == branches[1]
    assert len(branches[0]) == (2 if count == 2 else permutations)
    first = engine.context.tokenizer.decode(plan(engine, Choice(["a", "b"])).units[0].branch)
    assert "Which is it: a or b?" in first


@pytest.mark.parametrize("permutations", [2, 4, 8])
def test_reversed_options_are_answered_alike(engine: Engine, permutations: int) -> None:
    """With one read of each order; so far apart would a single order be."""
    names = ["billing", "sales", "technical help", "praise", "something else"]

    def answer(options: list[str], times: int) -> dict[str, float]:
        asked = {"q": Choice("What is it about?", options)}
        state = "My invoice is wrong and the app crashes."
        request = SystemOneRequest(state=state, questions=asked, samples=1, permutations=times)
        found = engine.decide(request).answers["q"]
        assert isinstance(found, ChoiceAnswer)
        return found.probabilities

    assert answer(names, permutations) == pytest.approx(answer(names[::-1], permutations), abs=1e-6)
    assert answer(names, 1) != pytest.approx(answer(names[::-1], 1), abs=1e-3)


def test_lines_of_each_order(engine: Engine) -> None:
    units = plan(engine, Choice("Which?", ["x", "y", "z"]), permutations=3).units
    for shift, unit in enumerate(units):
        turned = ["x", "y", "z"][shift:] + ["x", "y", "z"][:shift]
        lines = "\n".join(f"{label}: {name}" for label, name in zip("ABC", turned, strict=True))
        check(unit, text(f"Which?\n{lines}"), ["A", "B", "C"])
        assert [["x", "y", "z"][index] for index in unit.slots[0].order] == turned


# Anything that parses is planned or refused


LOOSE = (
    st.text(max_size=6)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.none(), max_size=2)
)
QUESTIONS = st.one_of(
    st.fixed_dictionaries({"type": st.just("noul"), "instructions": LOOSE}),
    st.fixed_dictionaries(
        {
            "type": st.just("choice"),
            "criteria": st.dictionaries(st.text(max_size=4), st.none() | LOOSE, min_size=1, max_size=30),
        }
    ),
    st.fixed_dictionaries({"type": st.just("score"), "criteria": st.lists(LOOSE, min_size=1, max_size=10)}),
)


@given(
    st.fixed_dictionaries(
        {
            "state": LOOSE,
            "questions": st.dictionaries(st.text(max_size=4), QUESTIONS, min_size=1, max_size=13),
        },
        optional={
            "instructions": LOOSE,
            "layout": st.sampled_from(["isolated", "joint"]),
            "chunk_rows": st.integers(8, 70),
            "chunk_prompt": st.sampled_from(["own", "shared"]),
            "permutations": st.sampled_from([1, 2, 32]),
            "images": st.lists(st.none(), max_size=1),
            "files": st.lists(st.none(), max_size=1),
            "model": st.sampled_from(["jev-latest", "nothing"]),
            "calibration": st.none() | st.text(max_size=2),
        },
    )
)
def test_any_request_is_planned_or_refused(engine: Engine, body: dict[str, Any]) -> None:
    try:
        request, _ = parse_request(body)
    except BadRequestError:
        return
    try:
        made = engine.prepare(request)
    except JevError as error:
        assert str(error)
        return
    asked = [name for group in made.groups for name in group.questions]
    assert asked == [
        name
        for name, question in request.questions.items()
        if isinstance(question, Noul) or len(question.criteria) > 1
    ]
    for unit in made.units:
        assert all(0 <= id < 22003 for id in (*unit.prefix, *unit.branch, *unit.canvas))
