"""Chromium for tests of the page, and a proxy that shows it below a path."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 60_000  # a machine that is busy takes its time

expect.set_options(timeout=WAIT_MS)

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium: run .ci/browser as root, or install chromium"
)


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser. Nothing else of asyncio can run in this thread meanwhile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visited(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page of a fresh profile; it may log no error but answers of the server, and ask no other server."""
    context = browser.new_context(**options)
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    hosts = ("http://127.0.0.1:", "data:", "blob:")
    page.on("request", lambda one: None if one.url.startswith(hosts) else problems.append(one.url))
    try:
        page.goto(url)
        yield page
    finally:
        context.close()
    assert [text for text in problems if not text.startswith("Failed to load resource")] == []


def until(page: Page, condition: Callable[[], bool]) -> None:
    """Wait for something that no locator sees."""
    for _ in range(WAIT_MS // 20):
        if condition():
            return
        page.wait_for_timeout(20)
    raise AssertionError("it never was")


def overflow(page: Page) -> int:
    """Pixels by which a page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@contextmanager
def behind_prefix(server: str, prefix: str) -> Iterator[str]:
    """A proxy that shows a server below a path: its address there."""

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                return self.send_error(404)
            size = int(self.headers.get("Content-Length") or 0)
            given = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            url = server + self.path.removeprefix(prefix)
            answer = httpx.request(self.command, url, content=self.rfile.read(size), headers=given)
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name not in ("content-encoding", "content-length", "date", "server"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)
            return None

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}{prefix}/"
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
