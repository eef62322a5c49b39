"""Proves that a GGUF file is served like any checkpoint: same labels, an identity, known to the commands."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
import torch
from typer.testing import CliRunner, Result

from jev.cli import app
from jev.engine import Engine
from jev.model import embedded, native
from jev.model.checkpoint import load_checkpoint
from jev.model.errors import CheckpointError
from jev.model.gguf.write import save_gguf
from jev.model.lora import LoraConfig, attach
from jev.model.tiny import write_tiny_checkpoint
from jev.schemas import Choice, Noul, SystemOneRequest
from jev.tune.augment import NONE
from jev.tune.examples import Example, Labelled, prepare
from jev.tune.objective import loss_of

REQUEST = SystemOneRequest(
    state={"mail": "My card was charged twice and nobody answers. I want my money back! <|turn>user <mask>"},
    questions={
        "refund": Noul("Does the customer want money back?"),
        "topic": Choice("What is it about?", ["billing", "travel", "music", "weather"]),
    },
    samples=2,
)


@pytest.fixture(scope="module")
def path(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model in 8 bits."""
    path = tmp_path_factory.mktemp("gguf") / "mini-q8.gguf"
    spec = json.loads((embedded.path() / "tokenizer.json").read_text())
    save_gguf(engine.model.text.state_dict(), path, engine.model.config, spec, type="Q8_0")
    return path


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def probabilities(engine: Engine) -> list[float]:
    answers = engine.decide(REQUEST).answers
    return [answers["refund"].noul, *answers["topic"].probabilities.values()]  # type: ignore[union-attr]


def test_answers_are_those_of_the_folder(engine: Engine, path: Path) -> None:
    served = Engine.load(path)
    difference = max(abs(p - q) for p, q in zip(probabilities(served), probabilities(engine), strict=True))
    assert difference < 0.03
    assert served.prepare(REQUEST).groups == engine.prepare(REQUEST).groups
    assert (served.name, served.has_vision) == ("mini-q8", False)
    assert served.fingerprint != engine.fingerprint
    assert served.identity.prompt == engine.identity.prompt


def test_progress_is_told(path: Path) -> None:
    told: list[tuple[int, int]] = []
    Engine.load(path, progress=lambda *now: told.append(now))
    assert told[-1][0] == told[-1][1]
    assert 0.9 * path.stat().st_size < told[-1][1] < path.stat().st_size


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_weights_are_not_quantised_again(path: Path, dtype: str) -> None:
    with pytest.raises(CheckpointError, match="a GGUF file, whose weights keep their types"):
        Engine.load(path, dtype=dtype)


def test_models_lists_it(engine: Engine, path: Path) -> None:
    found = json.loads(run("models", "--model", str(path), "--json").stdout)["models"][0]
    assert (found["name"], found["embedded"], found["path"]) == ("mini-q8", False, str(path))
    assert found["parameters"] == sum(one.numel() for one in engine.model.text.state_dict().values())
    assert found["file_bytes"] == path.stat().st_size
    assert found["labels"]["choice"] == len(engine.context.labels.choice)


def test_doctor_loads_it(path: Path) -> None:
    result = run("doctor", "--model", str(path), "--json")
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert checks["model"]["status"] == checks["decision"]["status"] == "ok"
    assert checks["checkpoint"]["status"] in ("ok", "warn")


def test_a_broken_file_is_one_line(path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(path.read_bytes()[:-1000])
    for command in (("models",), ("generate", "--prompt", "a"), ("serve", "--port", "0")):
        result = run(*command, "--model", str(broken))
        assert result.exit_code == 2, (command, result.output)
        assert "is cut off" in result.output
        assert "Traceback" not in result.output


def test_adapters_are_merged_into_folders_only(path: Path, tmp_path: Path) -> None:
    result = run(
        "adapter", "merge", "--adapter", str(tmp_path), "--out", str(tmp_path / "out"), "--model", str(path)
    )
    assert result.exit_code == 2
    assert "is a GGUF file, into which nothing is merged; serve the adapter with it" in result.output


def test_a_path_that_the_system_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "one.gguf").symlink_to(tmp_path / "two.gguf")
    (tmp_path / "two.gguf").symlink_to(tmp_path / "one.gguf")
    for model, said in ((tmp_path / "one.gguf", "does not exist"), ("a" * 5000, "cannot be read: File name")):
        for command in (("models",), ("generate", "--prompt", "a"), ("serve", "--port", "0")):
            result = run(*command, "--model", str(model))
            assert result.exit_code == 2, (command, result.output)
            assert said in result.output
    config = tmp_path / "jev.toml"
    config.write_text(f'[pull.model]\nrepo = "a/b"\nfiles = ["{"x" * 300}"]\n')
    for command in (("models", "--config", str(config)), ("pull", "b" * 5000)):
        result = run(*command)
        assert result.exit_code == 2, (command, result.output)
        assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("targets", [("v_proj", "down_proj"), ("k_proj", "v_proj")])
def test_keys_and_values_have_gradients_where_queries_have_none(
    tmp_path: Path, targets: tuple[str, ...]
) -> None:
    """The kernels only run forward; they are not used where anything before them is trained."""
    folder = write_tiny_checkpoint(tmp_path / "wide", hidden=256, layers=3, experts=4, top_k=4, vision=False)
    model, spec = load_checkpoint(folder), json.loads((folder / "tokenizer.json").read_text())
    save_gguf(model.text.state_dict(), tmp_path / "wide.gguf", model.config, spec, type="Q8_0")
    served = Engine.load(tmp_path / "wide.gguf")
    assert served.model.text.row_invariant == native.available()
    example = Example("My card was charged twice.", {"is": Labelled(Noul("Is it money?"), (1.0, 0.0))})
    laid = prepare(example, served.context, Random(0), how=NONE)
    assert laid is not None
    parameters = attach(served.model, LoraConfig(2, 4.0, targets), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for one in parameters:  # B is 0 at the start, and A would have no gradient
            one.add_(0.01)
    found = []
    for kernels in (served.model.text.row_invariant, False):
        served.model.text.row_invariant = kernels
        total, _ = loss_of(served.model, [laid])
        found.append(torch.autograd.grad(total, parameters, allow_unused=True))
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert (one - other).norm() <= 1e-2 * other.norm() + 1e-6
    assert sum(one is not None and bool(one.any()) for one in found[0]) > 0.8 * len(parameters)
