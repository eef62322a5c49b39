"""Checkpoints, engines and server processes that tests share, and how hypothesis runs here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

# Processes that share the cores (pytest -n 2) would wait for each other's threads. Before torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import jev._before_torch  # noqa: F401 - before torch

if TYPE_CHECKING:
    from jev.engine import Engine
    from jev.model.config import TextConfig
    from jev.model.lora import Adapter

# Derandomised: the same examples everywhere, so that a run says something about the change under
# test and not about luck. HYPOTHESIS_PROFILE=search looks for new ones.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("jev", derandomize=True, **_COMMON)
settings.register_profile("search", max_examples=500, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "jev"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: one that starts last keeps one process busy while the other waits."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


KEY = "e2e-key-1"
START_SECONDS = 120


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The embedded model, in fp32 on the CPU. Leave its settings as they are."""
    from jev.engine import Engine

    return Engine.load()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random checkpoint whose window is 8 tokens; do not write to it."""
    from jev.model.tiny import write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def smooth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny checkpoint whose rows pass all experts.

    Choosing experts is a jump: where two are rated alike, rounding alone may swap them. Properties
    that are searched over many random rows are held against this model, which has no jumps.
    """
    from jev.model.tiny import write_tiny_checkpoint

    folder = tmp_path_factory.mktemp("checkpoints") / "smooth"
    return write_tiny_checkpoint(folder, layers=4, hidden=32, experts=4, top_k=4, vision=False)


@pytest.fixture(scope="session")
def random_adapter() -> Callable[..., Adapter]:
    """`random_adapter(config, seed, ...)`: an adapter of random matrices that moves answers visibly."""
    import torch

    from jev.model.lora import Adapter, LoraConfig, target_shapes

    def make(config: TextConfig, seed: int = 0, *, size: float = 0.1, **options: Any) -> Adapter:
        lora = LoraConfig(**{"rank": 4, "alpha": 8.0, **options})
        draw = torch.Generator().manual_seed(seed)
        tensors = {}
        for name, (rows, columns) in target_shapes(config, lora.targets).items():
            a = torch.randn(lora.rank, columns, generator=draw) * columns**-0.5
            tensors[name] = a, torch.randn(rows, lora.rank, generator=draw) * size
        return Adapter(lora, tensors)

    return make


@contextlib.contextmanager
def serving(folder: Path, *options: str, **environment: str) -> Iterator[str]:
    """Run `jev serve` on a free port and yield its address; afterwards it must stop cleanly."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JEV_")}
    log = folder / "server.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "jev", "serve", *options, "--port", "0"],
            cwd=folder,  # nothing may depend on the checkout
            env={**clean, **environment},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    too_late = threading.Timer(START_SECONDS, process.kill)
    too_late.start()
    try:
        line = process.stdout.readline()
        too_late.cancel()
        if not line.startswith("jev listening on http://"):
            raise RuntimeError(f"the server said {line!r}\n{log.read_text()}")
        yield line.split()[3]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        too_late.cancel()
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def start_server() -> Callable[..., contextlib.AbstractContextManager[str]]:
    """Start a server of its own: `with start_server(folder, "--name", "mine", JEV_OCR="off") as url`."""
    return serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server without authentication."""
    with serving(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture(scope="session")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a server that wants a key and cannot read pictures, and a key that it accepts."""
    with serving(tmp_path_factory.mktemp("keyed"), JEV_API_KEYS=f"other,{KEY}", JEV_OCR="off") as url:
        yield url, KEY
