"""Proves that a backend's spec opens what it names, and that a bad one is refused with what there is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from jev.backends import BackendSpec, open_backend
from jev.errors import MissingExtraError
from jev.settings import Settings


@pytest.mark.parametrize(
    ("text", "kind", "variant", "target", "extras"),
    [
        ("torch", "torch", None, None, {}),
        ("torch:bf16", "torch", "bf16", None, {}),
        ("torch:int8=/models/a=b,c", "torch", "int8", "/models/a=b,c", {}),
        ("torch+a-1", "torch", None, None, {}),
        ("torch:int8+a=/models/b+c", "torch", "int8", "/models/b+c", {}),
        ("unified=relative/folder", "unified", None, "relative/folder", {}),
        ("systemone=http://h:1/root", "systemone", None, "http://h:1/root", {}),
        (
            " vllm=https://h,tokenizer=/t,model=m ",
            "vllm",
            None,
            "https://h",
            {"tokenizer": "/t", "model": "m"},
        ),
    ],
)
def test_parts(text: str, kind: str, variant: str | None, target: str | None, extras: dict[str, str]) -> None:
    spec = BackendSpec.parse(text)
    assert (spec.kind, spec.variant, spec.target, spec.extras) == (kind, variant, target, extras)
    assert spec.adapter == (text.partition("+")[2].partition("=")[0] or None)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "there is no kind ''"),
        ("tensorflow", "there is no kind 'tensorflow'"),
        ("torch:fp8", "torch has no variant 'fp8'"),
        ("torch:", "torch has no variant ''"),
        ("torch=", "nothing follows the equals sign"),
        ("torch+", "no adapter follows the plus sign"),
        ("unified+a", "unified takes no adapter"),
        ("unified:int8", "unified has no variants"),
        ("vllm", "vllm needs the address of a server"),
        ("systemone=ftp://host", "must look like http://host:port"),
        ("systemone=localhost:8000", "must look like http://host:port"),
        ("systemone=http://h:port", "the address is not one"),
        ("systemone=http://h,tokenizer=x", "'tokenizer=x' is not one of model with a value"),
        ("vllm=http://h,model=", "'model=' is not one of model, tokenizer with a value"),
    ],
)
def test_refusals(text: str, wrong: str) -> None:
    with pytest.raises(ValueError) as error:
        open_backend(text)
    assert wrong in str(error.value)
    assert "torch[:fp32|bf16|fp16|int8|int4][+ADAPTER][=CHECKPOINT]" in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_opened(tiny: Path) -> None:
    async def opened() -> None:
        for spec in (f"torch={tiny}", f"unified={tiny}", f"torch:bf16={tiny}", f"torch:int4={tiny}"):
            backend = open_backend(spec)
            assert (backend.name, backend.model) == (spec, tiny.name)
            await backend.aclose()
        remote = open_backend("systemone=http://user:secret@host:1/v/,model=jev-9", concurrency=3)
        assert (remote.name, remote.model) == ("systemone=http://host:1/v,model=jev-9", "jev-9")
        assert remote.concurrency == 3
        await remote.aclose()

    asyncio.run(opened())


def test_settings_say_what_the_spec_leaves_open(tiny: Path) -> None:
    backend = open_backend("torch", Settings(model=tiny, name="mine", dtype="bfloat16"))
    assert backend.model == "mine"
    assert str(backend.engine.model.text.embed_tokens.weight.dtype) == "torch.bfloat16"  # type: ignore[attr-defined]
    asyncio.run(backend.aclose())


def test_folder_that_is_none(tmp_path: Path) -> None:
    for kind in ("torch", "unified", "transformers"):
        with pytest.raises(ValueError, match="nowhere does not exist"):
            open_backend(f"{kind}={tmp_path / 'nowhere'}")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "jev.backends.transformers", raising=False)
    monkeypatch.delitem(sys.modules, "jev.backends.reference", raising=False)
    with pytest.raises(MissingExtraError, match=r"needs transformers: pip install 'jev-server\[dev\]'"):
        open_backend("transformers")


def test_importing_loads_no_torch() -> None:
    code = "import sys, jev.backends; sys.exit('torch' in sys.modules or 'fastapi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
