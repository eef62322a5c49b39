"""Proves that a file which nobody has checked is read right or refused in one sentence, and never obeyed."""

from __future__ import annotations

import dataclasses
import re
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from hypothesis import given
from hypothesis import strategies as st

from jev.model.checkpoint import load_checkpoint
from jev.model.errors import CheckpointError
from jev.model.gguf import GGUFFile
from jev.model.gguf.write import Stored
from jev.model.source import read_tokenizer


def refusal(path: Path) -> str:
    """Load, and return the one sentence that says why not."""
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
        read_tokenizer(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 1000
    assert not re.search(r"[.!?] [A-Z]", message), "more than one sentence"
    return message


def test_reads_what_the_library_reads(written: Callable[[str], Path]) -> None:
    path = written("Q4_K")
    ours, theirs = GGUFFile(path), GGUFReader(path)
    assert list(ours.tensors) == [one.name for one in theirs.tensors]
    for one in theirs.tensors:
        mine = ours.tensors[one.name]
        assert (mine.type, list(mine.shape)) == (one.tensor_type.name, one.shape.tolist()[::-1])
        assert (mine.start, mine.nbytes) == (one.data_offset, one.n_bytes)
        assert ours.raw(one.name).numpy().tobytes() == one.data.tobytes()
    keys = [key for key in theirs.fields if not key.startswith("GGUF.")]
    assert list(ours.metadata) == keys
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
        assert ours.metadata.strings(key) == theirs.fields[key].contents()
    for key in ("tokenizer.ggml.token_type", "diffusion-gemma.attention.head_count_kv"):
        assert ours.metadata.integers(key) == theirs.fields[key].contents()


def test_releasing_a_tensor_changes_nothing(written: Callable[[str], Path]) -> None:
    file = GGUFFile(written("F32"))
    before = file.raw("token_embd.weight").clone()
    file.release("token_embd.weight")
    assert torch.equal(file.raw("token_embd.weight"), before)


# Headers that lie


def header(*, keys: bytes = b"", key_count: int = 0, tensors: bytes = b"", count: int = 0) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, count, key_count) + keys + tensors


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def described(name: str, shape: tuple[int, ...], type: int = 0, start: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type, start)


LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot be read"),
    "another format": (b"PK\3\4" + b"\0" * 100, "is not a GGUF file"),
    "only magic": (b"GGUF", "is cut off"),
    "version 1": (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version 1"),
    "big-endian": (struct.pack("<4s", b"GGUF") + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
    "tensor count": (header(count=2**63), "9223372036854775808 tensors, over the limit of"),
    "key count": (header(key_count=2**40), "keys, over the limit of"),
    "key length": (header(keys=struct.pack("<Q", 2**62), key_count=1), "bytes in a key, over the limit"),
    "key cut": (header(keys=struct.pack("<Q", 1000) + b"a", key_count=1), "is cut off"),
    "key bytes": (header(keys=struct.pack("<Q", 2) + b"\xff\xfe" + b"\0" * 9, key_count=1), "not UTF-8"),
    "no key": (header(keys=text("") + struct.pack("<IB", 0, 1), key_count=1), "'' where a key should be"),
    "odd key": (header(keys=text("a\nb") + struct.pack("<IB", 0, 1), key_count=1), "where a key should be"),
    "same key": (header(keys=2 * (text("a") + struct.pack("<IB", 0, 1)), key_count=2), "key a twice"),
    "value type": (header(keys=text("a") + struct.pack("<I", 99), key_count=1), "unknown type 99"),
    "array of arrays": (header(keys=text("a") + struct.pack("<IIQ", 9, 9, 1), key_count=1), "type 9"),
    "array length": (header(keys=text("a") + struct.pack("<IIQ", 9, 4, 2**60), key_count=1), "values in a"),
    "array cut": (header(keys=text("a") + struct.pack("<IIQ", 9, 4, 2**20), key_count=1), "is cut off"),
    "strings cut": (header(keys=text("a") + struct.pack("<IIQQ", 9, 8, 9, 2**63), key_count=1), "is cut off"),
    "alignment": (
        header(keys=text("general.alignment") + struct.pack("<II", 4, 33), key_count=1),
        "33 at general.alignment",
    ),
    "dimensions": (header(tensors=text("x") + struct.pack("<I", 2**31), count=1), "dimensions of tensor x"),
    "no dimensions": (header(tensors=described("x", ()), count=1), "tensor x of shape []"),
    "huge tensor": (header(tensors=described("x", (2**63, 2**63)), count=1), "no file could hold"),
    "zero rows": (header(tensors=described("x", (32, 0)), count=1), "shape [0, 32]"),
    "half a block": (header(tensors=described("x", (48,), 8), count=1), "no whole Q8_0 blocks"),
    "unknown type": (header(tensors=described("x", (32,), 12345), count=1), "unknown type 12345"),
    "type that is not computed with": (header(tensors=described("x", (256,), 16), count=1), "IQ2_XXS"),
    "past the end": (header(tensors=described("x", (32,)), count=1), "is cut off: tensor x ends at byte"),
    "odd offset": (header(tensors=described("x", (1,), 0, 7), count=1) + b"\0" * 99, "not a multiple of 32"),
    "same tensor": (header(tensors=2 * described("x", (1,)), count=2) + b"\0" * 99, "tensor x twice"),
    "overlap": (
        header(tensors=described("x", (16,)) + described("y", (16,), 0, 32), count=2) + b"\0" * 299,
        "tensor y within the tensor x",
    ),
    "odd name": (header(tensors=described("a\nb", (1,)), count=1) + b"\0" * 99, "with the name"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies(lie: str, tmp_path: Path) -> None:
    data, said = LIES[lie]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert said in refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.fixture(scope="module")
def small(source: Any, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return source.write(tmp_path_factory.mktemp("small") / "model.gguf", "Q4_K").read_bytes()


def loads_or_refuses(path: Path) -> None:
    try:
        load_checkpoint(path)
        read_tokenizer(path)
    except CheckpointError as error:
        assert "\n" not in str(error)


@given(data=st.data())
def test_any_cut_is_refused(
    small: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.write_bytes(small[: data.draw(st.integers(0, len(small) - 64))])
    refusal(path)


@given(data=st.data())
def test_any_change_loads_or_is_refused(
    small: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes of the header, where they mean lengths, types and places, replaced at random."""
    # The strings of the vocabulary are most of it and mean least.
    tensors = small.index(b"token_embd.weight")
    place = st.one_of(st.integers(0, 3000), st.integers(tensors - 500, tensors + 4000))
    change = st.tuples(place, st.sampled_from([b"\0", b"\1", b"\xff", b"\x80", b"\xff" * 8, b"\0" * 8]))
    changed = bytearray(small)
    for at, new in data.draw(st.lists(change, min_size=1, max_size=3)):
        changed[at : at + len(new)] = new
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(changed)
    loads_or_refuses(path)


# Metadata of another model


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("general.architecture", "llama", "architecture 'llama', expected 'diffusion-gemma'"),
        ("diffusion.canvas_length", None, "has no diffusion.canvas_length"),
        ("diffusion.canvas_length", "64", "'64' at diffusion.canvas_length, expected a whole number"),
        ("diffusion-gemma.block_count", 3, "tensor blk.2.attn_norm.weight is missing"),
        ("diffusion-gemma.block_count", 2**31, "2147483648 at diffusion-gemma.block_count"),
        ("diffusion-gemma.expert_count", 5, "has shape [4]"),
        ("diffusion-gemma.embedding_length", 512, "embedding_length"),
        ("diffusion-gemma.attention.head_count", 16, "tensor blk.0.attn_q.weight has shape"),
        ("diffusion-gemma.attention.head_count_kv", [4], "1 values at"),
        ("diffusion-gemma.attention.head_count_kv", [3, 3], "cannot share"),
        ("diffusion-gemma.attention.key_length", 64, "value_length"),
        ("diffusion-gemma.attention.sliding_window_pattern", [True, True], "tensor blk.1.attn_q.weight has"),
        ("diffusion-gemma.attention.shared_kv_layers", 1, "shared_kv_layers, which is not supported"),
        ("diffusion-gemma.attention.layer_norm_rms_epsilon", -1.0, "expected a number above 0"),
        ("diffusion-gemma.rope.freq_base", float("nan"), "expected a number above 0"),
        ("diffusion-gemma.expert_used_count", 9, "top_k_experts 9 is over num_experts 4"),
        ("split.count", 2, "one part of several"),
        ("tokenizer.ggml.model", "llama", "tokenizer 'llama', expected 'gemma4'"),
        ("tokenizer.ggml.tokens", None, "has no tokenizer.ggml.tokens"),
        ("tokenizer.ggml.tokens", ["a", "a"], "token twice"),
        ("tokenizer.ggml.tokens", [1, 2], "other values than strings"),
        ("tokenizer.ggml.token_type", [1], "1 values at tokenizer.ggml.token_type"),
        ("tokenizer.ggml.merges", ["ab"], "merge 'ab'"),
        ("tokenizer.ggml.merges", ["a q-q"], "not of two tokens to a third"),
        ("tokenizer.ggml.unknown_token_id", 99999, "past its tokens"),
        ("tokenizer.ggml.eos_token_id", 2**31, "eos_token_id"),
        ("tokenizer.ggml.add_space_prefix", True, "add_space_prefix"),
        ("tokenizer.chat_template", "{{ messages }}", "tokenizer.chat_template without <|turn>"),
    ],
)
def test_metadata_that_does_not_fit(source: Any, tmp_path: Path, key: str, value: Any, said: str) -> None:
    changes = {key: value}
    if key == "tokenizer.ggml.tokens" and isinstance(value, list):
        changes |= {f"tokenizer.ggml.{name}_token_id": 0 for name in ("eos", "padding", "unknown")}
        changes["tokenizer.ggml.token_type"] = [1, 1]
    refused = refusal(source.write(tmp_path / "model.gguf", metadata=changes))
    assert said in refused
    assert refused.count("model.gguf") == 1


# Tensors that do not fit


def without(name: str) -> Callable[[list[Stored]], list[Stored]]:
    return lambda tensors: [one for one in tensors if one.name != name]


def reshaped(name: str, shape: tuple[int, ...]) -> Callable[[list[Stored]], list[Stored]]:
    def change(tensors: list[Stored]) -> list[Stored]:
        blank = torch.zeros(*shape, dtype=torch.float32).view(torch.uint8)
        new = Stored(name, "F32", shape, lambda: blank)
        return [new if one.name == name else one for one in tensors]

    return change


def extra(name: str) -> Callable[[list[Stored]], list[Stored]]:
    return lambda tensors: [*tensors, dataclasses.replace(tensors[1], name=name)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("blk.1.attn_k.weight"), "tensor blk.1.attn_k.weight is missing"),
        (without("token_embd.weight"), "tensor token_embd.weight is missing"),
        (without("rope_freqs.weight"), "tensor rope_freqs.weight is missing"),
        (without("blk.0.enc_layer_output_scale.weight"), "enc_layer_output_scale.weight is missing"),
        (extra("output.weight"), "tensor output.weight is not part of this model"),
        (extra("blk.2.attn_norm.weight"), "tensor blk.2.attn_norm.weight is not part of this model"),
        (reshaped("blk.0.ffn_up.weight", (384, 128)), "has shape [384, 128]"),
        (reshaped("blk.0.attn_norm.weight", (1, 256)), "has shape [1, 256]"),
        (reshaped("rope_freqs.weight", (64,)), "scales frequencies"),
        (reshaped("rope_freqs.weight", (32,)), "expected F32 [64]"),
        (reshaped("token_embd.weight", (256,)), "token_embd.weight has shape [256]"),
    ],
)
def test_tensors_that_do_not_fit(source: Any, tmp_path: Path, change: Callable, said: str) -> None:
    path = source.write(tmp_path / "model.gguf", tensors=change(source.tensors()))
    assert said in refusal(path)
