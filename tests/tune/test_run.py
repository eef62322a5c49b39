"""Proves that a run writes what serves as it was measured, and refuses to mix with another one."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tune_cases import COLOURS, QUESTIONS, examples, job, row, write

from jev.adapters import load_adapters
from jev.engine import Engine
from jev.loading import load_engine
from jev.model.errors import CheckpointError
from jev.model.lora import adapter_of, merge_checkpoint
from jev.model.weights.safetensors import TensorFiles
from jev.schemas import SystemOneRequest
from jev.settings import Settings
from jev.tune.estimate import memory
from jev.tune.gather import Size
from jev.tune.group import Group
from jev.tune.job import Checked, Doing, Job, Needs
from jev.tune.recipe import Recipe, TuneError
from jev.tune.record import Forecast, Look, Step
from jev.tune.run import run
from jev.tune.schedule import Order, places
from jev.tune.trained import trainable
from jev.tune.trainer import Stopped, Trainer

REQUESTS = [
    SystemOneRequest(state=state, questions=QUESTIONS, diagnostics="full")
    for state in ("7 red", "blue", {"colour": "green"})
]


def answers(engine: Engine, model: str = "jev-latest") -> list[Any]:
    return [engine.decide(one.model_copy(update={"model": model})).answers for one in REQUESTS]


def served(job: Job, base: Path) -> list[Any]:
    if job.recipe.full:
        return answers(Engine.load(job.out))
    engine = Engine.load(base, adapters=load_adapters({"tuned": job.out}, base))
    return answers(engine, "jev-latest+tuned")


@pytest.mark.parametrize("full", [False, True])
def test_a_run_of_no_steps_changes_no_bit_of_an_answer(tmp_path: Path, small: Path, full: bool) -> None:
    one = job(tmp_path, small, full=full, steps=0)
    report = run(one)
    assert report is not None
    assert report["training"]["steps"] == 0
    assert report["before"] == report["after"]
    assert served(one, small) == answers(Engine.load(small))


@pytest.mark.parametrize("full", [False, True])
def test_a_small_rule_is_learned_and_the_figures_are_those_of_what_is_served(
    tmp_path: Path, small: Path, full: bool
) -> None:
    told: list[Any] = []
    red = {"red": QUESTIONS["red"]}
    learned, held_out = (
        write(tmp_path / f"{name}.jsonl", [{**row(n), "answers": {"red": n % 3 == 0}} for n in numbers])
        for name, numbers in (("rows", range(48)), ("held-out", range(100, 130)))
    )
    recipe = {"full": full, "steps": 40, "batch": 8, "rank": 8, "lr": 0.01 if full else 0.03, "patience": 0}
    one = job(tmp_path, small, data=learned, held_out=held_out, questions=red, **recipe)
    report = run(one, tell=told.append)
    assert report is not None
    before, after = report["before"], report["after"]
    assert (before["n"], after["n"]) == (30, 30)
    assert after["accuracy"] >= before["accuracy"] + 0.3
    assert after["nll"] < before["nll"] - (0.4 if full else 0.08)
    adapters = {} if full else load_adapters({"t": one.out}, small)
    engine = Engine.load(one.out if full else small, adapters=adapters)
    right = 0
    for number in range(100, 130):
        model = "jev-latest" if full else "jev-latest+t"
        request = SystemOneRequest(state=row(number)["state"], questions=red, model=model)
        right += (engine.decide(request).answers["red"].noul > 0.5) == (number % 3 == 0)  # type: ignore[union-attr]
    assert right / 30 == pytest.approx(after["accuracy"])
    losses = [one.loss for one in told if isinstance(one, Step)]
    assert sum(losses[-10:]) < sum(losses[:10])
    looks = [one for one in told if isinstance(one, Look)]
    assert report["training"]["best_step"] == min(looks, key=lambda one: one.loss).step
    kinds = (Checked, Needs, Forecast)
    assert [type(one) for one in told if isinstance(one, kinds)] == list(kinds)
    page = (one.out / "README.md").read_text()
    for part in ("48 rows learned, 30 held out", f"{after['nll']:.3f}", f"{before['ece']:.3f}", "| `red` |"):
        assert part in page
    assert json.loads((one.out / "tune.json").read_text()) == json.loads(json.dumps(report))


def test_a_full_checkpoint_keeps_what_is_not_trained(tmp_path: Path, tiny: Path) -> None:
    one = job(tmp_path, tiny, full=True, steps=1, lr=0.01, held_out=0.0, stored="bfloat16", name="mine")
    run(one)
    old, new = TensorFiles(tiny), TensorFiles(one.out)
    assert set(old) == set(new)
    changed = {
        name
        for name in old
        if not torch.equal(old.tensor(name, torch.bfloat16, "cpu"), new.tensor(name, torch.bfloat16, "cpu"))
    }
    assert any("experts" in name for name in changed)
    assert not any("vision" in name or "self_conditioning" in name for name in changed)
    for name in ("config.json", "tokenizer.json"):
        assert (one.out / name).read_bytes() == (tiny / name).read_bytes()
    assert Engine.load(one.out).name == "mine"


def test_the_same_again_is_the_same_and_another_one_is_refused(tmp_path: Path, small: Path) -> None:
    one = job(tmp_path, small, steps=2)
    report = run(one)
    told: list[Any] = []
    assert run(one, tell=told.append) == report
    assert not any(isinstance(event, Step) for event in told)
    other = dataclasses.replace(one, recipe=one.recipe.model_copy(update={"lr": 0.5}))
    with pytest.raises(
        TuneError, match=r"another run: lr was 0.001 and is 0.5. Give another folder, or --restart"
    ):
        run(other)
    write(one.data, map(row, range(25)))
    with pytest.raises(TuneError, match="another run: data was "):
        run(one)
    again = run(dataclasses.replace(other, restart=True))
    assert again is not None
    assert again["data"]["learned_rows"] + again["data"]["held_out_rows"] == 25
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(TuneError, match="holds other files"):
        run(dataclasses.replace(one, out=tmp_path / "other", restart=True))
    assert (tmp_path / "other" / "file").exists()
    (tmp_path / "third" / "training").mkdir(parents=True)
    own = write(tmp_path / "third" / "training" / "rows.jsonl", map(row, range(9)))
    for data, told in ((one.data, "holds other files"), (own, r"rows\.jsonl is in it")):
        with pytest.raises(TuneError, match=told):
            run(dataclasses.replace(one, data=data, out=tmp_path / "third", restart=True))
    assert own.exists()


def test_a_pipe_of_rows_is_refused(tmp_path: Path, small: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(TuneError, match="is no regular file"):
        run(job(tmp_path, small, data=tmp_path / "rows.jsonl"))


def test_all_weights_of_a_gguf_file_are_not_trained(tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(TuneError, match="--full is for checkpoint folders"):
        run(job(tmp_path, file, full=True))


def test_looks_are_at_any_rows_whatever_their_order(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jev.tune.run.LOOK_ROWS", 12)
    seen: list[list[str]] = []
    trainer = Trainer.__init__

    def spy(self: Trainer, *args: Any, **more: Any) -> None:
        seen.append([example.state for example in args[4]])
        trainer(self, *args, **more)

    monkeypatch.setattr(Trainer, "__init__", spy)
    held = write(tmp_path / "held.jsonl", (row(n) for n in sorted(range(100, 160), key=lambda n: n % 3)))
    for seed in (1, 1, 2):
        run(job(tmp_path, small, held_out=held, seed=seed, steps=1, restart=True))
    assert seen[0] == seen[1] != seen[2]
    for looked in seen:
        assert len(looked) == 12
        assert {state.split()[1] for state in looked} == set(COLOURS)


def test_stopped_runs_go_on(tmp_path: Path, small: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = run(job(tmp_path / "whole", small, steps=6))
    one = job(tmp_path, small, steps=6)
    steps: list[int] = []

    def tell(told: object) -> None:
        if isinstance(told, Step):
            steps.append(told.step)

    with pytest.raises(Stopped, match="stopped after 3 steps"):
        run(one, tell=tell, stop=lambda: steps[-1:] == [3])
    report = run(one)
    assert report is not None
    assert whole is not None
    assert report["training"]["curve"] == whole["training"]["curve"]


@pytest.mark.parametrize("which", ["base", "tuned"])
def test_a_run_stops_while_it_measures_and_goes_on(tmp_path: Path, small: Path, which: str) -> None:
    one = job(tmp_path, small, steps=2)
    doing: list[str] = []

    def tell(told: object) -> None:
        doing.extend([told.what] if isinstance(told, Doing) else [])

    with pytest.raises(Stopped, match=f"stopped while the {which} model was measured"):
        run(one, tell=tell, stop=lambda: f"asking the {which} model" in " ".join(doing))
    report = run(one)
    assert report is not None
    assert report["training"]["steps"] == 2


def test_a_run_that_gets_worse_stops_and_keeps_the_best(tmp_path: Path, small: Path) -> None:
    # What is held out contradicts what is learned, so every step makes it worse.
    wrong = [{**row(n), "answers": {"colour": COLOURS[(n + 1) % 3]}} for n in range(100, 112)]
    held_out = write(tmp_path / "held-out.jsonl", wrong)
    one = job(tmp_path, small, held_out=held_out, steps=100, every=1, patience=3, lr=0.02, warmup=0.0)
    report = run(one)
    assert report is not None
    training = report["training"]
    assert training["ended_by"] == "patience"
    assert training["steps"] == training["best_step"] + 3 < 100
    best = min(loss for _, loss, _ in training["looks"])
    assert {step: loss for step, loss, _ in training["looks"]}[training["best_step"]] == best


def test_time_ends_a_run(tmp_path: Path, small: Path) -> None:
    report = run(job(tmp_path, small, steps=None, minutes=0.05, batch=1, held_out=0.0))
    assert report is not None
    assert report["training"]["ended_by"] == "time"
    assert 3 <= report["training"]["seconds"] < 60
    rates = [rate for _, _, _, rate in report["training"]["curve"]]
    assert rates[-1] < max(rates)


def test_looks_leave_a_timed_run_its_time(tmp_path: Path, small: Path) -> None:
    held_out = write(tmp_path / "held-out.jsonl", [row(n) for n in range(100, 228)])
    told: list[object] = []
    one = job(tmp_path, small, held_out=held_out, steps=None, minutes=0.15, batch=1)
    report = run(one, tell=told.append)
    assert report is not None
    looks = [look.seconds for look in told if isinstance(look, Look)]
    # Beside the first and the last, and the one that goes over.
    assert sum(looks[1:-1]) <= 0.2 * report["training"]["seconds"] + max(looks)
    assert report["training"]["steps"] > 1


def test_epochs_show_every_example_equally_often(fresh: Engine, tmp_path: Path) -> None:
    recipe = Recipe.of(epochs=2, batch=4, steps=None)
    learned = examples(10)
    trainer = Trainer(
        fresh.model, fresh.context, trainable(fresh.model, recipe), learned, [], recipe, tmp_path
    )
    assert trainer.last == 5
    order = Order(10, seed=3)
    seen = [order.example(place) for step in range(5) for place in places(step, 4, 0, 1)]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]
    shared = [[order.example(p) for p in places(1, 2, rank, 2)] for rank in range(2)]
    assert sorted([*shared[0], *shared[1]]) == sorted(seen[4:8])


def test_accumulation_is_the_same_step(tmp_path: Path, small: Path) -> None:
    curves = []
    for rows in (4000, 1):
        engine = Engine.load(small)
        recipe = Recipe.of(steps=3, batch=6, rows=rows, rank=4, lr=0.01)
        folder = tmp_path / str(rows)
        folder.mkdir()
        parameters = trainable(engine.model, recipe)
        record = Trainer(engine.model, engine.context, parameters, examples(12), [], recipe, folder).run()
        curves.append([one.loss for one in record.steps])
        assert adapter_of(engine.model).parameters == sum(one.numel() for one in parameters.values())
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)


def test_bf16_forwards_learn_too(tmp_path: Path, small: Path) -> None:
    report = run(job(tmp_path, small, precision="bfloat16", steps=3))
    assert report is not None
    exact = run(job(tmp_path, small, steps=3, restart=True))
    assert exact is not None
    near = [one[1] for one in report["training"]["curve"]]
    assert near == pytest.approx([one[1] for one in exact["training"]["curve"]], rel=0.03)
    assert near != [one[1] for one in exact["training"]["curve"]]


def test_attachments_are_learned_from_and_broken_ones_are_bad_rows(tmp_path: Path, tiny: Path) -> None:
    (tmp_path / "note.txt").write_text("red")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7 and nothing else")
    Image.new("RGB", (48, 48), "red").save(tmp_path / "picture.png")
    files = ("note.txt", "broken.pdf", "picture.png", "note.txt")
    rows = write(tmp_path / "rows.jsonl", [row(n, attachments=[file]) for n, file in enumerate(files)])
    told: list[Any] = []
    report = run(job(tmp_path, tiny, data=rows, steps=2, batch=3, held_out=0.4), tell=told.append)
    assert report is not None
    (bad,) = report["data"]["bad"]
    assert bad["row"] == 2
    assert "broken.pdf" in bad["reason"]
    assert report["data"]["learned_rows"] + report["data"]["held_out_rows"] == 3
    (needs,) = (one for one in told if isinstance(one, Needs))
    assert needs.memory.largest > 200


def test_an_adapter_learns_on_packed_weights(tmp_path: Path, small: Path) -> None:
    one = job(
        tmp_path, small, steps=2, settings=Settings.load(model=small, dtype="int8"), targets=("q_proj",)
    )
    assert run(one) is not None
    adapter = load_adapters({"t": one.out}, small)["t"]
    assert adapter.config.targets == ("q_proj",)
    assert all(bool(b.any()) for _, b in adapter.tensors.values())


def test_memory_that_is_not_there_is_refused(tmp_path: Path, small: Path) -> None:
    one = job(tmp_path, small, free=2**20)
    with pytest.raises(TuneError, match=r"needs about .* GiB, and 0.0 GiB are free: fewer --rows"):
        run(one)
    told: list[Any] = []
    run(dataclasses.replace(one, force=True, out=tmp_path / "forced"), tell=told.append)
    (needs,) = (each for each in told if isinstance(each, Needs))
    # What is free was read before the weights were there.
    just = dataclasses.replace(one, free=needs.memory.total - 1, out=tmp_path / "just")
    with pytest.raises(TuneError, match="needs about"):
        run(just)
    assert run(dataclasses.replace(one, force=True)) is not None


def test_the_memory_estimate_is_what_autograd_keeps(fresh: Engine) -> None:
    from random import Random

    from jev.tune.augment import NONE
    from jev.tune.examples import prepare
    from jev.tune.gather import _size
    from jev.tune.objective import loss_of

    fresh.model.text.requires_grad_(True)
    weights = {one.untyped_storage().data_ptr() for one in fresh.model.text.parameters()}
    batch, sizes = [], []
    for one in examples(3):
        long = dataclasses.replace(one, state="word " * 40)
        laid, size = prepare(long, fresh.context, Random(0), how=NONE), _size(long, fresh.context, 1)
        assert laid is not None
        assert size is not None
        batch.append(laid)
        sizes.append(size)
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(fresh.model, batch, share=False)
    held = sum(one.untyped_storage().nbytes() for key, one in kept.items() if key not in weights)
    needed = memory(fresh.model.config.text, sizes, weight_bytes=0, trained=0, rows=10**6, batch=3)
    assert needed.largest == sum(one.rows for one in sizes)
    assert held <= needed.activations <= 1.8 * held
    # One long example alone is as large as it is, whatever the limit.
    long = [Size(90, 900), Size(20, 100), Size(10, 90)]
    for rows, count, largest in ((1, 8, 90), (115, 8, 115), (1000, 8, 120), (1000, 2, 110)):
        # An upper bound: which examples meet in a forward is not known.
        shape = fresh.model.config.text
        found = memory(shape, long, weight_bytes=0, trained=0, rows=rows, batch=count)
        assert found.largest == largest
    # A few long examples among short ones: a forward may have one of them and many of these.
    mixed = [Size(1100, 1100 * 1200), Size(1000, 10**6), *[Size(60, 60 * 300)] * 200]
    alike = [Size(1100, 1100 * 1200), *[Size(60, 60 * 300)] * 15]
    shape = fresh.model.config.text
    one, other = (
        memory(shape, sizes, weight_bytes=0, trained=0, rows=2048, batch=16) for sizes in (mixed, alike)
    )
    assert one.largest >= other.largest == 2000
    assert one.activations >= other.activations


def test_one_process_is_a_group_that_sums_nothing() -> None:
    assert Group().sums([1.5, 2.0], torch.device("cpu")) == [1.5, 2.0]
    assert Group().share("x") == "x"


def test_a_held_out_loss_that_is_no_number_is_one_sentence(tmp_path: Path, small: Path) -> None:
    one = job(tmp_path, small, steps=1, lr=1.0, alpha=1e15, warmup=0.0)
    with pytest.raises(TuneError, match="the held-out loss after step 1 is no number; a lower --lr may help"):
        run(one)


def test_a_second_run_on_one_folder_is_refused_meanwhile(tmp_path: Path, small: Path) -> None:
    one = job(tmp_path, small, steps=1, held_out=0.0)
    refused: list[str] = []

    def tell(told: object) -> None:
        if isinstance(told, Step):
            with pytest.raises(TuneError) as error:
                run(dataclasses.replace(one, restart=True))
            refused.append(str(error.value))

    assert run(one, tell=tell) is not None
    assert refused == [f"--out {one.out}: another run is at work in it"]
    assert run(one) is not None


@pytest.mark.parametrize("full", [False, True])
def test_a_result_can_be_read_by_other_accounts(tmp_path: Path, small: Path, full: bool) -> None:
    one = job(tmp_path, small, full=full, steps=0, held_out=0.0)
    run(one)
    usual = one.data.stat().st_mode
    assert {file.name: file.stat().st_mode for file in one.out.iterdir() if file.is_file()} == {
        file.name: usual for file in one.out.iterdir() if file.is_file()
    }


@pytest.mark.parametrize("which", ["base", "questions", "vision", "teacher"])
def test_a_restart_takes_nothing_that_the_run_reads(tmp_path: Path, small: Path, which: str) -> None:
    """A tuned checkpoint that is tuned on into its own folder would be gone before it is loaded."""
    run(job(tmp_path, small, full=True, steps=1))
    out = tmp_path / "out"
    kept = {file: file.read_bytes() for file in out.iterdir() if file.is_file()}
    given: dict[str, Any] = {
        "base": {"settings": Settings.load(model=out, ocr="off")},
        "questions": {"reads": (out / "training" / "questions.json",)},
        "vision": {"settings": Settings.load(model=small, vision=out / "vision", ocr="off")},
        "teacher": {"teacher": f"torch={out}"},
    }[which]
    again = dataclasses.replace(job(tmp_path, small, full=True, restart=True), **given)
    with pytest.raises(TuneError, match=r"is in it; give a folder of its own"):
        run(again)
    assert {file: file.read_bytes() for file in out.iterdir() if file.is_file()} == kept


def test_a_checkpoint_from_a_tuned_one_is_measured_itself(tmp_path: Path, small: Path) -> None:
    """Also when it is stopped behind its writing: what the base says of itself is not copied."""
    first = job(tmp_path, small, full=True, steps=1)
    run(first)
    second = job(tmp_path, first.out, full=True, steps=2, out=tmp_path / "second")
    doing: list[str] = []

    def tell(told: object) -> None:
        if isinstance(told, Doing):
            doing.append(told.what)

    with pytest.raises(Stopped):
        run(second, tell=tell, stop=lambda: any("tuned" in what for what in doing))
    assert not (second.out / "tune.json").exists()
    report = run(second)
    assert report is not None
    assert report["training"]["steps"] == 2
    assert report["base"]["name"] == "out"


@pytest.mark.parametrize("full", [True, False])
def test_a_base_that_writes_no_texts_makes_none_that_does(tmp_path: Path, small: Path, full: bool) -> None:
    base = tmp_path / "base"
    shutil.copytree(small, base)
    card = {"name": "quiet", "writes": False}
    (base / "jev.json").write_text(json.dumps(card))
    one = job(tmp_path, base, full=full, steps=1)
    run(one)
    made = one.out
    if not full:
        made = tmp_path / "merged"
        merge_checkpoint(base, load_adapters({"a": one.out}, base)["a"], made, name="merged")
    assert not Engine.load(made).writes
    assert json.loads((made / "jev.json").read_text())["name"] != "quiet"


def test_a_run_that_reads_otherwise_is_another_one(tmp_path: Path, small: Path) -> None:
    one = job(tmp_path, small, steps=2)
    run(one)
    for change, told in (
        ({"soft_tokens": 280}, "soft_tokens was null and is 280"),
        ({"image_rule": "gemma4"}, 'image_rule was null and is "gemma4"'),
        ({"limits": {"max_images": 3}}, "limits was null and is"),
        ({"max_context": 500}, "max_context was "),
        ({"dtype": "bfloat16"}, 'dtype was "float32" and is "bfloat16"'),
    ):
        with pytest.raises(TuneError, match=f"another run: .*{told}"):
            run(dataclasses.replace(one, settings=one.settings.model_copy(update=change)))


def test_a_precision_that_is_chosen_is_kept_to(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured in the end is in the precision of the training, whatever memory is free by then."""
    loaded: list[str] = []

    def spy(settings: Settings, **more: Any) -> Engine:
        chosen = "bfloat16" if loaded else "float32"  # less is free
        known = settings.dtype if settings.dtype != "auto" else chosen
        loaded.append(known)
        return load_engine(settings.model_copy(update={"dtype": known}), **more)

    monkeypatch.setattr("jev.tune.run.load_engine", spy)
    settings = Settings.load(model=small, ocr="off", dtype="auto")
    assert run(job(tmp_path, small, steps=1, settings=settings)) is not None
    assert loaded == ["float32", "float32"]


