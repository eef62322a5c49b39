"""The page at `/`: static files. What they show comes from the API, which a browser asks like any caller."""

from __future__ import annotations

import hashlib
from importlib.resources import files as package_files

from fastapi import APIRouter, Request
from starlette.responses import Response

from jev.errors import NotFoundError

INDEX = "index.html"

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

# Nothing but the page's own files runs, and it talks to its own server alone. Trusted types refuse every way
# from text to markup, so that what strangers and models write stays text.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Kept, but asked about each time: files of two releases never meet.
    "Cache-Control": "no-cache",
}


class StaticFile:
    """One file of the page, read once.

    Attributes:
        content: its bytes.
        headers: what it is sent with, its entity tag too.
    """

    def __init__(self, name: str, content: bytes) -> None:
        self.content = content
        self.etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        media_type = MEDIA_TYPES[name.rpartition(".")[2]]
        self.headers = {**HEADERS, "Content-Type": media_type, "ETag": self.etag}

    def response(self, request: Request) -> Response:
        """The file, or 304 for a browser that has it."""
        known = request.headers.get("if-none-match", "")
        tags = [tag.strip().removeprefix("W/") for tag in known.split(",")]
        if self.etag in tags or "*" in tags:
            headers = {name: value for name, value in self.headers.items() if name != "Content-Type"}
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=self.headers)


def page_routes() -> APIRouter:
    """The routes of the page: open to all, since there is nothing in it but code.

    All addresses in it are relative, so it works below any path of a proxy that ends with a slash.
    """
    folder = package_files("jev.server").joinpath("page")
    found = {one.name: StaticFile(one.name, one.read_bytes()) for one in folder.iterdir() if one.is_file()}
    index = found.pop(INDEX)
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def page(request: Request) -> Response:
        return index.response(request)

    @router.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def part(request: Request, name: str) -> Response:
        if name not in found:
            raise NotFoundError("No such file")
        return found[name].response(request)

    return router
