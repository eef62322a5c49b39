"""Proves what `jev generate` prints and exits with: text, JSON, live drawing, warnings and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from jev.cli import app
from jev.cli.live import printable
from jev.engine import Engine
from jev.model.denoise import write
from jev.model.packed import ImageSpan
from jev.model.pixels import patches_of
from jev.model.tiny import write_tiny_checkpoint
from jev.model.writing import Options

PROMPT = "What is the answer?"
QUICK = ("--max-denoising-steps", "3")
TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Engine:
    return Engine.load(tiny)


@pytest.fixture
def generate(engine: Engine, tiny: Path, monkeypatch: pytest.MonkeyPatch):
    """Run `jev generate` on an engine that is loaded already."""
    monkeypatch.setattr("jev.cli.generate.load_model", lambda *_: engine)
    for name in ("JEV_MODEL", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: str, input: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
        return CliRunner().invoke(app, ["generate", "--model", str(tiny), *args], input=input, env=env)

    return run


def expected(engine: Engine, *pictures: Path, **given: Any) -> str:
    """The text of the same options, from the block loop itself."""
    template, vision = engine.context.template, engine.model.vision
    assert vision is not None
    patches = [patches_of(Image.open(path), vision.config) for path in pictures]
    ids = template.chat([*(one.tokens for one in patches), PROMPT])
    starts = [index + 1 for index, one in enumerate(ids) if one == template.image_start]
    spans = [ImageSpan(start, vision(one)) for start, one in zip(starts, patches, strict=True)]
    options = Options.of(engine.model.config, max_denoising_steps=3, **given)
    text = write(engine.model, ids, options, images=spans)
    return engine.context.tokenizer.decode(template.shown(text.tokens))


class TestText:
    def test_is_all_of_standard_output_when_piped(self, generate, engine: Engine) -> None:
        result = generate("-p", PROMPT, *QUICK)
        assert result.exit_code == 0, result.output
        assert result.stdout == expected(engine) + "\n"
        assert "\x1b" not in result.stderr
        name, tokens, steps, rate, _, seed = result.stderr.strip().split(" | ")
        assert (name, tokens, steps) == (engine.name, "16 tokens (length)", "3 steps on 1 canvas")
        assert (rate, seed) == ("5.33 tokens per forward", "seed 0")

    def test_options_reach_the_block_loop(self, generate, engine: Engine) -> None:
        typed = ("--max-tokens", "20", "--seed", "8", "--t-max", "2", "--no-self-conditioning")
        result = generate("-p", PROMPT, *QUICK, *typed)
        assert (
            result.stdout
            == expected(engine, max_tokens=20, seed=8, t_max=2.0, self_conditioning=False) + "\n"
        )
        other = ("--diffusion-sampler", "confidence-threshold", "--threshold", "0", "--short-canvas")
        assert "1 step on 1 canvas" in generate("-p", PROMPT, *other).stderr

    def test_the_prompt_may_come_through_a_pipe(self, generate) -> None:
        assert generate(*QUICK, input=PROMPT + "\n").stdout == generate("-p", PROMPT, *QUICK).stdout

    def test_json_is_one_line(self, generate, engine: Engine) -> None:
        result = generate("-p", PROMPT, *QUICK, "--max-tokens", "40", "--seed", "3", "--json")
        assert result.stdout.count("\n") == 1
        assert result.stderr == ""
        found = json.loads(result.stdout)
        assert found["text"] == expected(engine, max_tokens=40, seed=3)
        assert found["usage"]["completion_tokens"] == len(found["tokens"]) <= 40
        assert found["usage"]["prompt_tokens"] == len(engine.context.template.chat(PROMPT))
        assert found["tokens_per_forward"] == pytest.approx(
            len(found["tokens"]) / found["denoising_steps"], abs=1e-3
        )
        assert found["model"] == engine.name
        assert found["seed"] == 3
        assert found["finish_reason"] in ("stop", "length")
        assert "warning" not in found

    def test_a_system_turn_stands_before_the_prompt(self, generate, engine: Engine) -> None:
        found = json.loads(generate("-p", PROMPT, "--system", "Answer in one word.", *QUICK, "--json").stdout)
        ids = engine.context.template.chat(PROMPT, "Answer in one word.")
        assert found["usage"]["prompt_tokens"] == len(ids) > len(engine.context.template.chat(PROMPT))


class TestTerminal:
    def test_draws_every_step_and_leaves_the_text(self, generate, engine: Engine) -> None:
        result = generate("-p", PROMPT, *QUICK, "--max-tokens", "32", env=TERMINAL)
        assert result.exit_code == 0, result.output
        for canvas in (1, 2):
            for step in (1, 2, 3):
                assert f"canvas {canvas}, step {step}" in result.stdout
        assert result.stdout.endswith(printable(expected(engine, max_tokens=32)) + "\n")
        assert "steps on 2 canvases" in result.stderr

    @pytest.mark.parametrize("env", [{**TERMINAL, "NO_COLOR": "1"}, {**TERMINAL, "TERM": "dumb"}])
    def test_draws_nothing_where_that_is_not_wanted(self, generate, env: dict[str, str]) -> None:
        assert "\x1b" not in generate("-p", PROMPT, *QUICK, env=env).stdout

    def test_nothing_that_is_written_can_steer_it(self) -> None:
        assert printable("a\x1b[31mb\x07\r\n\tö") == "a�[31mb��\n\tö"


class TestUntrained:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return write_tiny_checkpoint(tmp_path / "checkpoint", vision=False)

    def run(self, folder: Path, card: dict[str, Any], *args: str) -> Result:
        (folder / "jev.json").write_text(json.dumps(card))
        given = ["generate", "-p", PROMPT, "--model", str(folder), *QUICK, *args]
        return CliRunner().invoke(app, given)

    def test_says_that_a_checkpoint_was_not_trained_to_write(self, folder: Path) -> None:
        card = {"name": "reader", "writes": False}
        sentence = "reader was not trained to write"
        assert f"warning: {sentence}" in self.run(folder, card).stderr
        assert sentence in json.loads(self.run(folder, card, "--json").stdout)["warning"]
        for other in ({"name": "reader"}, {"name": "reader", "writes": True}):
            assert "warning" not in self.run(folder, other).output

    def test_a_picture_needs_a_vision_tower(self, folder: Path) -> None:
        Image.new("RGB", (60, 60)).save(folder / "a.png")
        result = self.run(folder, {"name": "blind"}, "--image", str(folder / "a.png"))
        assert result.exit_code == 2
        assert result.stderr == "error: --image: blind has no vision tower, so it cannot see pictures\n"


def test_pictures_stand_before_the_prompt(generate, engine: Engine, tmp_path: Path) -> None:
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for number, path in enumerate(paths):
        Image.new("RGB", (90, 60), (200, 90 * number, 30)).save(path)
    images = [word for path in paths for word in ("--image", str(path))]
    result = generate("-p", PROMPT, *QUICK, *images, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["text"] == expected(engine, *paths)
    assert json.loads(result.stdout)["usage"]["prompt_tokens"] > 400


@pytest.mark.parametrize(
    ("args", "input", "line"),
    [
        (["-p", " \n"], None, "error: the prompt is empty; give it with --prompt or a pipe"),
        ([], "", "error: the prompt is empty"),
        ([], b"\xff", "error: standard input: it is not UTF-8 text"),
        (["-p", "\udc80"], None, "error: --prompt: it is not valid UTF-8 text"),
        (["-p", "x", "--threshold", "1.5"], None, "error: --threshold must be a number of at least 0 and"),
        (["-p", "x", "--max-tokens", "0"], None, "error: --max-tokens must be a whole number of at least 1,"),
        (["-p", "x", "--t-max", "0.1"], None, "error: --t-max must be a number over t_min (0.4), not 0.1"),
        (["-p", "x", "--max-canvas", "99"], None, "error: --max-canvas must be"),
        (["-p", "x", "--image", "/no/picture"], None, "error: --image /no/picture: cannot be read"),
        (["-p", "x" * 5000], None, "error: --prompt, --max-tokens: a prompt of "),
        (["-p", "x", "--model", "/no/model"], None, "error: /no/model does not exist"),
        (["-p", "x", "--image", __file__], None, "error: --image: Attachment 'test_cli_generate.py': "),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(
    generate, args: list[str], input: str | bytes | None, line: str
) -> None:
    result = generate(*args, input=input)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1