def test_a_teacher_is_opened_as_it_was_asked_for(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in the precision that was chosen for the one that learns."""
    opened: list[str] = []

    def spy(spec: str, settings: Settings, **options: Any) -> Any:
        opened.append(settings.dtype)
        raise ValueError("that is all")

    monkeypatch.setattr("jev.tune.check.open_backend", spy)
    settings = Settings.load(model=small, ocr="off", dtype="auto")
    with pytest.raises(TuneError, match="that is all"):
        run(job(tmp_path, small, settings=settings, teacher=f"torch={small}"))
    assert opened == ["auto"]


def test_weights_count_in_every_batch(tmp_path: Path, small: Path) -> None:
    """Also where a step has rows of one weight alone: a light row moves less than a heavy one."""

    def moved(*weights: float) -> list[torch.Tensor]:
        folder = tmp_path / "-".join(map(str, weights))
        folder.mkdir()
        engine = Engine.load(small)
        # The same example each time, so that only weights differ.
        (one,) = examples(1)
        weighted = [
            dataclasses.replace(
                one,
                questions={name: dataclasses.replace(q, weight=weight) for name, q in one.questions.items()},
            )
            for weight in weights
        ]
        trainer = Trainer(
            engine.model,
            engine.context,
            trainable(engine.model, Recipe.of(batch=1)),
            weighted,
            [],
            Recipe.of(batch=1, steps=2, clip=1e6),
            folder,
        )
        found: list[torch.Tensor] = []
        step = trainer._optimizer.step

        def spy(*args: Any) -> None:
            found.append(
                torch.cat([one.grad.flatten() for one in trainer.parameters.values() if one.grad is not None])
            )

        trainer._optimizer.step = spy  # type: ignore[method-assign,assignment]
        trainer.take_step(0.0)
        trainer.take_step(0.5)
        trainer._optimizer.step = step  # type: ignore[method-assign]
        return found

    equal, scaled, mixed = moved(1.0, 1.0), moved(5.0, 5.0), moved(0.5, 1.5)
    for one, other in zip(equal, scaled, strict=True):
        assert (one - other).norm() <= 1e-4 * one.norm()
    shares = sorted(float(one.norm() / other.norm()) for one, other in zip(mixed, equal, strict=True))
    assert shares == pytest.approx([0.5, 1.5], rel=1e-4)


def test_what_has_no_gradient_is_refused_at_once(tmp_path: Path, small: Path) -> None:
    half = Settings.load(model=small, ocr="off", dtype="float16")
    with pytest.raises(TuneError, match="--precision bfloat16 and --dtype float16 do not go together"):
        run(job(tmp_path, small, settings=half, precision="bfloat16"))
    eight = Settings.load(model=small, ocr="off", dtype="float8")
    with pytest.raises((TuneError, CheckpointError), match=r"only runs forward|float8"):
        run(job(tmp_path, small, settings=eight))


def test_soft_labels_alone_are_looked_at_and_the_card_says_why_nothing_is_measured(
    tmp_path: Path, small: Path
) -> None:
    soft = [{"state": f"{n} red", "soft": {"colour": {"red": 0.7, "blue": 0.3}}} for n in range(20)]
    only = job(tmp_path, small, data=write(tmp_path / "soft.jsonl", soft), steps=1)
    report = run(only)
    assert report is not None
    assert report["data"]["held_out_rows"] == 2
    assert "No row that was held out has a reviewed answer" in (only.out / "README.md").read_text()
    both = write(tmp_path / "both.jsonl", [*soft, *map(row, range(10))])
    report = run(job(tmp_path, small, data=both, steps=1, out=tmp_path / "both"))
    assert report is not None
    assert report["after"]["n"] == 2 * report["data"]["held_out_rows"]
