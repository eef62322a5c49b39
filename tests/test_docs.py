"""Proves that everything in README.md and docs/ that can be run runs as it is written there.

Shell, Python, JSON and TOML blocks of a page run in their order, in one folder, against one server with the
embedded model, or against the one that the page itself has started last. What cannot run carries
`<!-- not run: WHY -->`; anything else that is not run here fails. docs_pages.py says what else a page can
mark and which files it may name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from jev import InvalidRequestError

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode does not
from docs_pages import FILES, PAGES, ROOT, Block, blocks

pytestmark = pytest.mark.slow

TIMEOUT_S = 120
Start = Callable[..., contextlib.AbstractContextManager[str]]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `jev` and `python` of the environment under test."""
    folder = tmp_path_factory.mktemp("bin")
    for name, arguments in (("jev", "-m jev "), ("python", "")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}"$@"\n')
        program.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that pages name, each made once."""
    folder = tmp_path_factory.mktemp("material")
    for name, make in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(make())
    return folder


class Reader:
    """Does what a page says, in the current folder.

    Args:
        server: the address of a server with the embedded model.
        checkpoint: a checkpoint in place of the reader's own.
        start: starts other servers.
    """

    def __init__(self, server: str, checkpoint: Path, start: Start) -> None:
        self._server = server
        self._checkpoint = str(checkpoint)
        self._start = start
        self._started = contextlib.ExitStack()
        self._module = types.ModuleType("page")
        self._ask(server)

    def close(self) -> None:
        """End the server that the page started, if any."""
        self._started.close()

    def do(self, block: Block) -> None:
        """Run or check one block; AssertionError or what it raised if it is wrong."""
        if block.kind == "shell":
            for command in block.commands():
                self._command(block, command)
            return
        text = self._meant(block.text)
        if block.file is not None:
            Path(block.file).write_text(text)
        match block.kind:
            case "python":
                # Empty lines put it where it stands in the page, so that errors name that line.
                code = compile("\n" * (block.line - 1) + text, block.place.partition(":")[0], "exec")
                sys.modules["page"] = self._module
                exec(code, self._module.__dict__)
            case "json":
                self._request(block, json.loads(text))
            case "jsonl":
                assert all(isinstance(json.loads(line), dict) for line in text.splitlines())
            case "toml":
                tomllib.loads(text)
            case _:
                pass

    def _meant(self, text: str) -> str:
        """A text with what this place has instead of the reader's own server, checkpoint and environment."""
        text = re.sub(r"http://(127\.0\.0\.1|localhost):8000\b", self.url, text)
        return text.replace("/path/to/checkpoint", self._checkpoint)

    def _command(self, block: Block, command: list[str] | str) -> None:
        if isinstance(command, list):
            self._serve([self._meant(word) for word in command])
            return
        script = self._meant(command)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == block.exits, f"{block.place}\n{script}\n{done.stdout}{done.stderr}"

    def _serve(self, command: list[str]) -> None:
        """Start a server as the page says, in place of the one that it started before."""
        self._started.close()
        self._ask(self._server)
        if command == ["jev", "serve"]:
            return
        at = command.index("jev")
        settings = dict(word.split("=", 1) for word in command[:at])
        url = self._started.enter_context(self._start(Path.cwd(), *command[at + 2 :], **settings))
        assert httpx.get(f"{url}/ready").status_code == 200
        # A random checkpoint would answer anything to what comes after it.
        if self._checkpoint in command:
            self._started.close()
        else:
            self._ask(url)

    def _ask(self, url: str) -> None:
        self.url = url
        # Commands and clients that name no server ask this one, which saves loading a model for each.
        os.environ["JEV_BASE_URL"] = url

    def _request(self, block: Block, body: Any) -> None:
        if isinstance(body, dict) and {"state", "questions"} <= body.keys():
            response = httpx.post(f"{self.url}/v1/systemone", json=body, timeout=TIMEOUT_S)
            assert response.status_code == 200, f"{block.place}\n{response.text}"
            assert "x_warnings" not in response.json()


@pytest.fixture
def reader(
    server: str,
    tiny: Path,
    start_server: Start,
    programs: Path,
    material: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Reader]:
    """A reader of one page in a folder of its own."""
    folder = tmp_path / "page"
    shutil.copytree(material, folder)
    for name in ("examples", "configs", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(folder)
    for name in os.environ:
        if name.startswith("JEV_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("JEV_BASE_URL", server)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setitem(sys.modules, "page", types.ModuleType("page"))
    reader = Reader(server, tiny, start_server)
    yield reader
    reader.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_says_can_be_done(page: Path, reader: Reader) -> None:
    skipped = []
    for block in blocks(page):
        assert not block.is_unnamed_command, f"{block.place}: these commands need a language"
        assert block.not_run != "", f"{block.place}: say why it is not run"
        if block.not_run:
            continue
        if "curl " in block.text and shutil.which("curl") is None:
            skipped.append(block.place)
            continue
        reader.do(block)
    if skipped:
        pytest.skip(f"curl is not installed: {', '.join(skipped)}")


PAGE = """# A page

    jev ask x \\
        --noul q?

<!-- not run: needs a GPU -->
```bash
jev serve --device cuda
```

```console
$ cat a.txt |\\
  wc
 1 2 3
$ JEV_API_KEYS=k jev serve --port 9000  # there
```

<!-- file: a.json -->
```json
{}
```

```
jev doctor
```
"""


def test_blocks_are_found_with_their_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docs_pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    ask, gpu, console, file, unnamed = blocks(page)
    assert (ask.place, ask.kind, list(ask.commands())) == (
        "page.md:3",
        "shell",
        ["jev ask x      --noul q?\n"],
    )
    assert (gpu.not_run, gpu.line) == ("needs a GPU", 8)
    serve = ["JEV_API_KEYS=k", "jev", "serve", "--port", "9000"]
    assert list(console.commands()) == ["cat a.txt |   wc\n", serve]
    assert (file.file, file.kind, console.file) == ("a.json", "json", None)
    assert [block.is_unnamed_command for block in (ask, file, unnamed)] == [False, False, True]
    page.write_text("```ruby\n```\n")
    with pytest.raises(ValueError, match=r"page\.md:1: no way to check a block of 'ruby'"):
        blocks(page)


ODD = '{"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}, "sampels": 1}'


@pytest.mark.parametrize(
    ("kind", "text", "error"),
    [
        ("shell", "jev ask x --nuol q?\n", AssertionError),
        ("shell", "false | true\n", AssertionError),
        ("shell", "jev serve --prot 1\n", RuntimeError),
        ("python", "from jev import Jev\nJev().decide('x', {})\n", InvalidRequestError),
        ("json", '{"state": "x", "questions": {}}', AssertionError),
        ("json", ODD, AssertionError),
        ("toml", "a = \n", tomllib.TOMLDecodeError),
    ],
)
def test_what_is_wrong_fails(reader: Reader, kind: Any, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        reader.do(Block("page.md:1", 1, kind, "", text))
