"""Proves that `jev quality` measures a real model, gates by exit code, and names bad input in one line."""

from __future__ import annotations

import errno
import json
import os
import re
import weakref
from pathlib import Path

import pytest
from quality_fakes import QUESTIONS, Fake, rows_file, tempered
from typer.testing import CliRunner, Result

from jev.cli import app


def quality(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["quality", *map(str, args)])


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JEV_BASE_URL", "JEV_API_KEY", "JEV_MODEL", "JEV_NAME", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return rows_file(tmp_path / "rows.jsonl", 12)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Fake]:
    """Backends by spec, instead of models."""
    known = {"good": Fake(tempered(1), "good"), "warm": Fake(tempered(3), "warm")}

    def open_fake(spec: str, settings: object = None) -> Fake:
        return known[spec]

    monkeypatch.setattr("jev.backends.open_backend", open_fake)
    return known


def test_measures_a_real_model_with_stability_and_a_page(data: Path, tiny: Path, tmp_path: Path) -> None:
    page, cache = tmp_path / "report.html", tmp_path / "cache.jsonl"
    args = ["run", "--data", data, "--backend", f"torch={tiny}", "--stability", "3", "--limit", "6"]
    result = quality(*args, "--html", page, "--cache", cache, "--json")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    report = json.loads(result.stdout)
    (entry,) = report["backends"]
    assert entry["figures"]["n"] == 18
    assert entry["costs"]["input_tokens"] > 0
    for probe in ("id rename", "isolation"):
        assert entry["stability"][probe]["max_dp"] == pytest.approx(0, abs=1e-5)
    assert page.read_text().startswith("<!doctype html>")
    again = json.loads(quality(*args, "--cache", cache, "--json").stdout)
    assert again["backends"][0]["costs"]["cached"] == 6
    for part in ("figures", "types", "questions", "stability", "mistakes"):
        assert again["backends"][0][part] == entry[part]


def test_tables_are_plain_ascii_and_name_what_they_show(data: Path, fakes: dict[str, Fake]) -> None:
    result = quality("run", "--data", data, "-b", "good", "-b", "warm", "--stability", "2")
    assert result.exit_code == 0, result.output
    assert result.stdout.isascii()
    for word in ("accuracy", "macro-F1", "log loss", "Brier", "ECE floor", "AURC", "score MAE", "score QWK"):
        assert word in result.stdout
    assert re.search(r"agreement +100\.00% of 36 answers, 0 flips", result.stdout)
    assert "option order" in result.stdout
    assert "animal (choice)" in result.stdout


@pytest.mark.parametrize(
    ("gate", "code"),
    [
        (("--fail-under", "accuracy=0.01"), 0),
        (("--fail-under", "accuracy=1.01"), 1),
        (("--fail-over", "choice.nll=0.01"), 1),
        (("--fail-over", "ece=1"), 0),
        (("--fail-under", "agreement=1"), 0),
        (("--fail-over", "max_dp=0.001"), 1),
        (("--fail-over", "latency_p99=60"), 0),
        (("--stability", "2", "--fail-over", "order_flips=0"), 0),
    ],
)
def test_gates_decide_the_exit_code(
    data: Path, fakes: dict[str, Fake], gate: tuple[str, ...], code: int
) -> None:
    result = quality("run", "--data", data, "-b", "good", "-b", "warm", *gate)
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("gate: ") == (code == 1)


def test_a_failed_row_fails_unless_allowed(data: Path, fakes: dict[str, Fake]) -> None:
    def answers(state: str, name: str, question: object) -> list[float]:
        if state == "thing 3":
            raise RuntimeError("broken")
        return list(tempered(1)(state, name, question))  # type: ignore[arg-type]

    fakes["good"].answers = answers
    result = quality("run", "--data", data, "-b", "good")
    assert result.exit_code == 1
    assert "row 4" in result.stdout
    assert "RuntimeError: broken" in result.stdout
    assert result.stderr == "gate: failed 0.08333, must be at most 0 (good)\n"
    assert quality("run", "--data", data, "-b", "good", "--fail-over", "failed=0.1").exit_code == 0


