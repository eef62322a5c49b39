"""Apps around the tiny random model, and around one that writes back what it is told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from jev.engine import Engine
from jev.server.app import create_app
from jev.settings import Settings

# pytest's importlib mode puts no test folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

from writing_app import App, EchoWriter


@pytest.fixture(scope="module")
def echo_engine(tiny: Path) -> Engine:
    """An engine whose texts repeat the user's last message."""
    engine = Engine.load(tiny, name="echo")
    engine.writer = EchoWriter(engine)  # type: ignore[assignment]
    return engine


@pytest.fixture(scope="module")
def start_app() -> Iterator[Callable[..., App]]:
    """Start an app around an engine; keyword arguments are settings."""
    with ExitStack() as stack:

        def start(engine: Engine, **settings: Any) -> App:
            client = TestClient(create_app(Settings(**settings), engine), raise_server_exceptions=False)
            return App(stack.enter_context(client), engine)

        yield start


@pytest.fixture(scope="module")
def echo(echo_engine: Engine, start_app: Callable[..., App]) -> App:
    """An app whose texts repeat the user's last message."""
    return start_app(echo_engine)


@pytest.fixture(scope="module")
def tiny_app(tiny_model: Engine, start_app: Callable[..., App]) -> App:
    """An app whose model is tiny and random."""
    return start_app(tiny_model)
