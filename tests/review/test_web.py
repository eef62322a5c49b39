"""Proves that the page decides what it shows, for this machine's browser only, and shows no other file.

It is asked over HTTP as its script asks it; test_browser.py looks at it in a browser.
"""

from __future__ import annotations

import json
import signal
import socket
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from docs_pages import FILES
from queue_lines import CHOICE, NOUL, labels, line, write
from reviewing import Page, served
from starlette.testclient import TestClient

from jev.review import ReviewError, Session, Store, load_queue
from jev.review.web import create_app, serve


class Local(Page):
    """The page's app in this process, without its socket."""

    def __init__(self, folder: Path, lines: list[Any], **options: Any) -> None:
        found = load_queue(write(folder / "queue.jsonl", lines), out=folder / "out.jsonl", **options)
        self.bad = found.bad
        self.store = Store(folder / "out.jsonl")
        app = create_app(Session(found.items, self.store), "token", lambda _: None)
        self.client = TestClient(app, base_url="http://127.0.0.1/token/")

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()


def test_a_review_over_the_page(tmp_path: Path) -> None:
    broken = line(9, question="none")
    with served(tmp_path, [line(1), line(2), broken, line(3), line(4)], "--limit", "4") as page:
        assert page.warnings == ["warning: row 3: question: there is no question 'none'; it is passed over\n"]
        state = page.state()
        assert (state["at"], state["total"]) == (0, 4)
        item = state["item"]
        assert (item["id"], item["state"], item["instructions"]) == ("r1", "state 1", "Which?")
        assert [(option["key"], option["proposed"]) for option in item["options"]] == [
            ("1", False),
            ("2", True),
            ("3", False),
        ]
        assert page.decide("answer", option=0)["item"]["id"] == "r2"
        assert labels(tmp_path / "out.jsonl") == {("r1", "which"): "a"}  # on disk before the next is shown
        page.decide("unsure")
        page.decide("undo")
        page.decide("answer", option=1)
        stale = page.client.post("decide", json={"at": 0, "do": "answer", "option": 2})
        assert (stale.status_code, stale.json()["at"]) == (409, 2)
        for option in (3, -1, None):
            wrong = page.client.post("decide", json={"at": 2, "do": "answer", "option": option})
            assert wrong.status_code == 422
        assert page.client.post("decide", json={"at": 2, "do": "else"}).status_code == 422
        for body in (b'{"at": NaN, "do": "later"}', b'{"at": 2, "do": "later", "option": 1e999}', b"[]"):
            wrong = page.client.post("decide", content=body, headers={"Content-Type": "application/json"})
            assert (wrong.status_code, type(wrong.json()["detail"])) == (422, str)
        page.decide("later")
        state = page.decide("unsure")
        assert (state["item"], state["at"]) == (None, 4)
        assert page.client.post("decide", json={"at": 4, "do": "later"}).status_code == 422
        page.client.post("quit").raise_for_status()
        code, summary, _ = page.end()
    assert code == 3
    wanted = {"before": 0, "reviewed": 2, "corrected": 1, "skipped": 2, "unsure": 1, "left": 1, "bad": 1}
    assert summary == {**wanted, "output": "out.jsonl"}
    assert labels(tmp_path / "out.jsonl") == {("r1", "which"): "a", ("r2", "which"): "b"}


