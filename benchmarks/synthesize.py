"""Write a checkpoint of DiffusionGemma 26B-A4B's shape with random weights of sane size, or a smaller one.

    python benchmarks/synthesize.py OUT.gguf              # 16.8 GB, types as in the published Q4_K_M file
    python benchmarks/synthesize.py OUT                   # a folder with 11 shards in bf16, 51.6 GB
    python benchmarks/synthesize.py OUT.gguf --layers 3   # a cut of full width

Tensors are made one after the other, each from its name and the seed, so it takes little memory, and a run
that was stopped goes on where it was. Tokens are those of the embedded model, with fillers up to the
vocabulary.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from common import parser_of, progress
from published import GENERATION, IMAGE_TOKENS, PUBLISHED, TEMPLATE

from jev.model import embedded
from jev.model.config import ModelConfig
from jev.model.gguf.mix import q4_k_m
from jev.model.gguf.names import ROPE_FREQS
from jev.model.gguf.write import ALIGNMENT, Stored, metadata_of, open_file, rope_freqs, stored_tensor
from jev.model.quant.blocks import BLOCKS
from jev.model.text import TextModel
from jev.model.vision import VisionTower
from jev.model.vision_config import VisionConfig
from jev.model.weights.safetensors import INDEX, hf_name, hf_vision_name

CHUNK = 2**24
"""Weights made at once."""


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    raw = config_of(args)
    spec = tokenizer_of(raw["text_config"]["vocab_size"])
    ids = {one["content"]: one["id"] for one in spec["added_tokens"]}
    raw |= {
        "boi_token_id": ids["<|image>"],
        "image_token_id": ids["<|image|>"],
        "eoi_token_id": ids["<image|>"],
    }
    config = ModelConfig.from_dict(raw, GENERATION)
    if args.out.suffix == ".gguf":
        write_gguf(args.out, config, spec, args.type, args.seed)
        size = args.out.stat().st_size
    else:
        write_folder(args.out, config, spec, args.seed, vision=not args.no_vision)
        size = sum(file.stat().st_size for file in args.out.glob("*.safetensors"))
    progress(f"{args.out}: {size:,} bytes")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    text = PUBLISHED["text_config"]
    parser = parser_of(__doc__)
    parser.add_argument("out", type=Path, help="a file that ends in .gguf, or a folder for safetensors")
    parser.add_argument(
        "--type", default="Q4_K_M", help="Q4_K_M, or one type for all matrices (default Q4_K_M)"
    )
    for option, key, what in (
        ("layers", "num_hidden_layers", "layers"),
        ("hidden", "hidden_size", "width"),
        ("intermediate", "intermediate_size", "width of the dense MLP"),
        ("experts", "num_experts", "experts a layer"),
        ("expert-width", "moe_intermediate_size", "width of an expert"),
        ("heads", "num_attention_heads", "query heads, twice the key/value heads of a sliding layer"),
        ("vocab", "vocab_size", "tokens"),
    ):
        parser.add_argument(f"--{option}", type=int, default=text[key], help=f"{what} (default {text[key]})")
    parser.add_argument("--no-vision", action="store_true", help="a folder without the vision tower")
    parser.add_argument("--seed", type=int, default=0, help="decides every weight (default 0)")
    parser.add_argument("--threads", type=int, help="torch threads")
    args = parser.parse_args(argv)
    if args.type != "Q4_K_M" and args.type not in BLOCKS:
        parser.error(f"--type must be Q4_K_M or one of {', '.join(BLOCKS)}")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    return args


def config_of(args: argparse.Namespace) -> dict[str, Any]:
    """The published configuration with what the command line changes."""
    text = PUBLISHED["text_config"] | {
        "num_hidden_layers": args.layers,
        "hidden_size": args.hidden,
        "intermediate_size": args.intermediate,
        "num_experts": args.experts,
        "top_k_experts": min(PUBLISHED["text_config"]["top_k_experts"], args.experts),
        "moe_intermediate_size": args.expert_width,
        "num_attention_heads": args.heads,
        "num_key_value_heads": max(1, args.heads // 2),
        "num_global_key_value_heads": max(1, args.heads // 8),
        "vocab_size": args.vocab,
    }
    return {**PUBLISHED, "text_config": text}


def tokenizer_of(vocab: int) -> dict[str, Any]:
    """The embedded model's `tokenizer.json` with exactly `vocab` ids, and images at the published ones."""
    spec = json.loads((embedded.path() / "tokenizer.json").read_text(encoding="utf-8"))
    known = {token: id for token, id in spec["model"]["vocab"].items() if token not in IMAGE_TOKENS}
    least = max(known.values()) + 1 + len(IMAGE_TOKENS)
    if vocab < least:
        raise SystemExit(f"--vocab must be at least {least}, the tokens of the embedded model")
    last = {name: vocab - len(IMAGE_TOKENS) + n for n, name in enumerate(IMAGE_TOKENS)}
    images = IMAGE_TOKENS if vocab > max(IMAGE_TOKENS.values()) else last
    free = sorted(set(range(vocab)) - {*known.values(), *images.values()})
    spec["model"]["vocab"] = known | images | {f"⟨{id}⟩": id for id in free}
    for one in spec["added_tokens"]:
        one["id"] = images.get(one["content"], one["id"])
    return spec


