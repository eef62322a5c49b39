"""Measure what the types of a GGUF file cost in quality: the embedded model in each, against itself in fp32.

Every row of labelled sets is asked as a closed question. A type is read in two ways: decoded in torch (fp32
activations) and by the compiled kernels (int8 activations). Most rows of the embedded model are 640 wide, and
K types need multiples of 256, so most of its matrices fall back as llama.cpp does it; "padded" rounds every
matrix to the type itself, its rows filled up with zeros, and computes with that in fp32.

    python benchmarks/formats.py --data DATA
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from common import add_json_option, machine, machine_line, parser_of, progress, say
from labelled import Example, load

from jev.engine import Engine
from jev.model import embedded, native
from jev.model.checkpoint import load_checkpoint
from jev.model.config import ModelConfig
from jev.model.gguf.mix import q4_k_m
from jev.model.gguf.quantize import encode
from jev.model.gguf.write import metadata_of, rope_freqs, stored_tensor, write_file
from jev.model.quant.blocks import BLOCKS, decode
from jev.schemas import ChoiceAnswer, NoulAnswer, SystemOneRequest

SETS = "trec,sst2,clinc150,sms_spam,tweeteval_emotion,banking77,snips"
TYPES = ("BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_K_M")
AT_ONCE = 8
"""Requests a step."""

Probabilities = list[tuple[float, ...]]


@dataclass(frozen=True)
class Result:
    """One way to read one type, against fp32.

    Attributes:
        type: asked for.
        route: torch, kernels or padded.
        stored: what share of the matrices' weights has which type.
        bits: a weight of the matrices.
        agreement: share of rows with the same first choice.
        mean_dp: mean over rows of the largest difference of a probability.
        max_dp: the largest of them.
        accuracy: share of rows with the right first choice.

    """

    type: str
    route: str
    stored: dict[str, float]
    bits: float
    agreement: float
    mean_dp: float
    max_dp: float
    accuracy: float


def read_all(engine: Engine, examples: Sequence[Example]) -> Probabilities:
    """The probabilities of every row's alternatives."""
    found: Probabilities = []
    for start in range(0, len(examples), AT_ONCE):
        plans = [
            engine.prepare(
                SystemOneRequest.model_validate(
                    {
                        "state": one.state,
                        "questions": {"label": one.question.model_dump()},
                        "samples": 1,
                        "seed": 1,
                    }
                )
            )
            for one in examples[start : start + AT_ONCE]
        ]
        for example, response in zip(
            examples[start : start + AT_ONCE], engine.run_many(plans, fresh=True), strict=True
        ):
            if isinstance(response, Exception):
                raise response
            answer = response.answers["label"]
            if isinstance(answer, NoulAnswer):
                found.append((answer.noul, 1 - answer.noul))
            else:
                assert isinstance(answer, ChoiceAnswer)
                found.append(tuple(answer.probabilities[name] for name in example.alternatives))
    return found


def top(probabilities: Sequence[float]) -> int:
    return probabilities.index(max(probabilities))


def accuracy(found: Probabilities, examples: Sequence[Example]) -> float:
    return sum(top(p) == one.gold for p, one in zip(found, examples, strict=True)) / len(examples)


def compared(
    kind: str,
    route: str,
    weights: Mapping[str, int],
    found: Probabilities,
    expected: Probabilities,
    right: float,
) -> Result:
    """Hold what a type says against fp32; `weights` counts the matrices' by type."""
    far = [max(abs(a - b) for a, b in zip(p, q, strict=True)) for p, q in zip(found, expected, strict=True)]
    total = sum(weights.values())
    return Result(
        type=kind,
        route=route,
        stored={name: count / total for name, count in sorted(weights.items())},
        bits=sum(8 * BLOCKS[name][1] / BLOCKS[name][0] * count for name, count in weights.items()) / total,
        agreement=sum(top(p) == top(q) for p, q in zip(found, expected, strict=True)) / len(far),
        mean_dp=sum(far) / len(far),
        max_dp=max(far),
        accuracy=right,
    )


