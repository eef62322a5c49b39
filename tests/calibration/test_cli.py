"""`jev calibrate` and `jev thresholds` go from rows to a served calibration, and say what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from scipy.special import softmax
from typer.testing import CliRunner

from jev import LocalJev
from jev.calibration.apply import calibrated
from jev.calibration.file import Calibration
from jev.cli import app
from jev.engine import Engine
from jev.schemas import Choice, Noul, SystemOneRequest

TOPICS = {
    "billing": [
        "My card was charged twice",
        "The invoice is wrong",
        "I want my money back",
        "The bill is too high",
    ],
    "travel": ["My flight was cancelled", "The hotel lost our booking", "The train is late", "I need a visa"],
    "music": ["The concert was wonderful", "The guitar is out of tune", "The choir sang", "I love this song"],
}
QUESTIONS = {
    "topic": Choice("What is the message about?", list(TOPICS)).model_dump(),
    "money": Noul("Is the message about money?").model_dump(),
}


def jev(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write(
    folder: Path, rows: list[dict[str, Any]], questions: dict[str, Any] = QUESTIONS
) -> tuple[Path, Path]:
    data, asked = folder / "rows.jsonl", folder / "questions.json"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    asked.write_text(json.dumps(questions), encoding="utf-8")
    return data, asked


def test_the_embedded_model_is_calibrated_and_served(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the reviewed answers a fifth are another topic's, so the model is too sure of itself."""
    other = dict(zip(TOPICS, [*list(TOPICS)[1:], *list(TOPICS)[:1]], strict=True))
    rows = [
        {"state": f"{text}{tail}.", "answers": {"topic": other[topic] if tail == " again" else topic}}
        for topic, texts in TOPICS.items()
        for text in texts
        for tail in ("", " today", " again", " since Monday", " as I said")
    ][:52]
    questions = {"topic": QUESTIONS["topic"]}
    data, asked = write(tmp_path, rows, questions)
    out = tmp_path / "support-v3.json"
    done = jev("calibrate", "--data", data, "--questions", asked, "--samples", 1, "--out", out)
    assert done.exit_code == 0, done.output
    assert f"jev serve --calibration support-v3={out}" in done.output
    calibration = Calibration.load(out)
    assert (calibration.name, calibration.model) == ("support-v3", engine.name)
    assert calibration.options == {"samples": 1}
    (entry,) = calibration.questions
    assert (entry.ids, entry.rows, entry.states, entry.method) == (("topic",), 52, 52, "temperature")
    assert entry.before is not None
    assert entry.after is not None
    assert entry.after.nll < entry.before.nll
    assert entry.after.ece < entry.before.ece

    monkeypatch.setattr(engine, "calibrations", {})
    local = LocalJev(engine=engine, calibrations={"support-v3": out})
    plain = local.decide(rows[0]["state"], questions, samples=1)
    served = local.decide(rows[0]["state"], questions, samples=1, calibration="support-v3")
    assert served.warnings == ()
    assert served.choices["topic"].choice == plain.choices["topic"].choice
    stated = list(plain.choices["topic"].probabilities.values())
    assert list(served.choices["topic"].probabilities.values()) == pytest.approx(calibrated(stated, entry))