# Values


def draw(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A tensor that stays fp32 in any file, by what it is for."""
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if name.endswith("layer_scalar"):
        mean, spread = 1.0, 0.03
    elif name.endswith(("q_norm.weight", "k_norm.weight")):
        # Scores are sums of `width` products that nothing scales; this holds them at about 2.
        mean, spread = 1.5 * shape[-1] ** -0.25, 0.2
    elif "post_" in name:
        mean, spread = 0.4, 0.2
    elif name.endswith("router.proj.weight"):
        mean, spread = 0.0, 1.5
    else:
        mean, spread = 1.0, 0.2
    values = generator.standard_normal(shape, dtype=np.float32) * spread
    return torch.from_numpy(values if mean == 0 else mean * (1 + values))


def random_rows(name: str, shape: tuple[int, ...], type: str, seed: int) -> Iterator[np.ndarray]:
    """The bytes of a matrix [..., in] a part at a time: random blocks whose weights spread by in^-0.5."""
    values, size = BLOCKS[type]
    blocks = math.prod(shape) // values
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    step = max(1, CHUNK // values)
    for start in range(0, blocks, step):
        yield _MAKERS[type](generator, min(step, blocks - start), size, shape[-1] ** -0.5).reshape(-1)


def _random(generator: np.random.Generator, blocks: int, size: int) -> np.ndarray:
    return np.frombuffer(generator.bytes(blocks * size), dtype=np.uint8).reshape(blocks, size).copy()


def _half(value: float) -> np.ndarray:
    return np.frombuffer(np.float16(value).tobytes(), dtype=np.uint8)


def _scaled(at: int, spread: float) -> Callable[..., np.ndarray]:
    """Blocks of evenly random values that spread by `spread`, with one fp16 scale at byte `at`."""

    def make(generator: np.random.Generator, blocks: int, size: int, std: float) -> np.ndarray:
        made = _random(generator, blocks, size)
        made[:, at : at + 2] = _half(std / spread)
        return made

    return make


def _q5_1(generator: np.random.Generator, blocks: int, size: int, std: float) -> np.ndarray:
    made = _scaled(0, math.sqrt(1023 / 12))(generator, blocks, size, std)
    made[:, 2:4] = _half(-15.5 * std / math.sqrt(1023 / 12))
    return made


def _k_affine(most: int) -> Callable[..., np.ndarray]:
    """Q4_K and Q5_K: minima are the scales, so that weights are scale * (q - most / 2) and have mean 0."""
    spread = math.sqrt(63 * 127 / 6 * ((most + 1) ** 2 - 1) / 12)

    def make(generator: np.random.Generator, blocks: int, size: int, std: float) -> np.ndarray:
        made = _random(generator, blocks, size)
        made[:, 0:2], made[:, 2:4] = _half(std / spread), _half(most / 2 * std / spread)
        made[:, 8:12] = made[:, 4:8]
        made[:, 12:16] = made[:, 12:16] & 15 | made[:, 12:16] << 4
        return made

    return make


def _from_table(dtype: torch.dtype) -> Callable[..., np.ndarray]:
    """Evenly spread floats, 256 different ones."""

    def make(generator: np.random.Generator, blocks: int, size: int, std: float) -> np.ndarray:
        values = (torch.arange(256) - 127.5) / 73.9 * std
        table = values.to(dtype).view(-1, 1).view(torch.uint8).numpy()
        return table[np.frombuffer(generator.bytes(blocks), dtype=np.uint8)]

    return make


_BYTE_SPREAD = math.sqrt((256**2 - 1) / 12)
_MAKERS: dict[str, Callable[..., np.ndarray]] = {
    "F32": _from_table(torch.float32),
    "F16": _from_table(torch.float16),
    "BF16": _from_table(torch.bfloat16),
    "Q8_0": _scaled(0, _BYTE_SPREAD),
    "Q5_0": _scaled(0, math.sqrt(1023 / 12)),
    "Q5_1": _q5_1,
    "Q4_K": _k_affine(15),
    "Q5_K": _k_affine(31),
    "Q6_K": _scaled(208, _BYTE_SPREAD * math.sqrt((64**2 - 1) / 12)),
}


# Files


def write_gguf(path: Path, config: ModelConfig, spec: Mapping[str, Any], kind: str, seed: int) -> None:
    """Write a GGUF file, going on with the one that a stopped run has left."""
    with torch.device("meta"):
        named = TextModel(config.text).state_dict()
    tensors = [
        stored_tensor(name, value, "Q4_K" if kind == "Q4_K_M" else kind) for name, value in named.items()
    ]
    if kind == "Q4_K_M":
        types = q4_k_m({one.name: one.shape for one in tensors})
        tensors = [dataclasses.replace(one, type=types[one.name]) for one in tensors]
    own = dict(zip((one.name for one in tensors), named, strict=True))
    tensors.append(rope_freqs(config))

    header = path.with_suffix(".header")
    metadata = {"general.name": "synthetic", **metadata_of(config, spec, TEMPLATE)}
    open_file(header, metadata, tensors).close()
    # Tensors begin at multiples of the alignment, the first one as well.
    start = padded(header.read_bytes())
    header.unlink()

    def parts(one: Stored) -> Iterator[bytes]:
        if one.name == ROPE_FREQS:
            yield one.data().numpy().tobytes()
        elif one.type == "F32":
            yield draw(own[one.name], one.shape, seed).numpy().tobytes()
        else:
            yield from map(bytes, random_rows(own[one.name], one.shape, one.type, seed))

    whole = [(one.name, math.prod(one.byte_shape), parts(one)) for one in tensors]
    write_parts(path, start, whole, ALIGNMENT)


def write_folder(
    folder: Path, config: ModelConfig, spec: Mapping[str, Any], seed: int, *, vision: bool
) -> None:
    """Write a folder of bf16 shards, going on with those that a stopped run has left."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        shapes = {
            hf_name(name): tuple(one.shape) for name, one in TextModel(config.text).state_dict().items()
        }
        if vision:
            tower = VisionTower(VisionConfig.from_dict(config.raw), config.text.hidden_size)
            shapes |= {hf_vision_name(name): tuple(one.shape) for name, one in tower.state_dict().items()}
    files = {
        "config.json": config.raw
        if vision
        else {k: v for k, v in config.raw.items() if k != "vision_config"},
        "generation_config.json": GENERATION,
        "tokenizer.json": spec,
    }
    shards: dict[int, list[str]] = {}
    for name in shapes:
        shards.setdefault(shard_of(name, len(config.text.layers)), []).append(name)
    names = {number: f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in shards}
    total = sum(map(math.prod, shapes.values()))
    files[INDEX] = {
        "metadata": {"total_size": 2 * total},
        "weight_map": {name: names[number] for number, held in shards.items() for name in sorted(held)},
    }
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")

    def parts(name: str) -> Iterator[bytes]:
        if len(shapes[name]) == 1 or name.endswith("router.proj.weight"):
            yield draw(name, shapes[name], seed).bfloat16().view(torch.uint8).numpy().tobytes()
        else:
            yield from map(bytes, random_rows(name, shapes[name], "BF16", seed))

    for number, held in sorted(shards.items()):
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for name in held:
            size = 2 * math.prod(shapes[name])
            header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        start = len(text).to_bytes(8, "little") + text
        whole = [(name, 2 * math.prod(shapes[name]), parts(name)) for name in held]
        write_parts(folder / names[number], start, whole, 1)


