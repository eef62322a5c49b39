"""Backends: in-process torch, the unified and the transformers reference, vLLM, any compatible server."""

from jev.backends.base import Backend
from jev.backends.spec import BackendSpec, open_backend

__all__ = ["Backend", "BackendSpec", "open_backend"]
