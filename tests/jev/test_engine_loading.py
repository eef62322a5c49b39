"""Proves that what cannot be served or loaded is refused by name, and what is loaded describes itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from jev.engine import Engine
from jev.errors import APIError, InvalidRequestError, ModelUnavailableError, NotFoundError
from jev.model import embedded
from jev.model.errors import CheckpointError
from jev.schemas import Choice, Noul, SystemOneRequest

ANGRY = Noul("Is the customer angry?")
TEAM = Choice("Which team should take this?", {"billing": "money", "travel": None, "music": None})


def request(**fields: Any) -> SystemOneRequest:
    return SystemOneRequest(
        **{"state": "Charged twice!", "questions": {"angry": ANGRY, "team": TEAM}, **fields}
    )


# Refusals


def refused(engine: Engine, kind: type[APIError], **fields: Any) -> APIError:
    with pytest.raises(kind) as error:
        engine.prepare(request(**fields))
    assert type(error.value) is kind
    return error.value


def test_unknown_model(engine: Engine) -> None:
    error = refused(engine, NotFoundError, model="gpt-9")
    assert (error.status, error.message) == (404, "No model named 'gpt-9'; loaded: jev-mini")
    assert len(refused(engine, NotFoundError, model="x" * 100_000).message) < 300


@pytest.mark.parametrize("model", ["jev-latest", "jev-preview", "jev-mini"])
def test_names_that_are_served(engine: Engine, model: str) -> None:
    assert engine.prepare(request(model=model)).units
    assert model in [one.name for one in engine.models()]


@pytest.mark.parametrize(
    "fields",
    [
        {"images": ["AA=="]},
        {"assets": {"p": {"type": "image", "format": "png", "data_base64": "AA=="}}},
    ],
)
@pytest.mark.parametrize("layout", ["isolated", "joint"])
def test_images_without_a_tower(engine: Engine, fields: dict[str, Any], layout: str) -> None:
    assert not engine.has_vision
    error = refused(engine, ModelUnavailableError, layout=layout, **fields)
    assert (error.status, error.error_type) == (503, "model_unavailable")


@pytest.mark.parametrize("field", ["images", "files", "assets"])
def test_a_model_with_a_tower_says_that_nobody_read_the_attachments(tiny: Path, field: str) -> None:
    seeing = Engine.load(tiny)
    assert seeing.has_vision
    entry = {"type": "image", "format": "png", "data_base64": "AA=="}
    given = {"p": entry} if field == "assets" else [{"name": "a.png", "data": "AA=="}]
    error = refused(seeing, InvalidRequestError, **{field: given})
    assert [issue.loc for issue in error.issues] == [["body", field]]
    assert "were not read" in error.message


@pytest.mark.parametrize("field", ["documents", "videos", "audios", "files"])
def test_attachments(engine: Engine, field: str) -> None:
    error = refused(engine, InvalidRequestError, **{field: [{"name": "a.txt", "data": "YQ=="}]})
    assert (error.status, [issue.loc for issue in error.issues]) == (422, [["body", field]])


def test_calibration(engine: Engine) -> None:
    error = refused(engine, InvalidRequestError, calibration="mine")
    assert [issue.loc for issue in error.issues] == [["body", "calibration"]]
    assert error.issues[0].msg == "No calibration named 'mine' is loaded"


def test_weights_that_are_not_numbers(tiny: Path) -> None:
    broken = Engine.load(tiny)
    broken.model.text.norm.weight.data.fill_(torch.nan)
    with pytest.raises(ArithmeticError, match="not finite"):
        broken.decide(request(samples=1))


# Loading


def test_embedded_model_is_described(engine: Engine) -> None:
    card = json.loads((embedded.path() / "jev.json").read_text())
    assert [one.name for one in engine.models()] == ["jev-latest", "jev-preview", "jev-mini"]
    for one in engine.models():
        assert (one.description, one.release_date) == (card["description"], card["release_date"])
    assert engine.max_context == 32768
    assert engine.decide(request(questions={"a": Choice(["x"])}, model="jev-latest")).model == "jev-mini"


def test_folder_without_a_card_is_named_for_itself(tiny: Path) -> None:
    loaded = Engine.load(tiny)
    assert loaded.name == tiny.name
    assert loaded.models()[-1].description
    assert len(loaded.release_date) == 10
    assert Engine.load(str(tiny), name="mine").name == "mine"
    assert loaded.max_context == 4096
    assert Engine.load(tiny, max_context=4096).max_context == 4096
    assert Engine.load(tiny, max_context=100).max_context == 100


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A checkpoint to break."""
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def load_refusal(path: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as error:
        Engine.load(path, **options)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_what_is_no_folder(tiny: Path, tmp_path: Path) -> None:
    for path, said in (
        (tmp_path / "nothing", "does not exist"),
        (tiny / "config.json", "is not a checkpoint folder or .gguf file"),
    ):
        assert load_refusal(path) == f"{path} {said}"


def test_context_longer_than_the_model(tiny: Path) -> None:
    assert load_refusal(tiny, max_context=4097) == "max_context 4097 is over the 4096 positions of the model"


@pytest.mark.parametrize("dtype", ["float33", "uint8", "", "nn", "__name__"])
def test_dtype_that_is_none(tiny: Path, dtype: str) -> None:
    assert repr(dtype) in load_refusal(tiny, dtype=dtype)


def test_tokenizer_of_a_larger_model(copy: Path) -> None:
    shutil.copy(embedded.path() / "tokenizer.json", copy)
    assert load_refusal(copy) == "tokenizer.json has 22003 ids, the model 1024"


def break_card(folder: Path) -> None:
    (folder / "jev.json").write_text("{")


@pytest.mark.parametrize(
    ("breaks", "named"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json"),
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (break_card, "jev.json"),
    ],
)
def test_folder_with_a_broken_file(copy: Path, breaks: Callable[[Path], Any], named: str) -> None:
    breaks(copy)
    assert named in load_refusal(copy)
