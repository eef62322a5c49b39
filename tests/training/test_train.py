"""Training the embedded model runs what is served: packs give the served logits, steps lower the loss."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from random import Random

import pytest
import torch

from jev.engine import Engine
from jev.model.tiny import write_tiny_checkpoint
from jev.model.tuning import label_logits

data = import_module("data")
export = import_module("export")
fast = import_module("fast")
guides = import_module("guides")
packs = import_module("packs")
train = import_module("train")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a few rows, one with soft labels."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    random = Random(4)
    lines = []
    for number in range(24):
        word = random.choice(["red", "green", "blue"])
        questions = {
            "which": {"type": "choice", "criteria": dict.fromkeys(["red", "green", "blue"])},
            "red": {"type": "noul", "instructions": "Is it red?"},
        }
        row = {
            "state": f"{word} \u2028 line" if number else {"colour": word},
            "questions": questions,
            "answers": {"which": word, "red": word == "red"},
        }
        if number == 1:
            row["soft"] = {"which": {"red": 3, "blue": 1}}
        lines.append(json.dumps(row, ensure_ascii=False))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """A tiny model whose window holds a whole example."""
    return Engine.load(write_tiny_checkpoint(tmp_path / "tiny", layers=3, window=512, vision=False))


def _batch(engine: Engine, rows: Path) -> list[object]:
    return next(data.batches(rows, engine.context, Random(1), rows=900, twins=1.0))


def test_a_pack_gives_the_served_logits(engine: Engine, rows: Path) -> None:
    """In fp32 as `label_logits` up to rounding, in bf16 near it."""
    batch = _batch(engine, rows)
    trainer = train.Trainer(engine, Path(), lr=1e-3, frozen=0, compiled=False)
    pack = packs.pack(batch, trainer.newline, trainer.tail)
    with torch.no_grad():
        served = label_logits(engine.model, [one.prompt for one in batch])
        for dtype, most in ((torch.float32, 1e-4), (torch.bfloat16, 0.5)):
            logits = fast.Fast(engine.model, dtype)(pack).logits
            for row, expected in zip(logits, served, strict=True):
                assert (row[: len(expected)] - expected).abs().max() < most
                assert torch.isinf(row[len(expected) :]).all()


def test_steps_lower_the_loss_and_a_killed_run_goes_on(engine: Engine, rows: Path, tmp_path: Path) -> None:
    """On one batch again and again; what is loaded again gives the same next step."""
    batch = _batch(engine, rows)
    trainer = train.Trainer(engine, tmp_path, lr=2e-3, frozen=1, compiled=False)
    before = {name: one.clone() for name, one in engine.model.text.named_parameters()}
    losses = [trainer.step(batch, 1.0)["loss"] for _ in range(12)]
    assert losses[-1] < 0.9 * losses[0]
    changed = {
        name for name, one in engine.model.text.named_parameters() if not torch.equal(one, before[name])
    }
    assert changed
    assert not any(name.startswith(("layers.0.", "embed_tokens", "self_conditioning")) for name in changed)
    trainer.save()
    expected = trainer.step(batch, 1.0)
    trainer.load(tmp_path / "state.pt")
    assert trainer.steps == 12
    assert trainer.step(batch, 1.0) == pytest.approx(expected, rel=1e-4)


def test_batches_of_long_examples_hold_enough_reads(engine: Engine) -> None:
    """As many rows as asked for, and more while there are few reads, up to a limit."""
    rows = [
        {
            "state": "word " * length,
            "questions": {"q": {"type": "noul", "instructions": "Is it?"}},
            "answers": {"q": True},
        }
        for length in (2, 40, 150)
        for _ in range(30)
    ]
    examples = [data.example(json.dumps(row)) for row in rows]
    pool = [data.prepare(one, engine.context, Random(0), how=data.NONE) for one in examples]
    batches = data.cut(pool, Random(1), 400)
    assert sorted(id(one) for batch in batches for one in batch) == sorted(map(id, pool))
    for batch in batches:
        held = sum(one.prompt.rows for one in batch)
        assert held - batch[-1].prompt.rows < data.MOST_ROWS * 400
    full = [
        len(batch) >= data.FEWEST_READS or sum(one.prompt.rows for one in batch) >= data.MOST_ROWS * 400
        for batch in batches
    ]
    assert full.count(False) <= 1  # what is left over
    assert len(full) > 5


def test_other_labels_are_of_choices_alone_and_stand_for_the_same_options(engine: Engine) -> None:
    """Only ids of option labels change; every label that is trained comes up, and no two are alike."""
    row = {
        "state": "red",
        "questions": {
            "which": {"type": "choice", "criteria": dict.fromkeys(["red", "green", "blue"])},
            "red": {"type": "noul", "instructions": "Is it red?"},
        },
        "answers": {"which": "green", "red": True},
    }
    one = data.example(json.dumps(row))
    random, said = Random(2), set[int]()
    usual = {label.id for label in engine.context.labels.choice}
    plain = data.prepare(one, engine.context, Random(7), how=data.NONE)
    for _ in range(120):
        context = data.relabelled(engine.context, random)
        assert {label.id for label in context.labels.choice} == usual
        other = data.prepare(one, context, Random(7), how=data.NONE)
        for (branch, _), (before, _) in zip(other.prompt.branches, plain.prompt.branches, strict=True):
            changed = [(new, old) for new, old in zip(branch, before, strict=True) if new != old]
            assert all(new in usual and old in usual for new, old in changed)
        (which, red) = (canvases[0].labels[0] for _, canvases in other.prompt.branches)
        assert len(set(which)) == 3
        assert list(red) == list(plain.prompt.branches[1][1][0].labels[0])
        assert other.reads == plain.reads
        said.update(which)
    trained = [label.id for label in engine.context.labels.choice[: data.MOST_LABELS]]
    assert said <= set(trained)
    assert len(said) > 0.9 * len(trained)


def test_twins_are_the_same_question(engine: Engine, rows: Path) -> None:
    """A twin's target is the first one's in its own order, so equal answers disagree by nothing."""
    batch = _batch(engine, rows)
    reads = [read for one in batch for read in one.reads]
    pairs = data.twin_pairs(batch)
    assert len(pairs) == sum(read.question == "which" for read in reads)
    width = max(len(read.target) for read in reads)
    logits = torch.zeros(len(reads), width)
    for index, read in enumerate(reads):
        logits[index, : len(read.target)] = torch.tensor(read.target)
    for first, second, order in pairs:
        assert [reads[first].target[index] for index in order] == list(reads[second].target)
    assert guides.disagreement(logits, pairs) == pytest.approx(0.0, abs=1e-6)
    assert guides.disagreement(torch.randn(len(reads), width), pairs) > 0.1


def test_a_checkpoint_is_as_good_as_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the way to a folder or to a state of it is the same, and a run goes on from it."""
    seed = write_tiny_checkpoint(tmp_path / "seed", seed=1, layers=4, window=512, vision=False)
    other = write_tiny_checkpoint(tmp_path / "other", seed=2, layers=4, window=512, vision=False)

    def run(*arguments: object) -> None:
        monkeypatch.setattr("sys.argv", ["export.py", *map(str, arguments)])
        export.main()

    run(seed, other, tmp_path / "half.pt", "--mix", 0.5)
    state = torch.load(tmp_path / "half.pt")
    assert state["guides"] is None
    first, second = (dict(Engine.load(one).model.text.named_parameters()) for one in (seed, other))
    changed = {name: one for name, one in state["text"].items() if not torch.equal(one, first[name])}
    assert changed
    for name, one in changed.items():
        torch.testing.assert_close(one, (first[name] + second[name]) / 2)
    run(seed, tmp_path / "half.pt", tmp_path / "half")
    again = dict(Engine.load(tmp_path / "half").model.text.named_parameters())
    assert all(torch.equal(again[name], one) for name, one in state["text"].items())
    engine = Engine.load(seed)
    trainer = train.Trainer(engine, tmp_path, lr=1e-3, frozen=train.FROZEN, compiled=False)
    trainer.load(tmp_path / "half.pt", everything=False)
    now = dict(engine.model.text.named_parameters())
    assert all(torch.equal(now[name], one) for name, one in state["text"].items())
