"""A calibration file comes back as it was written, and a bad one is refused in one sentence that names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jev.calibration.file import Calibration, CalibrationError, load_calibrations
from jev.engine import Engine
from jev.schemas import Choice, Noul, SystemOneRequest


@pytest.fixture
def calibration(small: Engine, make: Callable[..., Calibration]) -> Calibration:
    questions = {"a": Noul("Is it?"), "b": Choice("Which?", {"ä": None, "ö": None})}
    return make(small, SystemOneRequest(state="s", questions=questions), bias=(0.1 + 0.2, -0.3))


def test_it_comes_back(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    calibration.save(path)
    assert Calibration.load(path) == calibration
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.json"]
    assert '"ä"' in path.read_text(encoding="utf-8")
    assert load_calibrations({"served": path}) == {"served": calibration}


def entry_with(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda body: body["questions"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda body: body.pop("weights"), "weights: Field required"),
        (lambda body: body.update(version=2), "version: Input should be 1"),
        (lambda body: body.update(weights="abc"), "weights: "),
        (lambda body: body.update(questions=[]), "questions: "),
        (lambda body: body.update(extra=1), "extra: "),
        (entry_with(temperature=0), "questions.0.*temperature"),
        (entry_with(temperature=-1), "questions.0.*temperature"),
        (entry_with(temperature=1e9), "questions.0.*temperature"),
        (entry_with(bias=[1.0]), "bias has 1 numbers for 2 labels"),
        (entry_with(bias=[1e9, 0]), "questions.0.bias.0"),
        (entry_with(labels=["one"]), "questions.0.labels"),
        (lambda body: body["questions"].append(body["questions"][0]), "it is there twice"),
    ],
)
def test_a_wrong_field_is_named(
    calibration: Calibration, tmp_path: Path, change: Callable[[dict[str, Any]], Any], named: str
) -> None:
    body = json.loads(calibration.model_dump_json())
    change(body)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(body), encoding="utf-8")
    with pytest.raises(CalibrationError, match=rf"mine\.json: is no calibration \(.*{named}"):
        Calibration.load(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{", b'{"version": NaN}', b"1"])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(content)
    with pytest.raises(
        CalibrationError, match=r"^calibration 'x': .*mine\.json: is no calibration"
    ) as caught:
        load_calibrations({"x": path})
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there(calibration: Calibration, tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"none\.json: cannot be read \(No such file"):
        Calibration.load(tmp_path / "none.json")
    with pytest.raises(CalibrationError, match="cannot be read"):
        Calibration.load(tmp_path)
    with pytest.raises(CalibrationError, match="cannot be written"):
        calibration.save(tmp_path / "no" / "mine.json")
    with pytest.raises(CalibrationError, match=r"the name for .* is empty"):
        load_calibrations({"": tmp_path / "none.json"})
