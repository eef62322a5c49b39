"""Run the server on a socket until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from jev.errors import JevError
from jev.server.app import create_app
from jev.server.descriptors import allow_many
from jev.server.logs import configure_logging
from jev.server.protocol import HTTPProtocol
from jev.server.service import Service
from jev.settings import Settings

if TYPE_CHECKING:
    from jev.engine import Engine

BACKLOG = 2048


class ListenError(JevError, OSError):
    """The address cannot be listened on."""


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully; a second Ctrl+C stops at once.

        Unlike uvicorn's own, this does not raise the signal again afterwards: a clean stop exits with 0.
        """
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


def serve(
    settings: Settings, engine: Engine | None = None, *, announce: Callable[[str], None] | None = None
) -> None:
    """Serve until SIGTERM or Ctrl+C, then let running requests finish.

    Args:
        settings: the deployment's settings.
        engine: a loaded engine; None loads the model that the settings name.
        announce: gets one line with the address once requests are served; by default it is printed.

    Raises:
        ListenError: the address cannot be listened on.
        CheckpointError: the model cannot be loaded.
    """
    configure_logging(settings)
    allow_many()
    app = create_app(settings, engine)
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=HTTPProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.shutdown_timeout_s,
        h11_max_incomplete_event_size=settings.max_header_bytes,
    )
    with _listen(settings.host, settings.port) as listener:
        asyncio.run(_serve(_Server(config), app.state.service, listener, announce or _print))


async def _serve(
    server: _Server, service: Service, listener: socket.socket, announce: Callable[[str], None]
) -> None:
    running = asyncio.create_task(server.serve(sockets=[listener]))
    loading = asyncio.create_task(_announce_when_loaded(service, listener, announce))
    try:
        await asyncio.wait({running, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and loading.exception() is not None:
            server.should_exit = True
        await running
    finally:
        if not loading.done():
            loading.cancel()
    if loading.done() and not loading.cancelled():
        loading.result()


async def _announce_when_loaded(
    service: Service, listener: socket.socket, announce: Callable[[str], None]
) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    engine = await asyncio.wrap_future(service.loaded)
    await service.ready.wait()
    announce(f"jev listening on http://{shown}:{port} (model {engine.name})")


def _listen(host: str, port: int) -> socket.socket:
    """Open the listening socket here, so that its port is known and a bad address is one clear error."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"Cannot listen on {host}:{port}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(f"Cannot listen on {host}:{port}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