def test_only_this_machines_browser_with_the_token_gets_in(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(FILES["photo.png"]())
    with served(tmp_path, [line(1, attachments=["a.png"]), line(2)]) as page:
        base, token = page.url.rstrip("/").rsplit("/", 1)
        everything = ["", "page.js", "page.css", "state", "files/0/0"]
        for path in everything:
            for wrong in ("", f"{token[:-1]}/", f"x{token}/", "x/"):
                refused = page.client.get(f"{base}/{wrong}{path}")
                assert (refused.status_code, token in refused.text) == (403, False)
            for host in ("evil.example", "127.0.0.1.evil.example:80", "[::1]", ""):
                assert page.client.get(path, headers={"Host": host}).status_code == 400
            found = page.client.get(path, headers={"Host": "localhost:1"})
            assert found.status_code == 200
            assert found.headers["x-content-type-options"] == "nosniff"
            assert found.headers["cache-control"] == "no-store"
            policy = found.headers["content-security-policy"]
            assert policy.startswith(
                "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
            )
            assert "unsafe" not in policy
        with socket.create_connection(("127.0.0.1", page.client.base_url.port or 0)) as raw:
            raw.sendall(b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert b" 403 " in raw.makefile("rb").readline()
        made = {"at": 0, "do": "answer", "option": 0}
        own = base.replace("127.0.0.1", "localhost")
        for origin in ("http://evil.example", own, "null"):
            refused = page.client.post("decide", json=made, headers={"Origin": origin})
            assert refused.status_code == 403
        for path in ("docs", "openapi.json", "page/index.html", "../queue.jsonl", "%2e%2e/queue.jsonl"):
            assert page.client.get(path).status_code in (403, 404)
        assert page.state()["at"] == 0
        page.client.post("decide", json=made, headers={"Origin": base}).raise_for_status()
        page.process.send_signal(signal.SIGINT)
        code, summary, _ = page.end()
        assert (code, summary["reviewed"], summary["left"]) == (0, 1, 1)


def test_attachments_are_shown_as_what_they_are_and_no_other_file_is(tmp_path: Path) -> None:
    outside = tmp_path / "secret.png"
    outside.write_bytes(FILES["photo.png"]())
    folder = tmp_path / "data"
    folder.mkdir()
    script = "<script>alert(1)</script>"
    contents = {
        "photo.png": FILES["photo.png"](),
        "text named.png": b"not a picture",
        "page.html": f"<html>{script}</html>".encode(),
        "vector.svg": f'<svg xmlns="http://www.w3.org/2000/svg">{script}</svg>'.encode(),
        "a.pdf": FILES["invoice.pdf"](),
        "empty.txt": b"",
        "big.png": FILES["photo.png"]() + bytes(21 * 2**20),
        "swapped.png": FILES["photo.png"](),
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    (folder / "link.png").symlink_to(outside)
    lines = [line(1, attachments=list(contents)), line(2, attachments=["link.png"]), line(3)]
    with Local(folder, lines) as page:
        assert "a link out of" in page.bad[0].reason
        shown = {file["name"]: file for file in page.state()["item"]["files"]}
        kinds = {name: file["kind"] for name, file in shown.items()}
        assert kinds == {
            "photo.png": "image",
            "text named.png": "other",
            "page.html": "text",
            "vector.svg": "other",
            "a.pdf": "other",
            "empty.txt": "other",
            "big.png": "other",
            "swapped.png": "image",
        }
        assert script in shown["page.html"]["text"]
        assert (shown["big.png"]["note"], shown["empty.txt"]["note"]) == (
            "it has more than 20 MiB",
            "it is empty",
        )
        picture = page.client.get("files/0/0")
        assert (picture.headers["content-type"], picture.content) == ("image/png", contents["photo.png"])
        (folder / "swapped.png").unlink()
        (folder / "swapped.png").symlink_to(outside)
        for path in (*(f"files/0/{index}" for index in range(1, 9)), "files/1/0", "files/0/-1", "files/0/x"):
            assert page.client.get(path).status_code in (404, 422), path
        page.decide("later")
        assert page.client.get("files/0/0").status_code == 404
        assert page.client.get("files/1/0").status_code == 404


class Elements(HTMLParser):
    """Elements of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_needs_nothing_from_elsewhere_and_makes_no_markup_of_texts() -> None:
    folder = files("jev.review") / "page"
    page, script = (folder / "index.html").read_text(), (folder / "page.js").read_text()
    for tag, attributes in Elements(page).found:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        link = attributes.get("src") or attributes.get("href")
        assert link in (None, "page.js", "page.css", "data:,")
        assert tag != "script" or link == "page.js"
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval", "http:", "https:"):
        assert word not in script
    assert "url(" not in (folder / "page.css").read_text()


def test_long_texts_and_many_options_are_cut_for_the_page(tmp_path: Path) -> None:
    criteria = {f"\x1b[3{number}m": "\u202e" for number in range(200)}
    lines = [
        {
            "id": "\x00",
            "state": "x" * 300_000,
            "questions": {"q": {**CHOICE, "criteria": criteria}, "n": NOUL},
        }
    ]
    with Local(tmp_path, lines) as page:
        item = page.state()["item"]
        assert len(item["state"]) < 201_000
        assert item["state"].endswith("[cut off: it has 300,000 characters]")
        assert [option["key"] for option in item["options"] if option["key"]] == list("123456789")
        assert len(item["options"]) == 200
        told = json.dumps(item)
        assert "\\u001b" not in told
        assert "\\u202e" not in told
        page.decide("answer", option=199)
    assert json.loads((tmp_path / "out.jsonl").read_text())["answers"] == {"q": "\x1b[3199m"}


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with Store(tmp_path / "out.jsonl") as store, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ReviewError, match=f"--port {port}: it cannot be listened on"):
            serve(Session([], store), port, lambda _: None)
