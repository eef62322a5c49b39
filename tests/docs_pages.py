"""What test_docs.py needs of a page: its blocks, and the files that its commands name."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

Kind: TypeAlias = Literal["shell", "python", "json", "jsonl", "toml", "none"]

LANGUAGES: dict[str, Kind] = {
    **dict.fromkeys(("bash", "sh", "console"), "shell"),
    **{kind: kind for kind in ("python", "json", "jsonl", "toml")},
    **dict.fromkeys(("", "text", "csv", "html", "promql", "yaml"), "none"),
}
"""What is done with a block by its language; an indented block is shell."""

_MARKER = re.compile(r"<!--\s*(not run|file|exits):\s*(.*?)\s*-->", re.DOTALL)
_COMMAND = re.compile(r"\s*(\$ |jev |curl |python |pip |make |docker )")
_SERVE = re.compile(r"(\w+=\S* )*jev serve\b")


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        place: page and line, such as "docs/cli.md:3".
        line: of its first line of content, from 1.
        kind: what is done with it.
        language: as it is written there.
        text: its content; of a console only the commands.
        not_run: why it is not run, from `<!-- not run: WHY -->` before it.
        file: name that it is kept under for commands after it, from `<!-- file: NAME -->`.
        exits: exit code that it ends with, from `<!-- exits: CODE -->`.
    """

    place: str
    line: int
    kind: Kind
    language: str
    text: str
    not_run: str | None = None
    file: str | None = None
    exits: int = 0

    @property
    def is_unnamed_command(self) -> bool:
        """Whether it has commands that nobody would run, for want of a language."""
        return self.kind == "none" and any(map(_COMMAND.match, self.text.splitlines()))

    def commands(self) -> Iterator[list[str] | str]:
        """Its commands in order: the words of each `jev serve`, which has no end, and scripts between."""
        script = ""
        for line in self.text.replace("\\\n", " ").splitlines():
            if not _SERVE.match(line):
                script += line + "\n"
                continue
            if script.strip():
                yield script
            script = ""
            yield shlex.split(line, comments=True)
        if script.strip():
            yield script


def blocks(page: Path) -> list[Block]:
    """All blocks of a page in order; ValueError for a language or marker that is not known."""
    found = []
    markers: dict[str, str] = {}
    name = page.relative_to(ROOT).as_posix()
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type not in ("fence", "code_block"):
            markers = dict(_MARKER.findall(token.content)) if token.type == "html_block" else {}
            continue
        assert token.map is not None
        line = token.map[0] + 1
        language = token.info.split()[0] if token.info else ""
        if language not in LANGUAGES:
            raise ValueError(f"{name}:{line}: no way to check a block of {language!r}")
        kind = "shell" if token.type == "code_block" else LANGUAGES[language]
        found.append(
            Block(
                f"{name}:{line}",
                line + (token.type == "fence"),
                kind,
                language,
                _commands(token.content, language),
                markers.get("not run"),
                markers.get("file"),
                int(markers.get("exits", 0)),
            )
        )
        markers = {}
    return found


def _commands(text: str, language: str) -> str:
    """The text; of a console session what stands behind `$ `, and the lines that go on with it."""
    if language != "console":
        return text.replace(".venv/bin/", "")
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            lines.append(line[2:])
        elif lines and lines[-1].endswith("\\"):
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


# The files that pages name. Each is made in the folder in which a page's commands run; `examples/`,
# `configs/` and `benchmarks/` are there too. A page that shows a file itself marks it `<!-- file: NAME -->`.


def _ticket() -> bytes:
    return b"My card was charged twice and I want my money back.\n"


def _invoice() -> bytes:
    import pymupdf

    document = pymupdf.open()
    document.new_page().insert_text((72, 72), "Invoice 4711. Total 143.40 EUR. Paid on 3 May.")
    return document.tobytes()


def _photo() -> bytes:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (640, 200), "white")
    ImageDraw.Draw(image).text((20, 60), "The parcel is broken", fill="black", font_size=40)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def _call() -> bytes:
    spec = find_spec("moonshine_voice")
    assert spec is not None
    assert spec.submodule_search_locations
    return (Path(spec.submodule_search_locations[0]) / "assets" / "beckett.wav").read_bytes()


def _questions() -> bytes:
    questions = {
        "topic": {
            "type": "choice",
            "instructions": "What is the message about?",
            "criteria": {"billing": None, "travel": None, "music": None},
        },
        "money": {"type": "noul", "instructions": "Does the writer want money back?"},
    }
    return json.dumps(questions, indent=1).encode()


def _labelled(number: int) -> bytes:
    """As many rows as a fit wants, all different, with the answers to `questions.json`."""
    texts = {
        "billing": "Order {}: my card was charged twice, I want my money back.",
        "travel": "Our train number {} to Rome leaves on Friday.",
        "music": "The band played song {} at the concert.",
    }
    rows = [
        {
            "state": text.format(2 * n + number),
            "answers": {"topic": topic, "money": topic == "billing"},
        }
        for n in range(17)
        for topic, text in texts.items()
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _set() -> bytes:
    """Labelled rows that bring their questions."""
    money = {"money": {"type": "noul", "instructions": "Does the writer want money back?"}}
    states = {"My card was charged twice.": True, "The app crashes when I open the camera.": False}
    rows = [
        {"state": state, "questions": money, "answers": {"money": is_so}} for state, is_so in states.items()
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _mails() -> bytes:
    states = ("My card was charged twice.", "Which platform does the train to Rome leave from?")
    return "".join(json.dumps({"state": state}) + "\n" for state in states).encode()


def _adapter(name: str) -> bytes:
    """A file of an adapter of the embedded model that changes nothing yet."""
    import torch

    from jev.model import embedded
    from jev.model.config import ModelConfig
    from jev.model.lora import Adapter, LoraConfig, save_adapter, target_shapes

    config = LoraConfig(4, 8, ("q_proj", "v_proj"))
    shapes = target_shapes(ModelConfig.from_folder(embedded.path()).text, config.targets)
    tensors = {path: (torch.ones(4, width), torch.zeros(rows, 4)) for path, (rows, width) in shapes.items()}
    with TemporaryDirectory() as folder:
        save_adapter(folder, Adapter(config, tensors), base_name=embedded.NAME, base_fingerprint="")
        return (Path(folder) / name).read_bytes()


FILES: dict[str, Callable[[], bytes]] = {
    "call.wav": _call,
    "held-out.jsonl": partial(_labelled, 1),
    "invoice.pdf": _invoice,
    "labelled.jsonl": partial(_labelled, 0),
    "mail.txt": _ticket,
    "mails.jsonl": _mails,
    "photo.png": _photo,
    "questions.json": _questions,
    "set.jsonl": _set,
    "support/adapter_config.json": partial(_adapter, "adapter_config.json"),
    "support/adapter_model.safetensors": partial(_adapter, "adapter_model.safetensors"),
    "ticket.txt": _ticket,
}