def shard_of(name: str, layers: int) -> int:
    """The file that the published set has a tensor in: two layers with the embedding, then three a file."""
    if name == "model.decoder.embed_tokens.weight":
        return 1
    layer = int(name.split(".")[3]) if name.startswith("model.decoder.layers.") else layers - 1
    return 1 if layer < 2 else 2 + (layer - 2) // 3


def padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % ALIGNMENT)


def write_parts(
    path: Path, start: bytes, tensors: Iterable[tuple[str, int, Iterator[bytes]]], alignment: int
) -> None:
    """Write a header and tensors of known sizes, going on behind those that are whole already."""
    if path.exists():
        progress(f"{path.name} is there already")
        return
    part = path.with_name(path.name + ".part")
    with part.open("r+b" if part.exists() else "w+b") as file:
        if file.read(len(start)) != start:
            file.seek(0)
            file.truncate()
            file.write(start)
        have = file.seek(0, 2)
        at = len(start)
        for name, size, parts in tensors:
            end = at + size + -size % alignment
            if have < end:
                _write_one(file, at, size, parts)
                file.write(b"\0" * (-size % alignment))
                progress(f"{path.name}: {name}, {end:,} bytes")
            at = end
        file.truncate(at)
    part.rename(path)


def _write_one(file: BinaryIO, at: int, size: int, parts: Iterator[bytes]) -> None:
    file.seek(at)
    file.truncate()
    written = sum(file.write(part) for part in parts)
    assert written == size


if __name__ == "__main__":
    main()
