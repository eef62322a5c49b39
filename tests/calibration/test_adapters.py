"""Proves that a calibration belongs to the adapter it was fitted with, or to none, and others refuse it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from jev import InvalidRequestError
from jev.calibration.file import Calibration
from jev.engine import Engine
from jev.loading import load_engine
from jev.model.lora import Adapter, save_adapter
from jev.schemas import Noul, SystemOneRequest
from jev.settings import Settings

Make = Callable[..., Calibration]


def request(model: str = "jev-latest", calibration: str | None = None) -> SystemOneRequest:
    return SystemOneRequest(
        model=model,
        state="A state.",
        questions={"q": Noul("Is it?")},
        calibration=calibration,
        diagnostics=True,
    )


@pytest.fixture(scope="module")
def adapters(tiny: Path, random_adapter: Callable[..., Adapter]) -> dict[str, Adapter]:
    config = Engine.load(tiny).model.config.text
    return {"a": random_adapter(config, 1), "b": random_adapter(config, 2), "same": random_adapter(config, 1)}


@pytest.fixture(scope="module")
def adapted(tiny: Path, adapters: dict[str, Adapter]) -> Engine:
    return Engine.load(tiny, adapters=adapters)


def fitted(engine: Engine, make: Make, model: str) -> Calibration:
    """A calibration of what answers to `model`, told as `jev calibrate` learns it: from the diagnostics."""
    about = engine.decide(request(model)).x_diagnostics
    assert about is not None
    said = {key: about["model"][key] for key in ("model", "weights", "prompt", "precision")}
    return make(engine, request()).model_copy(update=said)


def test_it_is_taken_by_its_own_and_refused_by_others(adapted: Engine, make: Make) -> None:
    base, own = fitted(adapted, make, "jev-latest"), fitted(adapted, make, "jev-latest+a")
    assert (base.model, own.model) == (adapted.name, f"{adapted.name}+a")
    adapted.calibrations = {"base": base, "own": own}
    for model, calibration in (("jev-latest", "base"), ("jev-latest+a", "own"), ("jev-preview+same", "own")):
        assert adapted.decide(request(model, calibration)).x_diagnostics["calibration"] == calibration  # type: ignore[index]
    for model, calibration in (
        ("jev-latest", "own"),
        ("jev-latest+a", "base"),
        ("jev-latest+b", "base"),
        ("jev-latest+b", "own"),
    ):
        with pytest.raises(InvalidRequestError, match="was fitted with model") as error:
            adapted.decide(request(model, calibration))
        other = adapted.calibrations[calibration].model
        name = adapted.name + model.removeprefix("jev-latest")
        assert f"was fitted with model {other!r}" in str(error.value)
        assert f"this is {name!r}" in str(error.value)


def test_the_diagnostics_have_the_identity(adapted: Engine) -> None:
    for model, identity in zip(("tiny", "tiny+a", "tiny+b", "tiny+same"), adapted.identities, strict=True):
        found = adapted.decide(request(model)).x_diagnostics
        assert found is not None
        assert found["model"] == asdict(identity)
    base, a, b, same = (one.weights for one in adapted.identities)
    assert len({base, a, b}) == 3
    assert a == same


def test_a_server_warns_of_one_that_fits_none_of_its_adapters(
    adapted: Engine,
    adapters: dict[str, Adapter],
    make: Make,
    tiny: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    save_adapter(tmp_path / "a", adapters["a"], base_name="", base_fingerprint=adapted.fingerprint)
    for name in ("a", "b"):
        fitted(adapted, make, f"jev-latest+{name}").save(tmp_path / f"{name}.json")
    files = {name: tmp_path / f"{name}.json" for name in ("a", "b")}
    with caplog.at_level(logging.WARNING):
        load_engine(Settings(model=tiny, adapters={"mine": tmp_path / "a"}, calibrations=files))
    assert [record.getMessage().split()[1] for record in caplog.records] == ["'b'"]
