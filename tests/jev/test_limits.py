"""Proves that what does not fit is refused with both numbers, exactly at the limit and at little cost."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev.errors import InvalidRequestError
from jev.extractors import Evidence
from jev.joint import plan_joint
from jev.material import NOTHING, Material
from jev.model.tokenizer import Tokenizer
from jev.plan import Plan
from jev.prompt import PromptContext, plan_isolated
from jev.schemas import Choice, Noul, Score, SystemOneRequest

if TYPE_CHECKING:
    from jev.engine import Engine

QUESTIONS = {
    "a": Noul("Is it?"),
    "b": Choice("Which one of them is it?", ["first", "second", "third"]),
    "c": Score(["low", "high"]),
}


def ask(**fields: Any) -> SystemOneRequest:
    return SystemOneRequest(**{"state": "The state.", "questions": QUESTIONS, **fields})


def make(request: SystemOneRequest, context: PromptContext) -> Plan:
    return (plan_joint if request.layout == "joint" else plan_isolated)(request, context)


def refusal(request: SystemOneRequest, context: PromptContext) -> str:
    with pytest.raises(InvalidRequestError) as error:
        make(request, context)
    assert error.value.status == 422
    (issue,) = error.value.issues
    assert issue.type == "tokens_exceeded"
    assert issue.loc[1] in ("state", "instructions", "questions")
    if len(issue.loc) > 2:
        assert issue.loc[2] in request.questions
    return issue.msg


def numbers(message: str) -> tuple[int, int]:
    """Needed tokens and the limit."""
    found = re.fullmatch(r"Too long: .* needs (?:at least )?(\d+) tokens, the limit is (\d+)", message)
    assert found is not None, message
    return int(found[1]), int(found[2])


def longest(plan: Plan) -> int:
    return max(len(unit.prefix) + len(unit.branch) + len(unit.canvas) for unit in plan.units)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"permutations": 3},
        {"layout": "joint"},
        {"layout": "joint", "chunk_rows": 16},
        {"layout": "joint", "chunk_rows": 16, "chunk_prompt": "shared"},
        {"questions": {"a": QUESTIONS["b"]}},
    ],
)
class TestExactly:
    """Layouts fit to the token."""

    def test_context(self, engine: Engine, fields: dict[str, Any]) -> None:
        request = ask(**fields)
        needed = longest(make(request, engine.context))
        assert make(request, replace(engine.context, max_context=needed)).units
        message = refusal(request, replace(engine.context, max_context=needed - 1))
        assert numbers(message) == (needed, needed - 1)
        assert "at least" not in message

    def test_whole_request(self, engine: Engine, fields: dict[str, Any]) -> None:
        request = ask(**fields)
        plan = make(request, engine.context)
        if request.layout == "joint":
            prefixes = sum(len(unit.prefix) for unit in plan.units)
        else:
            prefixes = len(plan.units[0].prefix)  # held once for all questions
        needed = prefixes + sum(len(unit.branch) + len(unit.canvas) for unit in plan.units)
        assert make(request, replace(engine.context, max_request_tokens=needed)).units
        message = refusal(request, replace(engine.context, max_request_tokens=needed - 1))
        assert numbers(message) == (needed, needed - 1)


def test_engine_with_a_shorter_context(engine: Engine, tiny: Any) -> None:
    from jev.engine import Engine as Loaded

    request = ask(questions={"a": Noul("Is it?")})
    needed = longest(Loaded.load(tiny).prepare(request))
    assert Loaded.load(tiny, max_context=needed).decide(request).answers
    with pytest.raises(InvalidRequestError, match=f"needs {needed} tokens, the limit is {needed - 1}"):
        Loaded.load(tiny, max_context=needed - 1).prepare(request)


LONG, SHORT = "word " * 1000, "Is it?"
LETTER = Evidence("letter.txt", "text", LONG, (), (), "0" * 64)
MANY = {f"q{n}": Noul(f"Is it the {n}th of them, as far as one can tell?") for n in range(150)}


@pytest.mark.parametrize("layout", ["isolated", "joint"])
@pytest.mark.parametrize(
    ("fields", "material", "where"),
    [
        ({"state": LONG}, NOTHING, ["state"]),
        ({"instructions": LONG}, NOTHING, ["instructions"]),
        ({"questions": {"a": Noul(SHORT), "q": Noul(LONG)}}, NOTHING, ["questions", "q"]),
        ({"questions": {"q": Choice("?", {"a": LONG, "b": None})}}, NOTHING, ["questions", "q"]),
        ({"state": "word " * 20}, Material((LETTER,), {}, (("documents", 2),)), ["documents", 2]),
    ],
    ids=["state", "instructions", "question", "options", "text"],
)
def test_the_longest_part_is_named(
    engine: Engine, fields: dict[str, Any], material: Material, where: list[Any], layout: str
) -> None:
    context = replace(engine.context, max_context=512)
    request = ask(**{"questions": {"a": Noul(SHORT), "b": Noul(SHORT)}, **fields}, layout=layout)
    with pytest.raises(InvalidRequestError) as error:
        (plan_joint if layout == "joint" else plan_isolated)(request, context, material)
    (issue,) = error.value.issues
    assert issue.loc == ["body", *where]
    assert numbers(issue.msg)[1] == 512
    assert ("instructions" in issue.msg) == ("instructions" in fields)
    assert ("attachments" in issue.msg) == bool(material)


@pytest.mark.parametrize("layout", ["isolated", "joint"])
def test_many_questions_are_named_together(engine: Engine, layout: str) -> None:
    context = replace(engine.context, max_request_tokens=1000)
    with pytest.raises(InvalidRequestError, match="the whole request needs") as error:
        make(ask(questions=MANY, layout=layout), context)
    assert error.value.issues[0].loc == ["body", "questions"]


def test_state_alone_too_long(engine: Engine) -> None:
    context = replace(engine.context, max_context=40)
    assert numbers(refusal(ask(state="word " * 100), context))[1] == 40


def test_a_state_that_does_not_fit_is_refused_even_if_nothing_is_read(engine: Engine) -> None:
    request = ask(state="word " * 100, questions={"a": Choice(["only"])})
    assert numbers(refusal(request, replace(engine.context, max_context=40)))[0] > 100


class Unpaid(Exception):
    """Somebody tokenised."""


class Refuser:
    """A tokenizer that must not be used."""

    def __init__(self, longest: int) -> None:
        self.longest = longest

    def encode(self, text: str) -> list[int]:
        raise Unpaid


@pytest.fixture
def unpaid(engine: Engine) -> PromptContext:
    """A context in which tokenising anything fails."""
    refuser = cast(Tokenizer, Refuser(engine.context.tokenizer.longest))
    return replace(engine.context, tokenizer=refuser, template=cast(Any, None))


HUGE = "x" * 2_000_000


@pytest.mark.parametrize(
    "fields",
    [
        {"state": HUGE},
        {"state": [HUGE]},
        {"state": "<|turn>" * 300_000},
        {"state": "ü" * 2_000_000},
        {"instructions": HUGE},
        {"questions": {"a": Noul(HUGE)}},
        {"questions": {"a": Noul("?", true=HUGE)}},
        {"questions": {"a": Choice([HUGE, "b"])}},
        {"questions": {"a": Choice({"a": HUGE, "b": None})}},
        {"questions": {"a": Score(["low", HUGE])}},
        {"questions": {f"q{n}": Noul("x" * 4000) for n in range(1000)}},
        {"questions": {f"q{n}": Noul("?", true="x" * 4000) for n in range(1000)}},
    ],
)
@pytest.mark.parametrize("layout", ["isolated", "joint"])
def test_far_too_long_is_refused_without_tokenising(
    unpaid: PromptContext, fields: dict[str, Any], layout: str
) -> None:
    request = ask(**fields, layout=layout)
    message, times = "", []
    for _ in range(3):  # the best of three, as other work may get in between
        started = time.perf_counter()
        message = refusal(request, unpaid)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.1
    needed, limit = numbers(message)
    assert needed > limit
    assert "at least" in message


def test_orders_count_before_tokenising(unpaid: PromptContext) -> None:
    options = Choice("?", [f"option number {n}" for n in range(200)])
    request = ask(questions={f"q{n}": options for n in range(300)}, permutations=32)
    assert numbers(refusal(request, unpaid))[0] > 500_000


def test_ordinary_requests_pass_the_first_check(unpaid: PromptContext) -> None:
    for layout in ("isolated", "joint"):
        with pytest.raises((Unpaid, AttributeError)):
            make(ask(layout=layout), unpaid)


class Counting:
    """A tokenizer that counts what it is given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.inner, self.longest, self.characters = tokenizer, tokenizer.longest, 0

    def encode(self, text: str) -> list[int]:
        self.characters += len(text)
        return self.inner.encode(text)