@pytest.mark.parametrize("layout", ["isolated", "joint"])
def test_a_temperature_that_is_known_is_found(small: Engine, tiny: Path, tmp_path: Path, layout: str) -> None:
    """Labels are drawn as if the model were four times too unsure."""
    chance = np.random.default_rng(4)
    questions = {"topic": QUESTIONS["topic"]}
    rows = []
    for index in range(120):
        state = f"state {index} {chance.integers(1000)}"
        request = SystemOneRequest.model_validate(
            {"state": state, "questions": questions, "layout": layout, "samples": 1}
        )
        stated = small.decide(request).answers["topic"].model_dump()["probabilities"]
        truth = softmax(np.log(list(stated.values())) / 0.25)
        rows.append({"state": state, "answers": {"topic": str(chance.choice(list(stated), p=truth))}})
    data, asked = write(tmp_path, rows, questions)
    out = tmp_path / "c.json"
    cache = ("--cache", tmp_path / "cache.jsonl")
    common = ("--data", data, "--questions", asked, "--backend", f"torch={tiny}", "--samples", 1, *cache)
    done = jev("calibrate", *common, "--layout", layout, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    entry = json.loads(done.stdout)["calibration"]["questions"][0]
    assert entry["temperature"] == pytest.approx(0.25, rel=0.3)
    assert entry["after"]["nll"] < entry["before"]["nll"]
    assert entry["after"]["accuracy"] == entry["before"]["accuracy"]
    gated = ("thresholds", *common, "--layout", layout, "--calibration", out, "--target-accuracy")
    done = jev(*gated, 0.4, "--json")
    assert done.exit_code == 0, done.output
    gate = json.loads(done.stdout)["questions"][0]["gate"]
    assert gate["accuracy_low"] >= 0.4
    assert gate["kept"] / 120 == gate["coverage"]
    done = jev(*gated, 0.999)
    assert done.exit_code == 0
    assert "topic: no gate shows 99.9% accuracy at 95% confidence" in done.stdout
    small.calibrations["c"] = Calibration.load(out)
    assert small.decide(request.model_copy(update={"calibration": "c"})).x_warnings is None


def test_too_few_rows_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    data, questions = write(tmp_path, [{"state": "s", "answers": {"money": True}}] * 20)
    for command in (("calibrate",), ("thresholds", "--target-accuracy", 0.9)):
        done = jev(*command, "--data", data, "--questions", questions, "--backend", "torch=/nowhere")
        assert done.exit_code == 2
        assert done.stderr == "error: the data have 20 labelled answers; a question needs 50\n"


def test_every_question_with_too_few_rows_is_refused(tiny: Path, tmp_path: Path) -> None:
    rows = [{"state": f"s{n}", "answers": {"money": True, "topic": "travel"}} for n in range(30)]
    data, questions = write(tmp_path, rows)
    common = ("--data", data, "--questions", questions, "--backend", f"torch={tiny}")
    done = jev("calibrate", *common)
    assert done.exit_code == 2
    assert "error: no question can be calibrated: " in done.stderr
    assert "topic: 30 labelled rows, 50 are needed" in done.stderr
    done = jev("thresholds", *common, "--target-accuracy", 0.9)
    assert done.exit_code == 2
    assert "too few labelled rows (money: 30, topic: 30); a question needs 50" in done.stderr


def test_thresholds_refuse_a_calibration_of_another_model(
    engine: Engine, tiny: Path, tmp_path: Path, make: Any
) -> None:
    rows = [{"state": f"s{n}", "answers": {"money": True}} for n in range(50)]
    data, questions = write(tmp_path, rows)
    request = SystemOneRequest.model_validate({"state": "s", "questions": QUESTIONS})
    make(engine, request).save(tmp_path / "c.json")
    common = (
        "--data",
        data,
        "--questions",
        questions,
        "--backend",
        f"torch={tiny}",
        "--target-accuracy",
        0.9,
    )
    done = jev("thresholds", *common, "--calibration", tmp_path / "c.json")
    assert done.exit_code == 2
    assert "c.json was fitted with model 'jev-mini' (weights " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--samples", "many"), "--samples 'many': give a number from 1 to 32, or auto"),
        (("--samples", 99), "samples: "),
        (("--backend", "tpu"), "there is no kind 'tpu'"),
        (("--backend", "torch=/nowhere"), "/nowhere"),
        (("--min-rows", 5), "'--min-rows'"),
        (("--layout", "round"), "'--layout'"),
        (("--out", "/nowhere/c.json"), "--out /nowhere/c.json: it is not a file in a folder that exists"),
        (("--out", "."), "--out .: it is not a file in a folder that exists"),
        (("--config", "/nowhere/jev.toml"), "/nowhere/jev.toml: cannot be read"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, arguments: tuple[object, ...], said: str) -> None:
    data, questions = write(tmp_path, [{"state": f"s{n}", "answers": {"money": True}} for n in range(60)])
    done = jev("calibrate", "--data", data, "--questions", questions, *arguments)
    assert done.exit_code == 2
    assert said in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


def test_bad_rows_are_named(tmp_path: Path) -> None:
    data, questions = write(
        tmp_path, [{"state": "s", "answers": {"money": True}}, {"state": "s", "answers": {"x": 1}}]
    )
    done = jev("calibrate", "--data", data, "--questions", questions)
    assert done.exit_code == 2
    assert "rows.jsonl: row 2: answers.x: there is no such question" in done.stderr


def test_a_server_starts_with_good_calibrations_only(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}", encoding="utf-8")
    for value, said in (
        (f"x={tmp_path / 'bad.json'}", "error: calibration 'x': "),
        (f"x={tmp_path / 'none.json'}", "none.json: cannot be read"),
        ("x", "error: calibrations: each is NAME=FILE"),
    ):
        done = jev("serve", "--model", tiny, "--calibration", value)
        assert done.exit_code == 2
        assert said in done.stderr