def test_the_same_backend_twice_has_two_names(data: Path, fakes: dict[str, Fake]) -> None:
    report = json.loads(quality("run", "--data", data, "-b", "good", "-b", "good", "--json").stdout)
    assert [entry["name"] for entry in report["backends"]] == ["good", "good #2"]


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("--data", "none.jsonl"), "none.jsonl: cannot be read"),
        (("--data", "DATA", "--fail-under", "accuracy"), "write FIGURE=NUMBER"),
        (("--data", "DATA", "--fail-under", "beauty=1"), "there is no figure 'beauty'"),
        (("--data", "DATA", "--fail-under", "agreement=1"), "compares backends"),
        (("--data", "DATA", "--fail-over", "seed_flips=0"), "needs --stability"),
        (("--data", "DATA", "--samples", "many"), "row 1: samples: "),
        (("--data", "DATA", "--samples", "99"), "row 1: samples: "),
        (("--data", "DATA", "--layout", "round"), "row 1: layout: "),
        (("--data", "DATA", "--slice", "nope"), "--slice nope: no row has this"),
        (("--data", "DATA", "--html", "/nowhere/x.html"), "--html /nowhere/x.html"),
        (("--data", "DATA", "--html", "DATA"), "it is a file that is read"),
        (("--data", "DATA", "--cache", "DATA"), "--cache"),
        (("--data", "DATA", "--backend", "magic"), "there is no kind 'magic'"),
        (("--data", "DATA", "--backend", "torch=/nowhere"), "/nowhere"),
        (("--data", "DATA", "--questions", "DATA"), "JSON decode error"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(data: Path, args: tuple[str, ...], reason: str) -> None:
    before = data.read_bytes()
    result = quality("run", *(str(data) if arg == "DATA" else arg for arg in args))
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert reason in result.stderr
    assert data.read_bytes() == before


def test_one_model_has_gone_before_the_next_is_opened(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that two models that fit one at a time can be compared."""
    alive: list[weakref.ref[Fake]] = []
    there: list[int] = []

    def open_fake(spec: str, settings: object = None) -> Fake:
        there.append(sum(one() is not None for one in alive))
        made = Fake(tempered(1), spec)
        alive.append(weakref.ref(made))
        return made

    monkeypatch.setattr("jev.backends.open_backend", open_fake)
    assert quality("run", "--data", data, "-b", "one", "-b", "two", "-b", "three").exit_code == 0
    assert there == [0, 0, 0]


def test_figures_are_shown_before_a_page_that_cannot_be_written(
    data: Path, tmp_path: Path, fakes: dict[str, Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk takes the page and no figures."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    result = quality("run", "--data", data, "-b", "good", "--html", tmp_path / "x.html", "--json")
    assert result.exit_code == 2
    assert "cannot be written (No space left on device)" in result.stderr
    assert json.loads(result.stdout)["backends"][0]["name"] == "good"


def test_rows_without_reviewed_answers_need_something_to_compare(
    tmp_path: Path, fakes: dict[str, Fake]
) -> None:
    data = tmp_path / "bare.jsonl"
    data.write_text(json.dumps({"state": "a", "questions": QUESTIONS}) + "\n")
    alone = quality("run", "--data", data, "-b", "good")
    assert alone.exit_code == 2
    assert "no row has reviewed answers" in alone.stderr
    both = quality("run", "--data", data, "-b", "good", "-b", "warm")
    assert both.exit_code == 0, both.output
    assert quality("run", "--data", data, "-b", "good", "--stability", "1").exit_code == 0
    gated = quality("run", "--data", data, "-b", "good", "-b", "warm", "--fail-under", "accuracy=0")
    assert gated.exit_code == 1
    assert "accuracy not measured" in gated.stderr


def test_smoke_asks_the_built_in_set(fakes: dict[str, Fake]) -> None:
    result = quality("smoke", "-b", "good", "--by-domain", "--limit", "12")
    assert result.exit_code == 0, result.output
    assert "built-in smoke set | 12 rows" in result.stdout
    assert "by domain: good" in result.stdout
    assert "invoices" in result.stdout
    assert len(fakes["good"].requests) == 12
