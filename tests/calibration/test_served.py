"""A request that names a calibration gets calibrated answers, or is told why not; other requests get none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from jev import InvalidRequestError, LocalJev
from jev.backends.base import fingerprint_of
from jev.calibration.apply import calibrated
from jev.calibration.file import Calibration, CalibrationError
from jev.calibration.fit import LEAST, MOST, Answers, fit_temperature
from jev.engine import Engine
from jev.schemas import Choice, Noul, Question, Score, SystemOneRequest, SystemOneResponse, distribution
from jev.server.app import create_app
from jev.settings import Settings

QUESTIONS: dict[str, Question] = {
    "money": Noul("Is it about money?"),
    "topic": Choice("What is it about?", ["billing", "travel", "music"]),
    "anger": Score("How upset?", ["calm", "annoyed", "furious"]),
}
Make = Callable[..., Calibration]


def request(**fields: Any) -> SystemOneRequest:
    return SystemOneRequest.model_validate(
        {"state": "My card was charged.", "questions": QUESTIONS, **fields}
    )


def probabilities(response: SystemOneResponse) -> dict[str, list[float]]:
    return {name: list(distribution(QUESTIONS[name], one)) for name, one in response.answers.items()}


@pytest.mark.parametrize(
    "fields", [{}, {"layout": "joint"}, {"permutations": 3}, {"samples": 3, "instructions": "Be strict."}]
)
@pytest.mark.parametrize("change", [{}, {"method": "temperature+bias"}])
def test_answers_go_through_it(
    small: Engine, make: Make, fields: dict[str, Any], change: dict[str, Any]
) -> None:
    plain = probabilities(small.decide(request(**fields)))
    small.calibrations["mine"] = calibration = make(small, request(**fields), temperature=0.4, **change)
    response = small.decide(request(calibration="mine", diagnostics=True, **fields))
    for entry in calibration.questions:
        name = entry.ids[0]
        assert probabilities(response)[name] == pytest.approx(calibrated(plain[name], entry), abs=1e-6)
        assert max(probabilities(response)[name]) > max(plain[name])
        assert sum(probabilities(response)[name]) == pytest.approx(1, abs=1e-12)
    assert response.x_warnings is None
    topic = response.answers["topic"].model_dump()
    assert topic["choice"] == max(topic["probabilities"], key=topic["probabilities"].get)
    again = probabilities(small.decide(request(**fields)))
    assert all(again[name] == pytest.approx(plain[name], abs=1e-6) for name in plain)


@pytest.mark.parametrize("least", [1e-6, 1e-12, 1e-18])
def test_what_is_fitted_is_what_is_served(small: Engine, make: Make, least: float) -> None:
    """Also for the smallest probabilities that logits below the soft cap give."""
    only = Noul("Is it?")
    raw, count, right = (1 - least, least), 200, 180
    answers = Answers(
        np.array([raw] * count),
        np.array([0] * right + [1] * (count - right)),
        np.ones(count),
        np.array([str(index) for index in range(count)]),
    )
    temperature = fit_temperature([answers]).temperature
    asked = SystemOneRequest(state="s", questions={"only": only})
    (entry,) = make(small, asked, temperature=temperature).questions
    assert LEAST < temperature < MOST
    assert calibrated(raw, entry)[0] == pytest.approx(right / count, abs=0.002)


def test_a_refitted_calibration_is_another_model_to_caches_and_jobs(
    small: Engine, make: Make, tmp_path: Path
) -> None:
    """Under the same name and path; so are settings of how attachments are read."""
    file = tmp_path / "mine.json"
    settings = Settings(calibrations={"mine": file})
    found = set()
    for temperature in (2.0, 3.0):
        make(small, request(), temperature=temperature).save(file)
        found.add(fingerprint_of("w", settings))
    found.add(fingerprint_of("w", Settings()))
    found.add(fingerprint_of("w", Settings(speech_language="de")))
    found.add(fingerprint_of("w", Settings(limits={"max_images": 3})))
    assert len(found) == 5
    assert fingerprint_of("w", Settings()) in found


def test_diagnostics_tell_what_it_did(small: Engine, make: Make) -> None:
    small.calibrations["mine"] = make(small, request(), ["topic"], bias=(0.5, 0.0, -0.5))
    found = small.decide(request(calibration="mine", diagnostics=True)).x_diagnostics
    plain = small.decide(request(diagnostics=True)).x_diagnostics
    assert found is not None
    assert plain is not None
    assert (found["calibration"], plain["calibration"]) == ("mine", None)
    topic = found["questions"]["topic"]
    assert topic["calibration"] == {"temperature": 2.0, "bias": [0.5, 0.0, -0.5]}
    raw = probabilities(small.decide(request()))["topic"]
    assert topic["raw_probabilities"] == pytest.approx(raw, abs=1e-6)
    assert "raw_probabilities" not in found["questions"]["money"]
    assert "raw_probabilities" not in plain["questions"]["topic"]
    assert plain["model"] == asdict(small.identity)
    assert plain["model"]["precision"] == "float32"


@pytest.mark.parametrize("layout", ["isolated", "joint"])
def test_calibrating_one_question_leaves_the_others(small: Engine, make: Make, layout: str) -> None:
    small.calibrations["one"] = make(small, request(layout=layout), ["topic"], temperature=3.0)
    plain = probabilities(small.decide(request(layout=layout)))
    response = small.decide(request(layout=layout, calibration="one"))
    found = probabilities(response)
    assert found["topic"] != pytest.approx(plain["topic"], abs=1e-3)
    for name in ("money", "anger"):
        assert found[name] == pytest.approx(plain[name], abs=1e-6)
    assert response.x_warnings is not None
    assert [warning.loc for warning in response.x_warnings] == [
        ["questions", "money"],
        ["questions", "anger"],
    ]
    assert {warning.type for warning in response.x_warnings} == {"uncalibrated"}


def test_strict_refuses_what_it_does_not_cover(small: Engine, make: Make) -> None:
    small.calibrations["one"] = make(small, request(), ["topic"])
    with pytest.raises(InvalidRequestError) as caught:
        small.decide(request(calibration="one", strict=True))
    assert [issue.loc[-1] for issue in caught.value.issues] == ["money", "anger"]
    assert "Calibration 'one' does not cover this question" in caught.value.issues[0].msg


def test_a_renamed_question_is_covered_and_a_reworded_one_is_not(small: Engine, make: Make) -> None:
    small.calibrations["mine"] = make(small, request())
    renamed = {"other id": QUESTIONS["topic"]}
    assert small.decide(request(questions=renamed, calibration="mine")).x_warnings is None
    for fields in (
        {"questions": {"topic": Choice("What is it about??", ["billing", "travel", "music"])}},
        {"questions": {"topic": Choice("What is it about?", ["travel", "billing", "music"])}},
        {"questions": renamed, "instructions": "Be strict."},
        {"questions": renamed, "permutations": 2},
        {"questions": {"topic": QUESTIONS["topic"]}, "layout": "joint"},
    ):
        response = small.decide(request(calibration="mine", **fields))
        assert [warning.type for warning in response.x_warnings or ()] == ["uncalibrated"]


def test_a_single_option_needs_none(small: Engine, make: Make) -> None:
    questions = {**QUESTIONS, "only": Choice("Which?", ["this"])}
    small.calibrations["mine"] = make(small, request())
    response = small.decide(request(questions=questions, calibration="mine", strict=True))
    assert response.x_warnings is None
    assert response.answers["only"].model_dump()["probabilities"] == {"this": 1.0}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"weights": "a" * 64, "model": "other"},
            "was fitted with model 'other' (weights aaaaaaaaaaaa), this is",
        ),
        ({"prompt": "b" * 64}, "was fitted with other prompts (expected bbbbbbbbbbbb, found "),
    ],
)
def test_another_model_or_wording_is_refused(
    small: Engine, make: Make, changed: dict[str, str], said: str
) -> None:
    small.calibrations["mine"] = make(small, request()).model_copy(update=changed)
    with pytest.raises(InvalidRequestError) as caught:
        small.decide(request(calibration="mine"))
    issue = caught.value.issues[0]
    assert issue.loc == ["body", "calibration"]
    assert issue.msg.startswith("Calibration 'mine' " + said)
    assert (small.fingerprint if "weights" in changed else small.identity.prompt)[:12] in issue.msg


def test_an_entry_with_other_labels_is_refused(small: Engine, make: Make) -> None:
    whole = make(small, request(), ["topic"], bias=(0.5, 0.0, -0.5))
    entry = whole.questions[0].model_copy(update={"labels": ("a", "b"), "bias": (0.0, 1.0)})
    small.calibrations["mine"] = whole.model_copy(update={"questions": (entry,)})
    with pytest.raises(InvalidRequestError, match="'mine' has other labels for question 'topic'"):
        small.decide(request(calibration="mine"))


def test_an_unknown_name_is_refused_with_those_there_are(small: Engine, make: Make) -> None:
    small.calibrations["mine"] = make(small, request())
    with pytest.raises(InvalidRequestError, match="No calibration named 'yours' is loaded; loaded: mine"):
        small.decide(request(calibration="yours"))


@pytest.fixture
def file(small: Engine, make: Make, tmp_path: Path) -> Path:
    path = tmp_path / "mine.json"
    make(small, request(), ["topic"], temperature=3.0).save(path)
    return path


def test_local_jev_loads_it_by_name(small: Engine, tiny: Path, file: Path) -> None:
    plain = probabilities(small.decide(request()))
    with LocalJev(tiny, calibrations={"support-v3": file}) as local:
        decision = local.decide("My card was charged.", QUESTIONS, calibration="support-v3")
        assert [warning.type for warning in decision.warnings] == ["uncalibrated"] * 2
        with pytest.raises(InvalidRequestError, match="No calibration named 'mine' is loaded"):
            local.decide("My card was charged.", QUESTIONS, calibration="mine")
    topic = [decision.answers["topic"].probabilities[name] for name in ("billing", "travel", "music")]
    entry = Calibration.load(file).questions[0]
    assert topic == pytest.approx(calibrated(plain["topic"], entry), abs=1e-6)
    with pytest.raises(CalibrationError, match=r"calibration 'x': .*none\.json: cannot be read"):
        LocalJev(tiny, calibrations={"x": file.with_name("none.json")})


def test_the_server_loads_it_by_name(tiny: Path, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong = file.with_name("wrong.json")
    Calibration.load(file).model_copy(update={"weights": "0" * 64}).save(wrong)
    Calibration.load(file).model_copy(update={"precision": "int4"}).save(file)
    settings = Settings(model=tiny, calibrations={"support-v3": file, "wrong": wrong})
    app = create_app(settings)
    questions = {name: question.model_dump() for name, question in QUESTIONS.items()}
    body = {"state": "My card was charged.", "questions": questions, "sead": 1}
    with TestClient(app, raise_server_exceptions=False) as client:
        app.state.service.loaded.result(60)
        plain = until_ready(client, body)
        found = client.post("/v1/systemone", json={**body, "calibration": "support-v3"}).json()
        refused = client.post("/v1/systemone", json={**body, "calibration": "wrong"})
        strict = {**body, "calibration": "support-v3", "strict": True}
        del strict["sead"]
        assert client.post("/v1/systemone", json=strict).status_code == 422
    assert found["answers"]["money"] == pytest.approx(plain["answers"]["money"])
    assert found["answers"]["topic"]["confidence"] < plain["answers"]["topic"]["confidence"]
    assert [w["loc"] for w in found["x_warnings"]] == [
        ["sead"],
        ["questions", "money"],
        ["questions", "anger"],
    ]
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["loc"] == ["body", "calibration"]
    assert "calibration 'wrong' was fitted with model" in caplog.text
    assert "calibration 'support-v3' was fitted in int4, this is float32" in caplog.text


def until_ready(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    """The first answer; the app begins to serve a moment after the model is loaded."""
    for _ in range(500):
        response = client.post("/v1/systemone", json=body)
        if response.status_code != 503:
            return response.json()
    raise AssertionError("the app never served")


def test_the_names_come_from_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {"a": Path("x.json"), "b": Path("y=z.json")}
    monkeypatch.setenv("JEV_CALIBRATIONS", "a=x.json, b=y=z.json")
    assert Settings.load().calibrations == expected
    monkeypatch.delenv("JEV_CALIBRATIONS")
    assert Settings.load(calibrations=["a=x.json", "b=y=z.json"]).calibrations == expected
    toml = tmp_path / "jev.toml"
    toml.write_text('[calibrations]\na = "x.json"\nb = "y=z.json"\n', encoding="utf-8")
    assert Settings.load(toml).calibrations == expected
    for bad in (["a"], ["=x"], ["a="], "a=x,a=y", ""):
        with pytest.raises(ValueError, match="calibrations: "):
            Settings.load(calibrations=bad)
