"""Backends: in-process torch, the unified and the transformers reference, vLLM, any compatible server."""

from jev.backends.base import Backend

__all__ = ["Backend"]