@pytest.mark.parametrize(
    "fields",
    [
        {
            "questions": {
                f"q{n}": Choice(["a", "b", "c"] + ["d" * n for n in range(2, 150)]) for n in range(150)
            }
        },
        {"questions": {"a": Choice([f"the {n}th" for n in range(32)])}, "permutations": 32},
        {"questions": {f"q{n}": Noul("angry " * 4) for n in range(1024)}, "layout": "joint"},
        {
            "questions": {f"q{n}": Noul("angry " * 4) for n in range(1024)},
            "layout": "joint",
            "chunk_prompt": "shared",
        },
    ],
)
def test_tokenising_stops_at_the_limit(engine: Engine, fields: dict[str, Any]) -> None:
    """What is paid for a refused request is bounded by the limit and not by the request."""
    from jev.model.template import Template

    tokenizer = Counting(engine.context.tokenizer)
    template = Template(engine.context.tokenizer)
    template._encode = tokenizer.encode  # pyright: ignore[reportPrivateUsage]
    context = replace(
        engine.context, tokenizer=cast(Tokenizer, tokenizer), template=template, max_request_tokens=1000
    )
    refusal(ask(**fields), context)
    assert tokenizer.characters < 200_000


@given(st.text(max_size=200), st.sampled_from(["isolated", "joint"]))
def test_the_first_check_never_refuses_what_fits(engine: Engine, text: str, layout: str) -> None:
    request = ask(state=f"x{text}x", questions={"a": Noul(text)}, layout=layout)
    needed = longest(make(request, engine.context))
    assert make(request, replace(engine.context, max_context=needed, max_request_tokens=needed)).units


def test_whitespace_runs_are_the_densest_text(engine: Engine) -> None:
    """A token may hold 31 of these characters; they are still counted right."""
    for text in (" " * 3000, "\n" * 3000, "\t" * 3000):
        request = ask(state=text + "x", questions={"a": Noul("?")})
        needed = longest(make(request, engine.context))
        assert make(request, replace(engine.context, max_context=needed)).units
