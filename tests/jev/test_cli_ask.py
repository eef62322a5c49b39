"""Proves what `jev ask` prints and exits with, in this process: tables, JSON, errors, server or model."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from jev import Jev, RetryPolicy
from jev.cli import app
from jev.cli.console import Screen, one_line
from jev.engine import Engine
from jev.model.embedded import NAME
from jev.schemas import parse_request

STATE = "My card was charged twice. Please refund the second payment."
QUESTIONS = [
    *("--noul", "refund=Does the customer ask for money back?"),
    *("--choice", "team: Which team?=billing,technical,sales"),
    *("--score", "mood=calm,annoyed,furious"),
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load()


@pytest.fixture
def ask(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """Run `jev ask` on an engine that is loaded already."""
    monkeypatch.setattr("jev.cli.ask.load_model", lambda *_: engine)
    for name in ("JEV_BASE_URL", "JEV_API_KEY", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: str, input: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
        return CliRunner().invoke(app, ["ask", *args], input=input, env=env)

    return run


@pytest.fixture
def served(ask, monkeypatch: pytest.MonkeyPatch):
    """Run `jev ask` against a handler in place of a server; the model must not be loaded."""

    def run(handler, *args: str, env: dict[str, str] | None = None) -> Result:
        client = partial(Jev, transport=httpx.MockTransport(handler), retry=RetryPolicy(max_retries=0))
        monkeypatch.setattr("jev.cli.ask.Jev", client)
        monkeypatch.delattr("jev.cli.ask.load_model")
        return ask(*args, env=env)

    return run


class TestTable:
    def test_is_plain_ascii_when_it_is_no_terminal(self, ask) -> None:
        result = ask(STATE, *QUESTIONS)
        assert result.exit_code == 0, result.output
        assert result.stdout.isascii()
        assert "\x1b" not in result.stdout
        assert not any(line.endswith(" ") for line in result.stdout.splitlines())

    def test_shows_every_answer_in_the_order_asked_with_the_winner_marked(self, ask) -> None:
        lines = ask(STATE, *QUESTIONS).stdout.splitlines()
        assert lines[0] == "refund | noul | Does the customer ask for money back?"
        assert [line.split()[0] for line in lines if line.startswith("  *")] == ["*"] * 3
        rows = [line.replace("*", " ").split()[0] for line in lines if "%" in line]
        assert rows == ["yes", "no", "billing", "technical", "sales", "0", "1", "2"]

    def test_bars_are_as_long_as_the_probabilities(self, ask) -> None:
        answers = json.loads(ask(STATE, *QUESTIONS, "--json").stdout)["answers"]
        for line in ask(STATE, *QUESTIONS).stdout.splitlines():
            name = line.replace("*", " ").split()[0] if "%" in line else ""
            if name in answers["team"]["probabilities"]:
                p = answers["team"]["probabilities"][name]
                assert line.count("#") == round(24 * p)
                assert f"{p:.1%}" in line

    def test_ends_with_tokens_time_and_the_name_of_the_seed(self, ask) -> None:
        *_, footer, seed = ask(STATE, *QUESTIONS).stdout.splitlines()
        assert footer.startswith(f"{NAME} | ")
        assert " tokens | " in footer
        assert "loaded in" in footer
        assert seed == f"{NAME} is a small model for trying jev (see README)"

    def test_diagnostics_add_reads_and_timings(self, ask) -> None:
        output = ask(STATE, *QUESTIONS, "--diagnostics", "--samples", "3").stdout
        assert output.count("| reads 3 | entropy ") == 3
        assert "prefill " in output.splitlines()[-2]

    def test_is_in_colour_on_a_terminal_unless_no_color_is_set(self, ask) -> None:
        terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
        coloured = ask(STATE, *QUESTIONS, env=terminal).stdout
        assert "█" in coloured
        assert "\x1b[" in coloured
        plain = ask(STATE, *QUESTIONS, env={**terminal, "NO_COLOR": "1"}).stdout
        assert plain.isascii()
        assert "\x1b" not in plain

    def test_names_cannot_steer_the_terminal_or_be_taken_for_markup(self, ask) -> None:
        output = ask(STATE, "--choice", "[red]a[/red]: Which?=[bold]x,\x1b[31my\x07").stdout
        assert "\x1b" not in output
        assert "\x07" not in output
        assert "[red]a[/red]: Which?" in output
        assert "[bold]x" in output

    def test_long_names_fold_instead_of_being_cut(self, ask) -> None:
        output = ask(STATE, "--choice", f"x={'long' * 40},b").stdout
        assert output.count("long") >= 40 - 8  # a fold may split a word
        assert max(map(len, output.splitlines())) <= 80


class TestJSON:
    def test_is_one_line_and_what_the_engine_answers(self, ask, engine: Engine) -> None:
        result = ask(STATE, *QUESTIONS, "--seed", "5", "--json")
        assert result.stdout.count("\n") == 1
        body = json.loads(result.stdout)
        questions = {
            "refund": {"type": "noul", "instructions": "Does the customer ask for money back?"},
            "team": {
                "type": "choice",
                "instructions": "Which team?",
                "criteria": dict.fromkeys(("billing", "technical", "sales")),
            },
            "mood": {"type": "score", "criteria": ["calm", "annoyed", "furious"]},
        }
        request, _ = parse_request({"state": STATE, "questions": questions, "seed": 5})
        expected = engine.decide(request).model_dump(mode="json", exclude_none=True)
        assert body == expected

    def test_has_no_footer_and_no_spinner(self, ask) -> None:
        result = ask(STATE, *QUESTIONS, "--json")
        assert result.stderr == ""
        assert "seed for trying" not in result.output

    def test_keeps_characters_of_all_languages(self, ask) -> None:
        result = ask("x", "--choice", "größe=klein,größer 🦊", "--json")
        assert "größer 🦊" in result.stdout_bytes.decode()

    def test_full_diagnostics_have_token_ids(self, ask) -> None:
        body = json.loads(ask(STATE, *QUESTIONS, "--full-diagnostics", "--json").stdout)
        assert body["x_diagnostics"]["prefix_token_ids"][0]

    def test_reads_a_body_from_a_pipe(self, ask) -> None:
        body = {"state": STATE, "questions": {"q": {"type": "noul", "instructions": "Is it?"}}}
        result = ask("--file", "-", "--json", input=json.dumps(body))
        assert list(json.loads(result.stdout)["answers"]) == ["q"]

    def test_unknown_fields_are_warned_of(self, ask) -> None:
        body = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}, "sead": 1}
        printed = ask("--file", "-", "--json", input=json.dumps(body))
        assert json.loads(printed.stdout)["x_warnings"][0]["loc"] == ["sead"]
        table = ask("--file", "-", input=json.dumps(body))
        assert table.stderr == "warning: sead: Unknown field 'sead' was ignored; did you mean 'seed'?\n"

    @pytest.mark.parametrize(("layout", "permutations"), [("isolated", 2), ("joint", 1)])
    def test_options_reach_the_request(self, ask, layout: str, permutations: int) -> None:
        options = ["--layout", layout, "--samples", "2", "--seed", "-3", "--instructions", "Be strict."]
        result = ask(
            STATE, *QUESTIONS, *options, "--permutations", str(permutations), "--diagnostics", "--json"
        )
        report = json.loads(result.stdout)["x_diagnostics"]
        assert report["layout"] == layout
        assert report["seed"] == -3
        assert report["samples"]["n"] == 2
        assert report["permutations"] == permutations


class TestErrors:
    @pytest.mark.parametrize(
        ("args", "line"),
        [
            (["x"], "error: no question: use --noul, --choice, --score or --file"),
            (["x", "--choice", "team"], "error: --choice 'team': there must be one '=' before the list"),
            (["x", "--noul", "q?", "--samples", "99"], "less than or equal to 32"),
            (["x", "--noul", "q?", "--samples", "some"], "error: samples: "),
            (["x", "--noul", "q?", "--seed", "99999999999"], "error: seed: "),
            (["x", "--noul", "q" * 600], "error: questions."),
            (["5", "--state-json", "--noul", "q?"], "error: state: Input should be a string, an object"),
            (
                ["x", "--noul", "q?", "--model", "other"],
                f"error: model: No model named 'other'; loaded: {NAME}",
            ),
            (["x" * 400_000, "--noul", "q?"], "error: state: Too long: "),
            (["x", "--noul", "q?", "--config", "/no/file.toml"], "error: /no/file.toml: cannot be read"),
            (["x", "--noul", "q?", "--dtype", "int9"], "error: dtype: "),
            (["x", "--noul", "q?", "--url", "ftp://x"], "error: base_url must look like"),
            (["x", "--noul", "q?", "--url", "http://x", "--timeout", "0"], "error: --timeout must be more"),
            (["x", "--noul", "q?", "--url", "http://x", "--local"], "error: --url asks a server"),
            (["x", "--noul", "q?", "--model-path", "a.toml", "--config", "b.toml"], "both settings files"),
        ],
    )
    def test_bad_input_is_one_line_and_exit_code_2(self, ask, args: list[str], line: str) -> None:
        result = ask(*args)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert line in result.stderr
        assert result.stderr.count("\n") == 1

    @pytest.mark.parametrize("args", [["--nope"], ["--seed", "x"], ["--layout", "other"]])
    def test_bad_options_exit_with_2(self, ask, args: list[str]) -> None:
        assert ask("x", "--noul", "q?", *args).exit_code == 2

    def test_a_model_that_fails_is_one_line_and_exit_code_1(self, ask, monkeypatch) -> None:
        def fail(*args: object, **kwargs: object) -> None:
            raise ArithmeticError("the model gave a logit that is not finite")

        monkeypatch.setattr(Engine, "run", fail)
        result = ask("x", "--noul", "q?")
        assert result.exit_code == 1
        assert result.stderr == "error: the model failed: the model gave a logit that is not finite\n"


ANSWER = {
    "model": "served-1",
    "answers": {"q": {"type": "noul", "noul": 0.25}},
    "usage": {"input_tokens": 3, "output_tokens": 6},
}
ASK = ("x", "--noul", "q=Is it?")


class TestServer:
    def test_gets_the_body_and_the_key(self, served) -> None:
        seen: list[httpx.Request] = []

        def handler(request: httpx.Request) -> httpx.Response:
            seen.append(request)
            return httpx.Response(200, json=ANSWER)

        where = ("--url", "http://server:1", "--api-key", "secret", "--samples", "2")
        result = served(handler, *ASK, *where, "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == ANSWER
        assert str(seen[0].url) == "http://server:1/v1/systemone"
        assert seen[0].headers["authorization"] == "Bearer secret"
        assert json.loads(seen[0].content) == {
            "model": "jev-latest",
            "state": "x",
            "questions": {"q": {"type": "noul", "instructions": "Is it?"}},
            "samples": 2,
        }

    def test_comes_from_the_environment_too(self, served) -> None:
        result = served(
            lambda request: httpx.Response(200, json=ANSWER),
            *ASK,
            env={"JEV_BASE_URL": "http://server:1"},
        )
        assert result.exit_code == 0, result.output
        assert "served-1 | 3 + 6 tokens" in result.stdout
        assert "seed for trying" not in result.stdout

    @pytest.mark.parametrize("option", [["--local"], ["--device", "cpu"], ["--threads", "1"]])
    def test_gives_way_to_an_option_of_a_model_here(self, ask, option: list[str]) -> None:
        result = ask(*ASK, *option, "--json", env={"JEV_BASE_URL": "http://127.0.0.1:9"})
        assert json.loads(result.stdout)["model"] == NAME

    @pytest.mark.parametrize(
        ("status", "body", "code", "line"),
        [
            (
                422,
                {"detail": [{"loc": ["body", "questions", "q"], "msg": "Bad", "type": "x"}]},
                2,
                "questions.q: Bad",
            ),
            (401, {"detail": {"error_type": "authentication_error", "message": "Wrong key"}}, 2, "Wrong key"),
            (404, {"detail": {"error_type": "not_found_error", "message": "No model"}}, 2, "No model"),
            (413, {"detail": {"error_type": "too_large", "message": "Too large"}}, 2, "Too large"),
            (429, {"detail": {"error_type": "rate_limit_error", "message": "Slow down"}}, 1, "Slow down"),
            (503, {"detail": {"error_type": "model_unavailable", "message": "Loading"}}, 1, "Loading"),
            (529, {"detail": {"error_type": "overloaded_error", "message": "Full"}}, 1, "Full"),
            (500, "<html>", 1, "500 Internal Server Error"),
            (200, {"model": "m"}, 1, "answers: Field required"),
        ],
    )
    def test_errors_are_one_line_with_the_exit_code_of_their_kind(
        self, served, status: int, body: Any, code: int, line: str
    ) -> None:
        def handler(request: httpx.Request) -> httpx.Response:
            headers = {"x-typesafe-request-id": "req_1"}
            if isinstance(body, str):
                return httpx.Response(status, text=body, headers=headers)
            return httpx.Response(status, json=body, headers=headers)

        result = served(handler, *ASK, "--url", "http://server:1")
        assert result.exit_code == code
        assert result.stderr == f"error: {line} (request req_1)\n"
        assert result.stdout == ""

    def test_that_cannot_be_reached_is_exit_code_1(self, served) -> None:
        def handler(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("refused", request=request)

        result = served(handler, *ASK, "--url", "http://server:1")
        assert (result.exit_code, result.stderr) == (1, "error: Cannot reach http://server:1: refused\n")

    def test_many_issues_are_still_one_line(self, served) -> None:
        issues = [{"loc": ["body", f"f{i}"], "msg": "Bad\nvalue", "type": "x"} for i in range(9)]
        result = served(
            lambda request: httpx.Response(422, json={"detail": issues}),
            *ASK,
            "--url",
            "http://server:1",
        )
        assert result.stderr == (
            "error: " + "; ".join(f"f{i}: Bad value" for i in range(5)) + "; and 4 more\n"
        )


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\n b", "a b"), ("\x1b[31mx", "?[31mx"), ("\u202ex", "?x"), ("größe 🦊", "größe 🦊")],
)
def test_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown


@pytest.mark.parametrize("share", [0.0, 0.004, 0.5, 0.999, 1.0, 1.0000001, -1e-9])
def test_bars_keep_their_width_for_every_share(share: float) -> None:
    for plain in (True, False):
        bar = Screen(Screen.standard().console, plain).bar(share, 10)
        assert len(bar) <= 10
        assert abs(len(bar) - 10 * share) <= 1
