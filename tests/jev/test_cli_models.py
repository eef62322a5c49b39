"""Proves that `jev models` tells the truth about checkpoints here and about those of a server."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from jev import Jev
from jev.cli import app
from jev.cli.model_facts import facts_of
from jev.engine import Engine
from jev.model import embedded


def models(*args: str) -> Result:
    return CliRunner().invoke(app, ["models", *args])


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JEV_BASE_URL", "JEV_API_KEY", "JEV_MODEL", "JEV_NAME", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The embedded checkpoint in another folder."""
    folder = tmp_path / "other"
    folder.mkdir()
    for file in embedded.path().iterdir():
        if file.name != "jev.json":
            (folder / file.name).symlink_to(file)
    return folder


def test_facts_are_those_of_the_loaded_model() -> None:
    facts, engine = facts_of(embedded.path()), Engine.load()
    text = engine.model.text
    assert facts.name == engine.name
    assert facts.embedded
    assert facts.parameters == sum(tensor.numel() for tensor in text.state_dict().values())
    assert facts.layers == len(text.layers)
    assert facts.context == engine.max_context
    assert facts.labels == {
        "noul": len(engine.context.labels.noul),
        "choice": len(engine.context.labels.choice),
        "score": len(engine.context.labels.score),
    }
    assert facts.file_bytes == (embedded.path() / "model.safetensors").stat().st_size


def test_lists_the_embedded_model_once() -> None:
    result = models()
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{embedded.NAME}\n")
    assert result.stdout.count("  path ") == 1
    assert "yes: ships with the package" in result.stdout
    assert "noul 2, choice 255, score 10" in result.stdout
    assert result.stdout.isascii()


def test_lists_another_checkpoint_besides(other: Path) -> None:
    body = json.loads(models("--model", str(other), "--json").stdout)
    assert [(facts["name"], facts["embedded"]) for facts in body["models"]] == [
        ("other", False),
        (embedded.NAME, True),
    ]
    assert body["models"][0]["parameters"] == body["models"][1]["parameters"]


def test_takes_the_name_of_a_settings_file(other: Path, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f'model = "{other}"\nname = "mine"\n')
    for option in ("--config", "--model"):
        body = json.loads(models(option, str(file), "--json").stdout)
        assert [facts["name"] for facts in body["models"]] == ["mine", embedded.NAME]


def test_a_damaged_checkpoint_is_one_line(other: Path) -> None:
    (other / "tokenizer.json").unlink()
    result = models("--model", str(other))
    assert result.exit_code == 2
    assert result.stderr == f"error: tokenizer.json is missing in {other}\n"


class TestServer:
    @pytest.fixture(autouse=True)
    def _serve(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def handler(request: httpx.Request) -> httpx.Response:
            row = {"name": "served-1", "description": "A model", "release_date": "2026-01-31"}
            if request.url.host == "odd":
                return httpx.Response(200, json={"models": [{"name": 1}]})
            return httpx.Response(200, json={"models": [row]})

        monkeypatch.setattr("jev.cli.models.Jev", partial(Jev, transport=httpx.MockTransport(handler)))

    def test_rows(self) -> None:
        assert models("--url", "http://server").stdout == "served-1  2026-01-31  A model\n"

    def test_json_is_the_wire(self) -> None:
        body = json.loads(models("--url", "http://server", "--json").stdout)
        assert body == {
            "models": [{"name": "served-1", "description": "A model", "release_date": "2026-01-31"}]
        }

    def test_an_answer_of_another_kind_is_exit_code_1(self) -> None:
        result = models("--url", "http://odd")
        assert result.exit_code == 1
        assert result.stderr.startswith("error: models.0.name: ")

    def test_url_and_model_exclude_each_other(self) -> None:
        result = models("--url", "http://server", "--model", "x")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
