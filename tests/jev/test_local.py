"""LocalJev answers in process as Jev does over HTTP: same body, same decision, same errors."""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import httpx
import pytest

from jev import (
    Choice,
    Decision,
    InvalidRequestError,
    Jev,
    LocalJev,
    MissingExtraError,
    NotFoundError,
    Noul,
    Score,
    TypedDecision,
)
from jev.schemas import (
    Answer,
    ChoiceAnswer,
    ModelInfo,
    NoulAnswer,
    ScoreAnswer,
    SystemOneRequest,
    SystemOneResponse,
    Usage,
    parse_request,
)

QUESTIONS = {
    "angry": Noul("Is it?"),
    "team": Choice("Which?", ["a", "b", "c"]),
    "how": Score("How?", ["low", "mid", "high"]),
}


class Ticket:
    angry: Annotated[bool, "Is it?"]
    team: Literal["a", "b"]


class FakeEngine:
    """Answers from the request alone, and remembers the requests."""

    name = "jev-fake"

    def __init__(self) -> None:
        self.requests: list[SystemOneRequest] = []

    def decide(self, request: SystemOneRequest) -> SystemOneResponse:
        if request.model not in ("jev-latest", self.name):
            raise NotFoundError(f"No model named {request.model!r}")
        self.requests.append(request)
        answers: dict[str, Answer] = {}
        for key, question in request.questions.items():
            if isinstance(question, Noul):
                answers[key] = NoulAnswer(noul=len(request.state) / 100)
                continue
            names = (
                question.criteria if isinstance(question, Choice) else map(str, range(len(question.criteria)))
            )
            p = {name: float(i == 1) for i, name in enumerate(names)}
            if isinstance(question, Choice):
                answers[key] = ChoiceAnswer(choice=list(p)[1], probabilities=p, confidence=1.0)
            else:
                legend = dict(zip(p, question.criteria, strict=True))
                answers[key] = ScoreAnswer(score=1.0, legend=legend, probabilities=p, confidence=1.0)
        return SystemOneResponse(
            model=self.name,
            answers=answers,
            usage=Usage(input_tokens=5, output_tokens=len(answers)),
            x_diagnostics={"seed": request.seed} if request.diagnostics else None,
        )

    def models(self) -> list[ModelInfo]:
        return [ModelInfo(name=self.name, description="d", release_date="2026-01-01")]


def local() -> tuple[LocalJev, FakeEngine]:
    engine = FakeEngine()
    return LocalJev(engine=engine), engine  # type: ignore[arg-type]


def remote(engine: FakeEngine) -> Jev:
    def answer(request: httpx.Request) -> httpx.Response:
        parsed, warnings = parse_request(json.loads(request.content))
        response = engine.decide(parsed).model_copy(update={"x_warnings": warnings or None})
        return httpx.Response(200, json=response.model_dump(mode="json", exclude_none=True))

    return Jev(transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seed": 7, "diagnostics": True, "samples": 2, "layout": "joint"},
        {"extra_body": {"sed": 7, "chunk_rows": 9}},
        {"timeout": 1.0, "headers": {"x-a": "b"}, "model": "jev-fake"},
    ],
)
@pytest.mark.parametrize("questions", [QUESTIONS, {"a": {"type": "noul", "instructions": "Is it?"}}])
def test_decides_as_over_http(questions: Any, options: dict[str, Any]) -> None:
    state = {"text": ("héllo",), "n": 1}
    here, engine = local()
    decision = here.decide(state, questions, **options)
    assert type(decision) is Decision
    assert decision == remote(engine).decide(state, questions, **options)
    assert engine.requests[0] == engine.requests[1]
    assert decision.request_id is None


def test_warnings_and_diagnostics_come_through() -> None:
    here, _ = local()
    decision = here.decide("s", QUESTIONS, seed=3, diagnostics=True, extra_body={"sed": 7})
    assert [warning.loc for warning in decision.warnings] == [["sed"]]
    assert decision.diagnostics == {"seed": 3}
    assert here.decide("s", QUESTIONS).warnings == ()


def test_typed_class() -> None:
    here, _ = local()
    decision = here.decide("x" * 60, Ticket)
    assert type(decision) is TypedDecision
    assert isinstance(decision.value, Ticket)
    assert (decision.value.angry, decision.value.team) == (True, "b")
    assert decision.probabilities == {"angry": 0.6, "team": {"a": 0.0, "b": 1.0}}


def test_a_request_that_a_server_refuses_is_refused() -> None:
    here, engine = local()
    with pytest.raises(InvalidRequestError) as caught:
        here.decide("s", QUESTIONS, samples=99, seed=2**40)
    assert {tuple(issue.loc) for issue in caught.value.issues} == {("body", "samples"), ("body", "seed")}
    assert caught.value.status == 422
    with pytest.raises(InvalidRequestError, match="did you mean 'seed'"):
        here.decide("s", QUESTIONS, strict=True, extra_body={"sed": 1})
    with pytest.raises(InvalidRequestError):
        here.decide({"x": float("nan")}, QUESTIONS)
    with pytest.raises(InvalidRequestError):
        here.decide("s", {})
    with pytest.raises(NotFoundError):
        here.decide("s", QUESTIONS, model="other")
    with pytest.raises(TypeError, match="unexpected keyword argument 'sampels'"):
        here.decide("s", QUESTIONS, sampels=1)  # type: ignore[call-overload]
    assert engine.requests == []


def test_names_itself_and_its_models() -> None:
    with local()[0] as here:
        assert repr(here) == "LocalJev('jev-fake')"
        assert [model.name for model in here.models()] == ["jev-fake"]


def test_a_module_of_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in ("torch", "tokenizers"):
        monkeypatch.setitem(sys.modules, "jev.engine", Missing(missing))
        with pytest.raises(MissingExtraError) as caught:
            LocalJev()
        assert str(caught.value) == f"LocalJev needs {missing}: pip install 'jev-server[server]'"
        assert caught.value.name == missing
    monkeypatch.setitem(sys.modules, "jev.engine", Missing("jev.prompt"))
    with pytest.raises(ModuleNotFoundError, match=r"jev\.prompt") as broken:
        LocalJev()
    assert not isinstance(broken.value, MissingExtraError)


class Missing:
    """A module whose import fails because another one is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        raise ModuleNotFoundError(f"No module named {self._name!r}", name=self._name)


def test_the_embedded_model_decides_the_same_in_every_thread() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tokenizers")
    here = LocalJev()
    states = ["My card was charged twice!", "Thank you, all is well."]
    alone = [here.decide(state, QUESTIONS) for state in states]
    barrier = threading.Barrier(4)

    def decide(number: int) -> Decision:
        barrier.wait(10)
        return here.decide(states[number % 2], QUESTIONS)

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(decide, range(4)))
    # Matmul threads may share the work differently from call to call, which rounds differently.
    for one, other in zip(together, [*alone, *alone], strict=True):
        assert one.nouls["angry"].noul == pytest.approx(other.nouls["angry"].noul, abs=1e-5)
        assert one.choices["team"].choice == other.choices["team"].choice
        for name, probability in other.choices["team"].probabilities.items():
            assert one.choices["team"].probabilities[name] == pytest.approx(probability, abs=1e-5)
        assert one.scores["how"].score == pytest.approx(other.scores["how"].score, abs=1e-5)
    assert list(alone[0].answers) == list(QUESTIONS)
    assert alone[0].model in [model.name for model in here.models()]
    assert alone[0].usage.input_tokens > 0
