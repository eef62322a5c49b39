"""A type checker infers Decision for a mapping of questions and TypedDecision[T] for a class of any kind."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import jev
import jev.schemas

SNIPPET = """
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, TypedDict
from pydantic import BaseModel
from jev import AsyncJev, Jev, LocalJev, Noul, Score

class Plain:
    urgent: Annotated[bool, "Is it urgent?"]
    severity: Annotated[float, Score(["low", "high"])]

@dataclass
class Data:
    team: Literal["billing", "technical"]

class Model(BaseModel):
    urgent: bool

class Row(NamedTuple):
    urgent: bool

class Map(TypedDict):
    urgent: bool

async def main(sync: Jev, later: AsyncJev, local: LocalJev) -> None:
    reveal_type(sync.decide("s", {"a": Noul("Is it?")}))
    reveal_type(sync.decide({"a": 1}, {"a": {"type": "noul", "instructions": "Is it?"}}, seed=1))
    reveal_type(sync.decide(Model(urgent=True), Plain).value)
    reveal_type(sync.decide(Data("billing"), Data).value.team)
    reveal_type(sync.decide(["s"], Model, samples="auto"))
    reveal_type(sync.decide("s", Row).value)
    reveal_type(sync.decide("s", Map).value)
    reveal_type(await later.decide("s", {"a": Noul("Is it?")}))
    reveal_type(await later.decide("s", Plain, timeout=3))
    reveal_type(local.decide("s", {"a": Noul("Is it?")}))
    reveal_type(local.decide("s", Map))
    reveal_type(sync.models()[0].name)
    sync.decide("s", Plain, sampels=1)
    sync.decide("s", Plain, layout="side by side")
    sync.decide(7, Plain)
    sync.decide("s", {"a": 7})
"""
REVEALED = [
    "Decision",
    "Decision",
    "Plain",
    "Literal['billing', 'technical']",
    "TypedDecision[Model]",
    "Row",
    "Map",
    "Decision",
    "TypedDecision[Plain]",
    "Decision",
    "TypedDecision[Map]",
    "str",
]


def pyright(where: Path) -> str:
    """Check snippet.py in `where`, or skip when pyright is not installed or cannot start."""
    tool = shutil.which("pyright", path=str(Path(sys.executable).parent)) or shutil.which("pyright")
    if tool is None:
        pytest.skip("pyright is not installed")
    started = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=120, check=False)
    if started.returncode != 0:
        pytest.skip(f"pyright cannot start: {started.stderr[-200:]}")
    command = [tool, "--pythonpath", sys.executable, "snippet.py"]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout


@pytest.mark.slow
def test_overloads_are_inferred(tmp_path: Path) -> None:
    # pyright does not follow the import hook of an editable install, so it gets the files as installed.
    for package in (jev.schemas, jev):
        source = Path(str(package.__file__)).parent
        target = tmp_path.joinpath(*package.__name__.split("."))
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "snippet.py").write_text(SNIPPET)
    output = pyright(tmp_path)
    assert re.findall(r'snippet.py:.* information: Type of ".*" is "(.*)"', output) == REVEALED, output
    lines = [int(line) for line in re.findall(r"snippet.py:(\d+):\d+ - error: ", output)]
    assert sorted(set(lines)) == [37, 38, 39, 40], output
