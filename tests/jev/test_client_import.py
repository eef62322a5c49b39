"""`import jev` loads the SDK alone: no torch, no web framework, no CLI, and every public name."""

import subprocess
import sys

import pytest

import jev

HEAVY = (
    "torch",
    "tokenizers",
    "safetensors",
    "fastapi",
    "starlette",
    "uvicorn",
    "typer",
    "numpy",
    "cv2",
    "PIL",
)


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "use",
    [
        "import jev, jev.client, jev.local, jev.schemas",
        "from jev import *",
        "import jev; jev.LocalJev; jev.Jev(transport=None); jev.Noul('Is it?')",
    ],
)
def test_nothing_heavy_is_loaded(use: str) -> None:
    code = f"{use}\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    assert run(code) == "[]"


def test_local_jev_is_loaded_when_it_is_used() -> None:
    loaded = "print('jev.local' in sys.modules)"
    assert run(f"import jev, sys; {loaded}; jev.LocalJev; {loaded}") == "False\nTrue"


@pytest.mark.parametrize("missing", ["torch", "tokenizers"])
def test_local_jev_without_the_extra_says_what_to_install(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import jev\n"
        "try: jev.LocalJev()\n"
        "except jev.MissingExtraError as error: print(error)"
    )
    assert run(code) == f"LocalJev needs {missing}: pip install 'jev-server[server]'"


def test_every_public_name_is_there() -> None:
    assert [name for name in jev.__all__ if not hasattr(jev, name)] == []
    with pytest.raises(AttributeError, match="has no attribute 'Nuol'"):
        _ = jev.Nuol
