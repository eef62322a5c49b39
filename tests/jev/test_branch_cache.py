"""Where every product of a model runs in kernels, no bit of an answer depends on what else runs or is cached;
so questions are cached too, and one that is asked again runs its canvases only.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from jev.engine import Engine
from jev.extractors import Picture
from jev.material import Material
from jev.model import native
from jev.model.checkpoint import load_checkpoint
from jev.model.gguf.write import save_gguf
from jev.model.lora import Adapter
from jev.model.tiny import write_tiny_checkpoint
from jev.schemas import Choice, Noul, Question, Score, SystemOneRequest, SystemOneResponse

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")

CANVAS = 6  # rows of an isolated canvas
POOL: dict[str, Question] = {
    "angry": Noul("Is the customer angry?"),
    "team": Choice("Which team?", ["billing", "travel", "music"]),
    "bad": Score("How bad is it?", ["cosmetic", "annoying", "blocking"]),
    "many": Choice("Which?", [f"o{n}" for n in range(30)]),
}
Make = Callable[..., Adapter]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "source"
    return write_tiny_checkpoint(path, hidden=256, layers=2, experts=4)


@pytest.fixture(scope="module")
def base(folder: Path) -> Engine:
    """A tiny model whose matrices all have kernels, with a window of 8 and a vision tower."""
    model = load_checkpoint(folder)
    spec = json.loads((folder / "tokenizer.json").read_text())
    path = folder.with_name("tiny.gguf")
    save_gguf(model.text.state_dict(), path, model.config, spec, type="Q8_0")
    loaded = Engine.load(path, vision=folder)
    assert loaded.model.row_invariant
    return loaded


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def variant(base: Engine, **options: Any) -> Engine:
    """The same model with a cold cache and other settings."""
    return Engine(base.model, base.context.tokenizer, name=base.name, **options)


def ask(
    state: Any = "My card was charged twice.", names: Sequence[str] = ("angry", "team"), **fields: Any
) -> SystemOneRequest:
    questions = {name: POOL[name] for name in names}
    return SystemOneRequest(**{"state": state, "questions": questions, "samples": 1, **fields})


def dumped(response: SystemOneResponse | Exception) -> bytes:
    assert isinstance(response, SystemOneResponse)
    return response.model_dump_json().encode()


def rows_read(engine: Engine, asked: SystemOneRequest) -> float:
    before = engine.stats()["rows_read"]
    engine.decide(asked)
    return engine.stats()["rows_read"] - before


# The same bits


common = {
    "state": st.sampled_from(["", "Short.", {"a": [1, 2]}, "word " * 40]),
    "seed": st.integers(0, 2),
}
requests = st.one_of(
    st.builds(
        ask,
        names=st.lists(st.sampled_from(sorted(POOL)), min_size=1, max_size=3, unique=True),
        permutations=st.integers(1, 2),
        samples=st.sampled_from([1, 3, "auto"]),
        **common,
    ),
    st.builds(
        ask,
        names=st.lists(st.sampled_from(["angry", "bad", "team"]), min_size=1, max_size=3, unique=True),
        layout=st.just("joint"),
        **common,
    ),
)


@settings(max_examples=12)
@given(
    st.lists(requests, min_size=1, max_size=4),
    st.sampled_from([40, 150, 512]),
    st.sampled_from([0, 10**5, 10**6, 2**28]),
    st.integers(1, 2),
)
def test_answers_do_not_depend_on_what_runs_or_is_cached(
    base: Engine, asked: list[SystemOneRequest], step_rows: int, cache_bytes: int, threads: int
) -> None:
    torch.set_num_threads(1)
    alone = [dumped(variant(base).decide(one)) for one in asked]
    torch.set_num_threads(threads)
    engine = variant(base, step_rows=step_rows, prefill_rows=32, cache_bytes=cache_bytes)
    for _ in range(2):  # cold, then whatever the cache holds
        together = engine.run_many([engine.prepare(one) for one in asked])
        assert [dumped(one) for one in together] == alone
        assert [dumped(engine.decide(one)) for one in asked] == alone


def test_label_mass_does_not_depend_on_it_either(base: Engine) -> None:
    def masses(response: SystemOneResponse | Exception) -> list[Any]:
        assert isinstance(response, SystemOneResponse)
        assert response.x_diagnostics is not None
        return [one["label_mass"] for one in response.x_diagnostics["questions"].values()]

    asked = [ask(f"State {n}.", diagnostics=True, samples=n + 1) for n in range(3)]
    engine = variant(base)
    together = engine.run_many([engine.prepare(one) for one in asked])
    assert [masses(one) for one in together] == [masses(variant(base).decide(one)) for one in asked]


# What is run


def test_a_repeat_runs_canvases_only(base: Engine) -> None:
    engine = variant(base)
    asked = ask(samples=2, permutations=2)
    units = engine.prepare(asked).units
    canvases = 2 * CANVAS * len(units)
    assert rows_read(engine, asked) == canvases + sum(len(unit.branch) for unit in units)
    assert engine.stats()["branch_hits"] == 0
    assert rows_read(engine, asked) == canvases
    assert engine.stats()["branch_hits"] == len(units)
    # Another seed, more samples: the same questions about the same state.
    assert rows_read(engine, ask(samples=3, permutations=2, seed=9)) == 3 * CANVAS * len(units)
    # A question that is new beside one that is not.
    bad = len(engine.prepare(ask(names=("bad",))).units[0].branch)
    assert rows_read(engine, ask(names=("angry", "bad"))) == 2 * CANVAS + bad


def test_another_state_is_another_branch(base: Engine) -> None:
    engine = variant(base)
    engine.decide(ask("One state."))
    assert rows_read(engine, ask("Another one.")) > 2 * CANVAS
    assert engine.stats()["branch_hits"] == 0


def test_reads_that_are_added_run_canvases_only(base: Engine) -> None:
    engine = variant(base)
    asked = ask(samples="auto", auto_threshold=0, auto_max=3)
    engine.decide(asked)
    assert rows_read(engine, asked) == 2 * 3 * CANVAS


def test_prefix_metrics_count_prefixes(base: Engine) -> None:
    engine = variant(base)
    for _ in range(3):
        engine.decide(ask())
    assert (engine.stats()["prefix_misses"], engine.stats()["prefix_hits"]) == (1, 2)


def test_requests_in_flight_together(base: Engine) -> None:
    engine = variant(base, step_rows=64)
    plans = [engine.prepare(ask(seed=seed, samples=2)) for seed in (0, 0, 1)]
    wanted = [dumped(variant(base).run(plan)) for plan in plans]
    assert [dumped(one) for one in engine.run_many(plans)] == wanted
    # One that found its branches loses them from the cache while it runs.
    first = engine.start(plans[0])
    assert first.left == 2 * 2 * CANVAS
    engine.forget()
    while not first.done:
        engine.step([first])
    assert dumped(engine.finish(first)) == wanted[0]


def test_a_branch_without_its_prefix(base: Engine) -> None:
    engine = variant(base)
    wanted = dumped(engine.decide(ask()))
    (key,) = {run.key_of(unit) for run in [engine.start(engine.prepare(ask()))] for unit in run.plan.units}
    entries = engine.stepper.cache._entries
    engine.stepper.cache.bytes -= entries.pop(key).nbytes
    assert dumped(engine.decide(ask())) == wanted
    assert engine.stats()["branch_hits"] == 4  # by `start` above, and now


def test_a_branch_never_takes_the_place_of_its_prefix(base: Engine) -> None:
    whole = variant(base)
    whole.decide(ask())
    (prefix,) = (one.kv.nbytes for one in whole.start(whole.prepare(ask())).encodings if one.kv)
    for budget in range(prefix, whole.stepper.cache.bytes + 1, prefix // 7):
        engine = variant(base, cache_bytes=budget)
        for _ in range(3):
            engine.decide(ask())
        assert engine.stats()["prefix_hits"] == 2
        assert engine.stats()["prefix_bytes"] <= budget


def test_nothing_is_kept_where_nothing_may_be(base: Engine) -> None:
    engine = variant(base, cache_bytes=0)
    assert rows_read(engine, ask()) == rows_read(engine, ask())
    engine = variant(base)
    plans = [engine.prepare(ask())]
    for _ in range(2):
        engine.run_many(plans, fresh=True)
    assert engine.stats()["prefix_bytes"] == engine.stats()["branch_hits"] == 0
    engine.decide(ask())
    engine.forget()
    assert rows_read(engine, ask()) > 2 * CANVAS


# Pictures and adapters


def picture(colour: str) -> Picture:
    file = io.BytesIO()
    Image.new("RGB", (64, 48), colour).save(file, "png")
    return Picture.of(file.getvalue(), 64, 48)


def test_a_question_with_a_picture(base: Engine) -> None:
    asked = SystemOneRequest(
        state="s", questions={"q": Noul("Is <a> red?"), "r": Noul("Is it?")}, samples=1, diagnostics="full"
    )
    materials = [Material(assets={"<a>": picture(colour)}) for colour in ("red", "blue")]

    def answers(engine: Engine, material: Material) -> str:
        return str(engine.decide(asked, material).answers)

    wanted = [answers(variant(base), one) for one in materials]
    assert wanted[0] != wanted[1]
    engine = variant(base)
    branches = [unit.branch for unit in engine.prepare(asked, materials[0]).units]
    assert max(map(len, branches)) > 40  # the picture stands in a branch
    for n in (0, 1, 1, 0):
        assert answers(engine, materials[n]) == wanted[n]
    assert engine.stats()["branch_hits"] == 5  # the other question three times, each of the pictures once


def test_adapters_are_read_as_ever(folder: Path, base: Engine, random_adapter: Make) -> None:
    """With one on, products depend on each other: nothing of it is kept, and nothing found by it."""
    adapter = random_adapter(base.model.config.text, 1)
    path = folder.with_name("tiny.gguf")
    engine = Engine.load(path, name="tiny", adapters={"a": adapter})
    plain, adapted = ask(), ask(model="jev-latest+a")
    wanted = dumped(variant(base).decide(plain)).replace(base.name.encode(), b"tiny")
    for _ in range(2):
        assert dumped(engine.decide(plain)) == wanted
        assert rows_read(engine, adapted) > 2 * CANVAS
    assert engine.stats()["branch_hits"] == 2
    assert dumped(engine.decide(adapted)) == dumped(engine.decide(adapted)) != wanted


# Other models


def test_other_models_run_their_branches(engine: Engine, tiny: Path) -> None:
    """Torch's matmuls round by how many rows there are, so there a cached branch would move last bits."""
    for one in (variant(engine), Engine.load(tiny), Engine.load(tiny, dtype="int8")):
        assert not one.model.row_invariant
        bytes_first = dumped(one.decide(ask()))
        assert rows_read(one, ask()) > 2 * CANVAS
        assert dumped(one.decide(ask())) == bytes_first
        assert one.stats()["branch_hits"] == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_only_in_fp32(folder: Path, base: Engine, dtype: str) -> None:
    assert not load_checkpoint(folder.with_name("tiny.gguf"), dtype=getattr(torch, dtype)).row_invariant


def test_only_where_every_matrix_has_a_kernel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_checkpoint(folder)
    spec = json.loads((folder / "tokenizer.json").read_text())
    path = folder.with_name("half.gguf")
    save_gguf(model.text.state_dict(), path, model.config, spec, type="BF16")
    assert not load_checkpoint(path).row_invariant
    monkeypatch.setattr(native, "available", lambda: False)
    assert not load_checkpoint(folder.with_name("tiny.gguf")).row_invariant
