"""Proves that an adapter answers by name: alike live and merged, alone and in a mix, and never for others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import jev.stepper
from jev import LocalJev, NotFoundError
from jev.backends import open_backend
from jev.cli import app
from jev.engine import Engine
from jev.loading import load_engine
from jev.model import embedded
from jev.model.errors import CheckpointError
from jev.model.lora import Adapter, save_adapter
from jev.model.weights.identity import weights_digest
from jev.schemas import Choice, Noul, Question, Score, SystemOneRequest, SystemOneResponse, distribution
from jev.settings import Settings, SettingsError

Make = Callable[..., Adapter]
QUESTIONS: dict[str, Question] = {
    "money": Noul("Is it about money?"),
    "topic": Choice("What is it about?", ["billing", "travel", "music"]),
    "anger": Score("How upset?", ["calm", "annoyed", "furious"]),
}
STATES = (
    "My card was charged twice and nobody answers my mails.",
    "The train was late again, and then it rained all day.",
    "A long letter. " * 60,
)


def request(model: str = "jev-latest", state: str = STATES[0], **fields: object) -> SystemOneRequest:
    return SystemOneRequest.model_validate(
        {"model": model, "state": state, "questions": QUESTIONS, "samples": 1, **fields}
    )


def numbers(response: SystemOneResponse) -> dict[str, tuple[float, ...]]:
    return {name: distribution(QUESTIONS[name], one) for name, one in response.answers.items()}


def far(one: SystemOneResponse, other: SystemOneResponse) -> float:
    pairs = zip(numbers(one).values(), numbers(other).values(), strict=True)
    return max(abs(a - b) for left, right in pairs for a, b in zip(left, right, strict=True))


def winners(response: SystemOneResponse) -> list[int]:
    return [max(range(len(one)), key=one.__getitem__) for one in numbers(response).values()]


@pytest.fixture(scope="module")
def adapted(smooth: Path, random_adapter: Make) -> Engine:
    """A tiny model with two adapters."""
    config = Engine.load(smooth).model.config.text
    adapters = {
        "a": random_adapter(config, 1),
        "b-2": random_adapter(config, 2, targets=("v_proj", "up_proj")),
    }
    return Engine.load(smooth, name="tiny", adapters=adapters)


@pytest.fixture
def saved(smooth: Path, random_adapter: Make, tmp_path: Path) -> Path:
    """A folder with an adapter of the tiny model."""
    adapter = random_adapter(Engine.load(smooth).model.config.text, 1)
    save_adapter(tmp_path / "support", adapter, base_name="tiny", base_fingerprint=weights_digest(smooth))
    return tmp_path / "support"


# By name


def test_names(adapted: Engine) -> None:
    names = [one.name for one in adapted.models()]
    assert names[:3] == ["jev-latest", "jev-preview", "tiny"]
    assert set(names[3:]) == {f"{base}+{name}" for base in names[:3] for name in ("a", "b-2")}
    for name in names:
        response = adapted.decide(request(name, diagnostics=True))
        expected = "tiny" + name[name.index("+") :] if "+" in name else "tiny"
        assert response.model == expected
        assert response.x_diagnostics is not None
        assert response.x_diagnostics["model"]["model"] == expected
    weights = [one.weights for one in adapted.identities]
    assert len(set(weights)) == 3
    assert weights[0] == adapted.fingerprint


@pytest.mark.parametrize("name", ["jev-latest+c", "other+a", "tiny+", "+a", "a", "tiny+a+a", "tiny+A"])
def test_an_unknown_one_is_not_found(adapted: Engine, name: str) -> None:
    with pytest.raises(NotFoundError) as error:
        adapted.prepare(request(name))
    assert str(error.value.message) == f"No model named {name!r}; loaded: tiny, tiny+a, tiny+b-2"


def test_a_merged_model_keeps_its_plus(smooth: Path, random_adapter: Make) -> None:
    adapter = random_adapter(Engine.load(smooth).model.config.text)
    engine = Engine.load(smooth, name="base+x", adapters={"x": adapter})
    for name, expected in (("base+x", "base+x"), ("base+x+x", "base+x+x"), ("jev-latest+x", "base+x+x")):
        assert engine.decide(request(name)).model == expected
    with pytest.raises(ValueError, match="adapter name 'a b' must be 1 to 64 characters of letters"):
        Engine.load(smooth, adapters={"a b": adapter})


# Beside others


def test_a_mix_answers_as_each_alone(adapted: Engine) -> None:
    models = ("jev-latest", "jev-latest+a", "tiny+b-2")
    requests = [request(model, state) for state in STATES for model in models]
    requests += [request("tiny+a", layout="joint"), request("tiny", permutations=3, samples=2)]
    plans = [adapted.prepare(one) for one in requests]
    alone = [adapted.run_many([plan], fresh=True)[0] for plan in plans]
    for fresh in (True, False, False):  # the last one finds every prefix cached
        for found, expected in zip(adapted.run_many(plans, fresh=fresh), alone, strict=True):
            assert isinstance(found, SystemOneResponse)
            assert isinstance(expected, SystemOneResponse)
            assert found.model == expected.model
            assert far(found, expected) < 1e-5
    for base, a, b in zip(alone[:9:3], alone[1:9:3], alone[2:9:3], strict=True):
        assert isinstance(base, SystemOneResponse)
        assert isinstance(a, SystemOneResponse)
        assert isinstance(b, SystemOneResponse)
        assert min(far(base, a), far(base, b), far(a, b)) > 0.01


def test_one_adapter_is_one_forward_and_two_are_two(adapted: Engine) -> None:
    def forwards(*models: str) -> float:
        before = adapted.stats()["steps"]
        adapted.run_many([adapted.prepare(request(model)) for model in models], fresh=True)
        return adapted.stepper.counts["steps"] - before + counted[0]

    counted = [0]
    step = jev.stepper.step

    def counting(*args: object, **options: object):
        counted[0] += 1
        return step(*args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jev.stepper, "step", counting)
        one = forwards("tiny+a", "jev-latest+a", "jev-preview+a")
        counted[0] = 0
        two = forwards("tiny+a", "jev-latest+b-2", "jev-preview+a")
    assert two == 2 * one > 0


def test_a_prefix_is_cached_for_its_adapter_alone(smooth: Path, random_adapter: Make) -> None:
    adapter = random_adapter(Engine.load(smooth).model.config.text)
    engine = Engine.load(smooth, adapters={"a": adapter, "same": adapter})
    seen = []
    for model in ("jev-latest", "jev-latest+a", "jev-latest", "jev-latest+a", "jev-latest+same"):
        hits = engine.stats()["prefix_hits"]
        engine.decide(request(model))
        seen.append(engine.stats()["prefix_hits"] > hits)
    assert seen == [False, False, True, True, True]


def test_what_fails_with_one_adapter_leaves_the_others(
    adapted: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [adapted.prepare(request(model)) for model in ("tiny", "tiny+a", "tiny+b-2", "tiny+a")]
    alone = adapted.run_many(plans, fresh=True)
    step = jev.stepper.step

    def failing(model, *args, **options):
        if model.adapters.on == adapted.adapters["a"].digest:
            raise ArithmeticError("broken")
        return step(model, *args, **options)

    monkeypatch.setattr(jev.stepper, "step", failing)
    found = adapted.run_many(plans, fresh=True)
    assert [isinstance(one, ArithmeticError) for one in found] == [False, True, False, True]
    assert found[0] == alone[0]
    assert found[2] == alone[2]


# Live, merged and packed


def test_the_embedded_model_answers_alike_live_and_merged(
    engine: Engine, random_adapter: Make, tmp_path: Path
) -> None:
    adapter = random_adapter(engine.model.config.text, 3, size=0.04)
    save_adapter(tmp_path / "s", adapter, base_name=engine.name, base_fingerprint=engine.fingerprint)
    typed = ["--adapter", str(tmp_path / "s"), "--out", str(tmp_path / "merged")]
    done = run("adapter", "merge", *typed)
    assert (done.exit_code, done.stderr) == (0, "")
    live = load_engine(Settings(adapters={"s": tmp_path / "s"}))
    merged = load_engine(Settings(model=tmp_path / "merged"))
    assert merged.name == f"{embedded.NAME}+s"
    moved = []
    for state in STATES[:2]:
        one, other = live.decide(request("jev-latest+s", state)), merged.decide(request(state=state))
        assert far(one, other) < 1e-4
        assert winners(one) == winners(other)
        base, plain = (
            each.run_many([each.prepare(request(state=state))], fresh=True)[0] for each in (live, engine)
        )
        assert base == plain  # to the bit
        moved.append(far(one, base))
    assert max(moved) > 0.05
    again = run("adapter", "merge", *typed)
    assert (again.exit_code, again.stderr) == (2, f"error: {tmp_path / 'merged'} is not an empty folder\n")


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_other_precisions_take_adapters(smooth: Path, random_adapter: Make, dtype: str) -> None:
    adapter = random_adapter(Engine.load(smooth).model.config.text, 1)
    exact = Engine.load(smooth, adapters={"a": adapter})
    other = Engine.load(smooth, dtype=dtype, adapters={"a": adapter})
    moved = far(other.decide(request()), other.decide(request("jev-latest+a")))
    off = far(other.decide(request("jev-latest+a")), exact.decide(request("jev-latest+a")))
    assert moved > 0.01
    assert off < moved / 2


# Wherever a model is loaded


def run(*args: str, **options: str) -> Result:
    return CliRunner().invoke(app, args, **options)  # type: ignore[arg-type]


def test_settings(saved: Path, smooth: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JEV_ADAPTERS", f"support={saved}, b={saved}")
    settings = Settings.load(model=smooth)
    assert settings.adapters == {"support": saved, "b": saved}
    assert set(load_engine(settings).adapters) == {"support", "b"}
    for value, said in (
        ("support", "each is NAME=FOLDER"),
        ("a+b=x", "the adapter name 'a+b' must be 1 to 64 characters of letters, digits, '.', '_' and '-'"),
        ("a=x,a=y", "the name 'a' is given twice"),
    ):
        with pytest.raises(SettingsError) as error:
            Settings.load(adapters=[value] if "," not in value else value)
        assert str(error.value) == f"adapters: {said}"
    with pytest.raises(
        CheckpointError, match=rf"was made for base model 'tiny' .weights {weights_digest(smooth)[:12]}"
    ):
        load_engine(Settings(adapters={"support": saved}))  # on the embedded model


def test_in_process(saved: Path, smooth: Path) -> None:
    jev_ = LocalJev(smooth, adapters={"support": saved})
    decision = jev_.decide(STATES[0], {"q": Noul("Is it?")}, model="jev-latest+support")
    assert decision.model == "smooth+support"


def test_backends(saved: Path, smooth: Path) -> None:
    settings = Settings(model=smooth, adapters={"support": saved})

    async def ask(spec: str, models: Sequence[str | None]) -> tuple[str, list[str]]:
        backend = open_backend(spec, settings)
        body = {"state": "A state.", "questions": {"q": QUESTIONS["money"]}}
        asked = [SystemOneRequest.model_validate(body | ({"model": one} if one else {})) for one in models]
        try:
            answers = [await backend.decide(one) for one in asked]
        finally:
            await backend.aclose()
        return f"{backend.model} {backend.fingerprint}", [one.model for one in answers]  # type: ignore[attr-defined]

    plain, found = asyncio.run(ask("torch", [None, "jev-latest+support"]))
    assert found == ["smooth", "smooth+support"]
    other, found = asyncio.run(ask("torch+support", [None, "smooth+support"]))
    assert found == ["smooth+support", "smooth+support"]
    assert plain != other
    assert asyncio.run(ask(f"torch:int8+support={smooth}", [None]))[1] == ["smooth+support"]
    with pytest.raises(ValueError, match=r"'torch\+x': no adapter is named 'x' .*; there is support"):
        open_backend("torch+x", settings)


def test_jev_ask(saved: Path, smooth: Path, tmp_path: Path) -> None:
    asked = ["ask", "A state.", "--noul", "q=Is it?", "--model-path", str(smooth), "--json"]
    one = run(*asked, "--adapter", f"support={saved}")
    assert json.loads(one.stdout)["model"] == "smooth+support"
    both = [*asked, "--adapter", f"support={saved}", "--adapter", f"b={saved}"]
    assert json.loads(run(*both, "--model", "jev-latest+b").stdout)["model"] == "smooth+b"
    unsure = run(*both)
    assert unsure.exit_code == 2
    assert "--model is one of jev-latest+support, jev-latest+b" in unsure.stderr
    twice = run(*asked, "--adapter", f"b={saved}", "--adapter", f"b={tmp_path}")
    assert (twice.exit_code, "the name 'b' is given twice" in twice.stderr) == (2, True)
    missing = run(*asked, "--adapter", f"support={tmp_path / 'none'}")
    assert (missing.exit_code, missing.stderr) == (
        2,
        f"error: {tmp_path / 'none'} is not an adapter folder\n",
    )


@pytest.mark.parametrize(
    "command", [["serve"], ["batch", "run"], ["quality", "run"], ["calibrate"], ["thresholds"]]
)
def test_a_bad_adapter_ends_every_command(
    command: list[str], saved: Path, smooth: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (saved / "adapter_model.safetensors").write_bytes(b"nothing")
    monkeypatch.setenv("JEV_MODEL", str(smooth))
    monkeypatch.setattr("jev.engine.load_checkpoint", None)  # it is found before anything large is loaded
    rows = tmp_path / "rows.jsonl"
    row = {
        "state": "A state.",
        "questions": {"q": {"type": "noul", "instructions": "Is it?"}},
        "answers": {"q": True},
    }
    rows.write_text(f"{json.dumps(row)}\n" * 60)
    given = {
        "batch": ["--input", str(rows), "--output", str(tmp_path / "out.jsonl")],
        "quality": ["--data", str(rows)],
        "calibrate": ["--data", str(rows)],
        "thresholds": ["--data", str(rows), "--target-accuracy", "0.9"],
    }.get(command[0], [])
    done = run(*command, *given, "--adapter", f"support={saved}")
    assert done.exit_code == 2
    assert f"{saved / 'adapter_model.safetensors'} is damaged or not a safetensors file" in done.output


def test_jev_batch(saved: Path, smooth: Path, tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text(json.dumps({"state": "A state."}) + "\n")
    typed = [
        "batch",
        "run",
        "-i",
        str(rows),
        "-o",
        str(out),
        "--noul",
        "q=Is it?",
        "--model-path",
        str(smooth),
    ]
    done = run(*typed, "--adapter", f"support={saved}", "--backend", "torch+support")
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["model"] == "smooth+support"
    changed = run(*typed, "--adapter", f"support={saved}")  # the ledger knows that the base would answer now
    assert changed.exit_code == 2
    assert "model" in changed.stderr


def test_jev_adapter_show(saved: Path, smooth: Path) -> None:
    shown = run("adapter", "show", str(saved), "--model", str(smooth))
    assert shown.exit_code == 0, shown.output
    for text in (
        "rank",
        "4",
        "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
        "tiny (weights ",
    ):
        assert text in shown.stdout
    facts = json.loads(run("adapter", "show", str(saved), "--json").stdout)
    assert (facts["rank"], facts["alpha"], facts["layers"]) == (4, 8.0, 4)
    config = saved / "adapter_config.json"
    config.write_text(config.read_text().replace('"tiny"', '"\\ud800"'))  # half a character
    assert json.loads(run("adapter", "show", str(saved), "--json").stdout)["base_name"] == "?"
    config.write_text(config.read_text().replace('"\\ud800"', '"tiny"'))
    plain = config.read_text()
    for alpha, told in (("1" + "0" * 400, 10**400), ("NaN", "nan"), ("-Infinity", "-inf")):
        config.write_text(plain.replace("8.0", alpha))
        assert run("adapter", "show", str(saved)).exit_code == 0
        shown = run("adapter", "show", str(saved), "--json")
        assert json.loads(shown.stdout, parse_constant=pytest.fail)["alpha"] == told
    config.write_text(plain)
    for name in (["show", "x" * 300], ["merge", "--adapter", "x" * 300, "--out", "out"]):
        long = run("adapter", *name)
        assert (long.exit_code, "File name too long" in long.stderr) == (2, True)
    wrong = run("adapter", "show", str(saved), "--model", str(embedded.path()))
    assert wrong.exit_code == 2
    assert "was made for base model 'tiny'" in wrong.stderr
