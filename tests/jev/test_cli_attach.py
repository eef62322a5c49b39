"""`jev ask --attach` answers from files, here or over HTTP, and `jev doctor` says which files can be read."""

from __future__ import annotations

import base64
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import docx
import httpx
import pytest
from typer.testing import CliRunner, Result

from jev import Jev, RetryPolicy
from jev._attachments import MAX_INLINE
from jev.cli import app, doctor, reader_checks
from jev.engine import Engine
from jev.settings import Settings

CITY = ("--choice", "city: Where was the parcel sent?=Lisbon,Oslo,Cairo,Lima")
ANSWER: dict[str, Any] = {
    "model": "served-1",
    "answers": {"q": {"type": "noul", "noul": 0.25}},
    "usage": {"input_tokens": 3, "output_tokens": 6},
}
ASK = ("--noul", "q=Is it?")
URL = ("--url", "http://server:1")


@pytest.fixture
def ask(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """Run `jev ask` on an engine that is loaded already; `ask.loads` counts how often."""
    loads: list[Settings] = []

    def load(settings: Settings, _status: object) -> Engine:
        loads.append(settings)
        return engine

    monkeypatch.setattr("jev.cli.ask.load_model", load)
    for name in ("JEV_BASE_URL", "JEV_API_KEY", "FORCE_COLOR", "COLUMNS", "JEV_SPEECH_URL", "JEV_OCR"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: str, input: str | None = None, env: dict[str, str] | None = None) -> Result:
        return CliRunner().invoke(app, ["ask", *args], input=input, env=env)

    run.loads = loads  # type: ignore[attr-defined]
    return run


@pytest.fixture
def served(ask, monkeypatch: pytest.MonkeyPatch):
    """Run `jev ask` against canned answers in place of a server; return the requests too."""

    def run(*args: str, answer: dict[str, Any] = ANSWER) -> tuple[Result, list[httpx.Request]]:
        requests: list[httpx.Request] = []

        def handler(request: httpx.Request) -> httpx.Response:
            requests.append(request)
            if request.url.path == "/v1/files":
                entry = {"id": f"file-{len(requests)}", "name": "a", "bytes": 1, "kind": "pdf"}
                return httpx.Response(200, json={"files": [entry]})
            return httpx.Response(200, json=answer)

        client = partial(Jev, transport=httpx.MockTransport(handler), retry=RetryPolicy(max_retries=0))
        monkeypatch.setattr("jev.cli.ask.Jev", client)
        return ask(*args), requests

    return run


@pytest.fixture
def note(tmp_path: Path) -> Path:
    file, out = tmp_path / "note.docx", io.BytesIO()
    document = docx.Document()
    document.add_paragraph("The parcel with the lamps was sent to Lisbon on Monday.")
    document.save(out)
    file.write_bytes(out.getvalue())
    return file


class TestHere:
    def test_the_answer_comes_from_the_attachment(self, ask, note: Path) -> None:
        for state in (["A shipping note is attached."], []):
            result = ask(*state, "--attach", str(note), *CITY, "--json")
            assert result.exit_code == 0, result.output
            assert json.loads(result.stdout)["answers"]["city"]["choice"] == "Lisbon"
        without = json.loads(ask("A shipping note is attached.", *CITY, "--json").stdout)
        assert without["answers"]["city"]["probabilities"]["Lisbon"] < 0.5

    def test_may_be_repeated_and_joins_those_of_a_body(self, ask, tmp_path: Path) -> None:
        for name in ("one", "two"):
            (tmp_path / f"{name}.txt").write_text(f"This is file {name}.")
        body = {
            "state": "s",
            "questions": {"q": {"type": "noul", "instructions": "?"}},
            "files": [{"name": "zero.txt", "data": base64.b64encode(b"This is file zero.").decode()}],
        }
        attach = [arg for name in ("one", "two") for arg in ("--attach", str(tmp_path / f"{name}.txt"))]
        counts = []
        for more in ([], attach[:2], attach):
            result = ask("--file", "-", *more, "--json", input=json.dumps(body))
            assert result.exit_code == 0, result.output
            counts.append(json.loads(result.stdout)["usage"]["input_tokens"])
        assert 0 < counts[1] - counts[0] == counts[2] - counts[1]

    def test_a_pipe_is_the_state_beside_an_attachment(self, ask, note: Path) -> None:
        attach = ("--attach", str(note), "--json")
        tokens = [
            json.loads(ask(*attach, *CITY, input=text).stdout)["usage"]["input_tokens"]
            for text in ("", "A few words more.\n")
        ]
        assert tokens[0] < tokens[1]

    def test_a_state_that_was_given_and_is_empty_is_refused_all_the_same(self, ask, tmp_path: Path) -> None:
        empty = tmp_path / "empty"
        empty.touch()
        for args in (["--state-file", str(empty)], ["-"]):
            result = ask(*args, "--attach", str(empty), *CITY, input="")
            assert (result.exit_code, ask.loads) == (2, [])
            assert "is empty; give the state" in result.stderr

    @pytest.mark.parametrize(("name", "reason"), [("none.pdf", "No such file"), ("", "Is a directory")])
    def test_a_bad_path_is_named(self, ask, note: Path, tmp_path: Path, name: str, reason: str) -> None:
        bad = tmp_path / name
        result = ask("x", "--attach", str(note), "--attach", str(bad), *CITY)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: --attach {bad}: cannot be read ({reason}")
        assert result.stderr.count("\n") == 1
        assert ask.loads == []

    def test_a_device_without_an_end_is_refused(self, ask, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jev._attachments.MAX_STREAM", 1000)
        endless = ask("x", "--attach", "/dev/zero", *CITY)
        assert endless.exit_code == 2
        assert endless.stderr == (
            "error: files.0: Attachment 'zero': It has more than 1000 bytes, and no known size\n"
        )
        assert ask.loads == []

    def test_assets_are_checked_before_the_model_is_loaded(self, ask, tmp_path: Path) -> None:
        asset = {"type": "image", "format": "png", "data_base64": "AAAA"}
        file = tmp_path / "body.json"
        file.write_text(json.dumps({"state": "x", "assets": {"[p]": asset}}))
        refused = ask("--file", str(file), *CITY)
        assert refused.exit_code == 2
        assert "neither a PNG nor a JPEG" in refused.stderr
        assert ask.loads == []

    def test_too_many_or_too_large_are_refused_before_the_model_is_loaded(self, ask, tmp_path: Path) -> None:
        file = tmp_path / "a.bin"
        file.write_bytes(bytes(1000))
        many = ask("x", *["--attach", str(file)] * 9, *CITY)
        assert (many.exit_code, many.stderr) == (
            2,
            "error: files: With this field there are 9 attachments in files, documents, videos and audios; "
            "the limit is 8\n",
        )
        config = tmp_path / "jev.toml"
        config.write_text("[limits]\nmax_file_bytes = 999\n")
        large = ask("x", "--attach", str(file), *CITY, "--config", str(config))
        assert large.exit_code == 2
        assert large.stderr.startswith("error: files.0.data: Attachment 'a.bin': The file has")
        assert ask.loads == []

    def test_a_file_that_cannot_be_read_is_named(self, ask, tmp_path: Path) -> None:
        file = tmp_path / "scan.pdf"
        file.write_bytes(b"not a PDF")
        result = ask("x", "--attach", str(file), *CITY)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: files.0: Attachment 'scan.pdf': It is named .pdf, but")

    def test_options_of_reading_reach_the_settings(self, ask, note: Path) -> None:
        ask("x", "--attach", str(note), *CITY, "--no-ocr", "--speech-model", "some/model")
        ask("x", "--attach", str(note), *CITY, "--ocr")
        ask("x", "--attach", str(note), *CITY)
        found = [(settings.ocr, settings.speech_model) for settings in ask.loads]
        assert found == [("off", "some/model"), ("on", None), ("auto", None)]

    def test_they_have_no_meaning_for_a_server(self, ask, note: Path) -> None:
        for option in (["--ocr"], ["--speech-model", "m"]):
            result = ask("x", "--attach", str(note), *CITY, *option, *URL)
            assert result.exit_code == 2
            assert "--url asks a server" in result.stderr

    def test_speech_settings_that_contradict_are_one_line(self, ask, note: Path) -> None:
        result = ask(
            *("x", "--attach", str(note), *CITY, "--speech-model", "m"),
            env={"JEV_SPEECH_URL": "http://127.0.0.1:9/"},
        )
        assert (result.exit_code, ask.loads) == (2, [])
        assert result.stderr.startswith("error: Speech needs either a model or the URL")


class TestServer:
    def test_small_files_go_inside_the_request(self, served, note: Path) -> None:
        result, (request,) = served("x", "--attach", str(note), *ASK, *URL)
        assert result.exit_code == 0, result.output
        (entry,) = json.loads(request.content)["files"]
        assert entry["name"] == "note.docx"
        assert base64.b64decode(entry["data"]) == note.read_bytes()

    def test_large_ones_are_uploaded_first(self, served, tmp_path: Path) -> None:
        file = tmp_path / "large.pdf"
        file.write_bytes(bytes(MAX_INLINE + 1))
        result, (upload, request) = served("x", "--attach", str(file), *ASK, *URL)
        assert result.exit_code == 0, result.output
        assert upload.url.path == "/v1/files"
        assert json.loads(request.content)["files"] == [{"name": "large.pdf", "file": "file-1"}]

    def test_a_bad_path_is_named_and_nothing_is_sent(self, served) -> None:
        result, requests = served("x", "--attach", "/none.pdf", *ASK, *URL)
        assert (result.exit_code, requests) == (2, [])
        assert "--attach /none.pdf: cannot be read (No such file" in result.stderr

    def test_diagnostics_show_what_was_read(self, served, note: Path) -> None:
        evidence = [
            {"name": "a.pdf", "kind": "pdf", "notes": ["2 pages were read.", "1 was\x1b[31m blank."]},
            {"name": "b.txt", "kind": "text", "notes": []},
        ]
        answer = {**ANSWER, "x_diagnostics": {"evidence": evidence}}
        result, _ = served("x", "--attach", str(note), *ASK, *URL, "--diagnostics", answer=answer)
        assert result.stdout.splitlines()[-3:] == [
            "a.pdf (pdf): 2 pages were read.",
            "a.pdf (pdf): 1 was?[31m blank.",
            "b.txt (text): read",
        ]

    @pytest.mark.parametrize("evidence", [None, "x", {"a": 1}, [1, None], [{"notes": 1}]])
    def test_diagnostics_of_any_shape_are_shown_or_left_out(self, served, note: Path, evidence: Any) -> None:
        answer = {**ANSWER, "x_diagnostics": {"evidence": evidence}}
        result, _ = served("x", "--attach", str(note), *ASK, *URL, "--diagnostics", answer=answer)
        assert result.exit_code == 0, result.output
        assert "served-1" in result.stdout


class TestDoctor:
    def test_every_reader_has_a_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("machine_checks", "model_checks"):
            monkeypatch.setattr(doctor, name, lambda settings: iter(()))
        monkeypatch.delenv("JEV_SPEECH_MODEL", raising=False)
        monkeypatch.delenv("JEV_SPEECH_URL", raising=False)
        result = CliRunner().invoke(app, ["doctor", "--json"])
        names = [check["name"] for check in json.loads(result.stdout)["checks"]]
        kinds = ("pdf", "office", "images", "heic", "video", "speech", "ocr")
        assert names == [f"reader {kind}" for kind in kinds]
        assert result.exit_code == 0

    @pytest.mark.parametrize(
        ("kind", "missing", "named", "fix"),
        [
            ("pdf", {"pymupdf"}, "pymupdf", "pip install 'jev-server[server]'"),
            ("office", {"python-pptx"}, "python-pptx", "pip install 'jev-server[server]'"),
            ("images", {"pillow"}, "pillow", "pip install 'jev-server[server]'"),
            ("heic", {"pillow-heif"}, "pillow-heif", "pip install 'jev-server[server]'"),
            (
                "video",
                {"opencv-python-headless", "opencv-python"},
                "opencv-python-headless",
                "pip install 'jev-server[server]'",
            ),
            (
                "speech",
                {"faster-whisper", "av"},
                "faster-whisper, av",
                "pip install 'jev-server[server]'",
            ),
            ("ocr", {"rapidocr-onnxruntime"}, "rapidocr-onnxruntime", "pip install 'jev-server[ocr]'"),
        ],
    )
    def test_what_is_missing_is_named_with_how_to_install_it(
        self, monkeypatch: pytest.MonkeyPatch, kind: str, missing: set[str], named: str, fix: str
    ) -> None:
        def version(name: str) -> str:
            if name in missing:
                raise reader_checks.PackageNotFoundError(name)
            return "1.0"

        monkeypatch.setattr(reader_checks, "version", version)
        checks = {c.name: c for c in reader_checks.reader_checks(Settings(speech_model="small"))}
        found = checks.pop(f"reader {kind}")
        assert (found.status, found.fix) == ("none", fix)
        assert found.detail.startswith(f"{named} not installed (")
        assert {check.status for check in checks.values()} == {"ok"}

    def test_one_of_two_packages_is_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def version(name: str) -> str:
            if name == "opencv-python-headless":
                raise reader_checks.PackageNotFoundError(name)
            return "1.0"

        monkeypatch.setattr(reader_checks, "version", version)
        checks = {c.name: c for c in reader_checks.reader_checks(Settings())}
        assert checks["reader video"].detail == "opencv-python 1.0 (frames of videos)"

    def test_speech_needs_a_model_or_a_service(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reader_checks, "version", lambda name: "1.0")

        def speech(**settings: str) -> tuple[str, str]:
            checks = {c.name: c for c in reader_checks.reader_checks(Settings(**settings))}  # type: ignore[arg-type]
            return checks["reader speech"].status, checks["reader speech"].fix

        assert speech() == ("none", "set speech_model or speech_url")
        assert speech(speech_model="small") == ("ok", "")
        assert speech(speech_url="http://127.0.0.1:9/") == ("ok", "")
