"""Proves that the tiny checkpoint is complete, reproducible, and has the tokenizer that it claims."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from string import ascii_letters, ascii_uppercase, digits, printable

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from jev.model.checkpoint import load_checkpoint
from jev.model.tiny import write_tiny_checkpoint

MakeTiny = Callable[..., Path]


@pytest.fixture(scope="module")
def tokenizer(tiny: MakeTiny) -> Tokenizer:
    return Tokenizer.from_file(str(tiny() / "tokenizer.json"))


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def test_seed_alone_decides_the_weights(tiny: MakeTiny, tmp_path: Path) -> None:
    first = load_file(tiny() / "model.safetensors")
    again = load_file(write_tiny_checkpoint(tmp_path / "again") / "model.safetensors")
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = load_file(tiny(seed=1) / "model.safetensors")
    assert not any(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("options", [{"config_form": "per_layer"}, {"shards": 4}, {"vision": False}])
def test_form_does_not_change_the_text_weights(tiny: MakeTiny, options: dict[str, object]) -> None:
    one, other = load_checkpoint(tiny()), load_checkpoint(tiny(**options))
    assert one.config.text == other.config.text
    for name, weight in one.text.state_dict().items():
        assert torch.equal(weight, other.text.state_dict()[name]), name


def test_no_weight_is_left_at_a_value_that_hides_mistakes(tiny: MakeTiny) -> None:
    tensors = load_file(tiny() / "model.safetensors")
    for name, value in tensors.items():
        assert torch.isfinite(value).all(), name
        assert not ((value == 0) | (value == 1)).any(), name
    for name in tensors:
        if name.startswith("model.encoder.language_model."):
            decoder = name.replace("encoder.language_model", "decoder")
            assert abs(tensors[name] - tensors[decoder]) > 1e-3, name


def test_transformers_finds_every_tensor_vision_included(pair: Callable[..., object]) -> None:
    pair()  # The reference refuses a folder with a tensor missing, left over or misshapen.


def test_logits_are_of_unit_size(tiny: MakeTiny) -> None:
    model = load_checkpoint(tiny())
    logits = model.decode(torch.arange(16), model.prefill(torch.arange(100, 130)))
    assert 0.5 < float(logits.std()) < 2


def test_every_id_decodes(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == 1024
    for id in range(1024):
        assert tokenizer.decode([id], skip_special_tokens=False)
    assert tokenizer.id_to_token(1024) is None


def test_control_tokens_have_their_ids_and_the_config_agrees(tokenizer: Tokenizer, tiny: MakeTiny) -> None:
    config = json.loads((tiny() / "config.json").read_text())
    ids = encode(tokenizer, "<pad><eos><bos><unk><|think|><|channel><channel|><|turn><turn|>")
    assert ids == [0, 1, 2, 3, 98, 100, 101, 105, 106]
    image = encode(tokenizer, "<|image><|image|><image|>")
    assert image == [config[f"{name}_token_id"] for name in ("boi", "image", "eoi")]
    assert tokenizer.token_to_id("<mask>") == 4
    tokenizer.encode_special_tokens = True
    try:
        assert not {105, 106} & set(encode(tokenizer, "<|turn>user<turn|>"))
    finally:
        tokenizer.encode_special_tokens = False


def test_labels_are_single_tokens(tokenizer: Tokenizer) -> None:
    for text in ("yes", "no", "\n", "\n\n", " ", *digits, *ascii_letters):
        assert len(encode(tokenizer, text)) == 1, repr(text)
    pairs = ["".join(pair) for pair in product(ascii_uppercase, repeat=2)]
    labels = {
        ids[0] for ids in (encode(tokenizer, text) for text in [*ascii_letters, *pairs]) if len(ids) == 1
    }
    assert len(labels) >= 255


@pytest.mark.parametrize(
    "text",
    [printable, "a  b   c\n\n\n\nd", "naïve 日本語 🙂 \u2028", "<|turn>user\n", "Question: yes or no?"],
)
def test_text_survives_the_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(encode(tokenizer, text), skip_special_tokens=False) == text


def test_transformers_tokenises_alike(tokenizer: Tokenizer, tiny: MakeTiny) -> None:
    from transformers import AutoTokenizer

    text = "<bos><|turn>user\nIs it the one?  Ünicode <image|>"
    theirs = AutoTokenizer.from_pretrained(tiny())(text, add_special_tokens=False)["input_ids"]
    assert theirs == encode(tokenizer, text)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"layers": 0}, "layers"),
        ({"hidden": 24}, "hidden"),
        ({"window": 1}, "window"),
        ({"experts": 2, "top_k": 3}, "top_k"),
        ({"vocab": 1000}, "vocab"),
        ({"vocab": 100, "tokenizer": False}, "vocab"),
        ({"shards": 0}, "shards"),
        ({"shards": 10_000}, "shards"),
        ({"dtype": torch.int8}, "dtype"),
    ],
)
def test_arguments_that_make_no_model(tmp_path: Path, options: dict[str, object], named: str) -> None:
    arguments: dict[str, object] = {**options}
    with pytest.raises(ValueError, match=f"^{named} must be"):
        write_tiny_checkpoint(tmp_path / "new", **arguments)  # pyright: ignore[reportArgumentType]


def test_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(FileExistsError):
        write_tiny_checkpoint(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
