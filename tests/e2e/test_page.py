"""Proves that the page at `/` is served as one should be: its headers, its parts and its colours.

What it does in a browser stands in the files beside this one.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from starlette.testclient import TestClient

from jev.server.app import create_app
from jev.settings import Settings

PAGE = files("jev.server").joinpath("page")
PARTS = sorted(one.name for one in PAGE.iterdir() if one.name != "index.html")
FORBIDDEN = re.compile(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|https?://")
"""Ways from text to markup or code, and to other servers."""


@pytest.fixture(scope="module")
def client() -> TestClient:
    """The app without a model."""
    return TestClient(create_app(Settings()))


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in PARTS)])
def test_how_each_file_is_sent(client: TestClient, path: str) -> None:
    got = client.get(path)
    assert got.status_code == 200
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg", "/": "text/html"}
    assert got.headers["content-type"].startswith(kinds[path.rpartition(".")[2]])
    policy = dict(part.strip().split(" ", 1) for part in got.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert (policy["script-src"], policy["style-src"], policy["connect-src"]) == ("'self'",) * 3
    assert {policy[name] for name in ("base-uri", "frame-ancestors", "form-action")} == {"'none'"}
    assert "unsafe" not in got.headers["content-security-policy"]
    assert got.headers["cache-control"] == "no-cache"
    assert got.headers["x-content-type-options"] == "nosniff"

    head = client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(got.content))
    assert head.headers["etag"] == got.headers["etag"]
    for known in (got.headers["etag"], f'"other", W/{got.headers["etag"]}', "*"):
        again = client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == got.headers["etag"]
    assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.post(path).status_code == 405


@pytest.mark.parametrize(
    "path", ["/page/", "/page/index.html", "/page/none.js", "/page/..%2fapp.py", "/page/../app.py"]
)
def test_there_is_nothing_else_there(client: TestClient, path: str) -> None:
    got = client.get(f"/page/{path}")
    assert (got.status_code, got.json()["detail"]["error_type"]) == (404, "not_found_error")


def test_it_can_be_switched_off() -> None:
    client = TestClient(create_app(Settings(page=False)))
    assert {client.get(path).status_code for path in ("/", "/page/main.js")} == {404}
    assert client.get("/health").status_code == 200


class References(HTMLParser):
    """What a document refers to, and what in it a policy would have to allow."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inline: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found += [value for name, value in attrs if name in ("src", "href") and value]
        self.inline += [name for name in given if name == "style" or name.startswith("on")]
        self.inline += [tag] if tag == "style" or (tag == "script" and "src" not in given) else []
        self.ids += [value for name, value in attrs if name == "id" and value]


def test_its_parts_belong_together() -> None:
    page = References()
    page.feed(PAGE.joinpath("index.html").read_text())
    assert page.inline == []
    assert len(page.ids) == len(set(page.ids))
    assert {name.removeprefix("page/") for name in page.found} <= set(PARTS)
    assert all(name.startswith("page/") for name in page.found)  # relative: a proxy may put it below a path
    scripts = {name: PAGE.joinpath(name).read_text() for name in PARTS if name.endswith(".js")}
    imported = {name for code in scripts.values() for name in re.findall(r'from "\./(.+?)"', code)}
    assert imported == scripts.keys() - {"main.js"}
    for name, code in scripts.items():
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|https?://", code
        ), name
        assert set(re.findall(r'byId\("([\w-]+)"\)', code)) <= set(page.ids), name


def test_texts_can_be_read_in_both_colour_schemes() -> None:
    style = PAGE.joinpath("page.css").read_text()
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6});", block))
        for block in re.findall(r":root \{(.+?)\}", style, re.DOTALL)
    )
    assert light.keys() == dark.keys()

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    pairs = [(text, on) for text in ("ink", "dim", "accent") for on in ("paper", "card", "soft")]
    pairs += [("error", "error-soft"), ("warning", "warning-soft"), ("on-accent", "accent")]
    for colours in (light, dark):
        for text, on in pairs:
            high, low = sorted((luminance(colours[text]), luminance(colours[on])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, on)
