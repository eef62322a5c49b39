"""What the tests of calibration share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jev.calibration.file import Calibration, Entry
from jev.calibration.signature import signatures
from jev.engine import Engine
from jev.schemas import SystemOneRequest, alternatives

# pytest's importlib mode puts no test folder on the path; `synthetic` lies here.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def loaded(tiny: Path) -> Engine:
    """The tiny random checkpoint in fp32; take `small`."""
    return Engine.load(tiny)


@pytest.fixture
def small(loaded: Engine) -> Engine:
    """The tiny random checkpoint, without calibrations."""
    loaded.calibrations = {}
    return loaded


@pytest.fixture
def make() -> Callable[..., Calibration]:
    """A calibration of an engine for the questions of a request; `fields` are those of each entry."""

    def make(
        engine: Engine, request: SystemOneRequest, only: list[str] | None = None, **fields: Any
    ) -> Calibration:
        entries = []
        for name, sign in signatures(request).items():
            if only is not None and name not in only:
                continue
            question = request.questions[name]
            entry: dict[str, Any] = {
                "signature": sign,
                "ids": [name],
                "type": question.type,
                "labels": alternatives(question),
                "method": "temperature",
                "temperature": 2.0,
                "rows": 100,
                "states": 100,
            }
            entries.append(Entry.model_validate({**entry, **fields}))
        return Calibration(
            name="mine",
            created="2026-01-01T00:00:00+00:00",
            model=engine.name,
            weights=engine.identity.weights,
            prompt=engine.identity.prompt,
            questions=tuple(entries),
        )

    return make
