"""A review as one local web page: an app for this machine's own browser, apart from the decision server.

Everything lies below a random token in the path, so that neither other users nor other pages can read or
decide anything, and a foreign `Host` is refused, so that no name of a stranger can be bound to it.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib.resources import files as package_files
from types import FrameType
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware

from jev.review.files import look, picture
from jev.review.queue import Item, ReviewError
from jev.review.session import Session
from jev.review.view import instructions_of, one_line, options_of, text_of

HOST = "127.0.0.1"

PAGE = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Decided(BaseModel):
    """A decision about the item that the page shows; `at` is its position, so that none is decided unseen."""

    model_config = ConfigDict(strict=True)

    at: Annotated[int, Field(ge=0)]
    do: Literal["answer", "later", "unsure", "undo"]
    option: int | None = None


def create_app(session: Session, token: str, stop: Callable[[BaseException | None], None]) -> FastAPI:
    """Build the ASGI app.

    Args:
        session: the review.
        token: the first part of every path.
        stop: called when the reviewer is done, or with why nothing can be kept.
    """
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Newer versions can send spans and logs of their own, which would quote what rows say.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    router = APIRouter(prefix=f"/{token}")

    def page(name: str) -> Response:
        file, media = PAGE[name]
        return Response(package_files("jev.review").joinpath("page", file).read_bytes(), media_type=media)

    for path in PAGE:
        router.add_api_route(f"/{path}", lambda name=path: page(name), methods=["GET"])

    # Coroutines, so that one decision is through before the next is looked at.
    @router.get("/state")
    async def state() -> Any:
        return JSONResponse(_shown(session))

    @router.post("/decide")
    async def decide(made: Decided) -> Any:
        if made.at != session.position:
            return JSONResponse(_shown(session), 409)
        try:
            _decide(session, made)
        except IndexError:
            raise HTTPException(422, "there is no such option") from None
        except (OSError, ReviewError) as error:
            stop(error)
            raise HTTPException(500, f"it cannot be kept: {error}") from None
        return JSONResponse(_shown(session))

    @router.post("/quit")
    async def quit_() -> Any:
        stop(None)
        return JSONResponse({})

    @router.get("/files/{at}/{index}")
    async def attachment(at: int, index: int) -> Response:
        item = session.current
        if item is None or at != session.position or not 0 <= index < len(item.files):
            raise HTTPException(404)
        found = await asyncio.to_thread(picture, item.files[index])
        if found is None:
            raise HTTPException(404)
        data, media = found
        return Response(data, media_type=media)

    app.include_router(router)

    @app.exception_handler(RequestValidationError)
    async def refused(_: Request, error: RequestValidationError) -> Response:  # its own quotes what was sent
        told = error.errors()[0]
        return JSONResponse({"detail": f"{'.'.join(map(str, told['loc']))}: {told['msg']}"}, 422)

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        given = request.url.path.removeprefix("/").partition("/")[0]
        origin = request.headers.get("origin")
        if not secrets.compare_digest(given.encode(), token.encode()):
            response = Response(
                "open the address that jev review has printed\n", 403, media_type="text/plain"
            )
        elif origin is not None and origin != f"http://{request.headers.get('host')}":
            response = Response("a request from another page\n", 403, media_type="text/plain")
        else:
            response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"], www_redirect=False)
    return app


def serve(session: Session, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page until Ctrl+C, SIGTERM or the page says so.

    Args:
        session: the review.
        port: on 127.0.0.1; 0 = any that is free.
        announce: gets the address.

    Raises:
        ReviewError: the port cannot be listened on.
        OSError: a decision could not be kept.
    """
    failure: list[BaseException] = []

    def stop(error: BaseException | None) -> None:
        if error is not None:
            failure.append(error)
        server.should_exit = True

    token = secrets.token_urlsafe(24)
    app = create_app(session, token, stop)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    with _listen(port) as listener:
        announce(f"http://{HOST}:{listener.getsockname()[1]}/{token}/")
        asyncio.run(server.serve(sockets=[listener]))
    if failure:
        raise failure[0]


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; unlike uvicorn's own, this does not raise the signal again afterwards."""
        self.should_exit = True


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ReviewError(f"--port {port}: it cannot be listened on ({error.strerror})") from None
    return listener


def _decide(session: Session, made: Decided) -> None:
    if made.do == "undo":
        session.undo()
    elif made.do == "later":
        session.later()
    elif made.do == "unsure":
        session.unsure()
    else:
        item = session.current
        if item is None or made.option is None or not 0 <= made.option < len(options_of(item)):
            raise IndexError
        session.answer(made.option)


def _shown(session: Session) -> dict[str, Any]:
    item = session.current
    return {
        "at": session.position,
        "total": session.total,
        "summary": asdict(session.summary),
        "item": None if item is None else _item(item),
    }


def _item(item: Item) -> dict[str, Any]:
    return {
        "row": item.number,
        "id": None if item.row.id is None else one_line(item.row.id),
        "certainty": item.certainty,
        "state": text_of(item.row.state) if item.row.state else "",
        "files": [asdict(look(file)) for file in item.files],
        "name": one_line(item.name),
        "instructions": instructions_of(item),
        "whose": "label" if item.probabilities is None else "model",
        "options": [asdict(option) for option in options_of(item)],
    }