def written(path: Path, tensors: Mapping[str, torch.Tensor], kind: str) -> Counter[str]:
    """Write the embedded model in a type; returns its matrices' weights by the type that they got."""
    config = load_config()
    spec = json.loads((embedded.path() / "tokenizer.json").read_text(encoding="utf-8"))
    mixed = kind == "Q4_K_M"
    stored = [stored_tensor(name, value, "Q4_K" if mixed else kind) for name, value in tensors.items()]
    if mixed:
        types = q4_k_m({one.name: one.shape for one in stored})
        # The type is bound where the tensor is made.
        stored = [
            stored_tensor(name, value, types[one.name])
            for one, (name, value) in zip(stored, tensors.items(), strict=True)
        ]
    write_file(path, metadata_of(config, spec), [*stored, rope_freqs(config)])
    counts: Counter[str] = Counter()
    for one, value in zip(stored, tensors.values(), strict=True):
        if value.dim() > 1 and not one.name.endswith("ffn_gate_inp.weight"):
            counts[one.type] += value.numel()
    return counts


def load_config() -> ModelConfig:
    return ModelConfig.from_folder(embedded.path())


@contextmanager
def route_of(name: str) -> Iterator[None]:
    """Within it models are loaded for the kernels, or for decoding in torch."""
    if name == "kernels":
        yield
    else:
        with mock.patch.object(native, "available", lambda: False):
            yield


def padded(engine: Engine, tensors: Mapping[str, torch.Tensor], kind: str) -> None:
    """Round every matrix of a loaded fp32 model to a type, filling rows up with zeros."""
    own = engine.model.text.state_dict()
    for name, value in tensors.items():
        if value.dim() > 1 and not name.endswith("router.proj.weight"):
            width = value.shape[-1]
            filled = F.pad(value, (0, -width % BLOCKS[kind][0]))
            own[name].copy_(decode(encode(filled, kind), kind)[..., :width])


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of labelled sets")
    parser.add_argument("--sets", default=SETS, help=f"names, comma separated (default {SETS})")
    parser.add_argument("--rows", type=int, default=2000, help="rows over all sets (default 2000)")
    parser.add_argument("--types", default=",".join(TYPES), help="comma separated (default: all)")
    parser.add_argument("--routes", default="torch,kernels,padded", help="comma separated (default: all)")
    parser.add_argument("--threads", type=int, help="torch threads")
    add_json_option(parser)
    return parser.parse_args(argv)


def engines(
    kind: str, routes: Sequence[str], folder: Path, tensors: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, Counter[str], Engine]]:
    """The embedded model in a type, loaded for each route that there is for it."""
    path = folder / f"{kind}.gguf"
    counts = written(path, tensors, kind)
    for route in routes:
        if route == "padded" and kind.endswith("_K"):
            engine = Engine.load()
            with torch.no_grad():
                padded(engine, tensors, kind)
            yield route, Counter({kind: sum(counts.values())}), engine
        elif route == "torch" or (route == "kernels" and any(map(native.supports, counts))):
            with route_of(route):
                engine = Engine.load(path)
            yield route, counts, engine
    path.unlink()


def row(one: Result) -> str:
    """A line of a Markdown table."""
    stored = ", ".join(f"{name} {100 * part:.0f} %" for name, part in one.stored.items() if part >= 0.005)
    return (
        f"| {one.type} | {stored} | {one.bits:.2f} | {one.route} | {100 * one.agreement:.2f} % "
        f"| {one.mean_dp:.2g} | {one.max_dp:.2g} | {one.accuracy:.3f} |"
    )


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = machine(args.threads)
    names, started = args.sets.split(","), time.perf_counter()
    share = -(-args.rows // len(names))
    examples = [one for name in names for one in load(args.data, name, share)]
    reference = read_all(Engine.load(), examples)
    right = accuracy(reference, examples)
    tensors = load_checkpoint(embedded.path(), vision=False).text.state_dict()
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.types.split(","):
            for route, counts, engine in engines(kind, args.routes.split(","), Path(folder), tensors):
                found = read_all(engine, examples)
                results.append(compared(kind, route, counts, found, reference, accuracy(found, examples)))
                progress(f"{row(results[-1])} {time.perf_counter() - started:.0f} s")
    report = {
        "machine": facts,
        "rows": len(examples),
        "accuracy": right,
        "kernels": native.kernels(),
        "results": [asdict(one) for one in results],
    }
    if not say(report, args.json):
        return
    print(machine_line(facts))
    print(f"{len(examples)} rows, accuracy in fp32 {right:.3f}\n")
    print("| type | matrices as | bits | route | labels that agree | mean abs dp | largest | accuracy |")
    print("|---|---|---|---|---|---|---|---|")
    for one in results:
        print(row(one))


if __name__ == "__main__":
    main()
