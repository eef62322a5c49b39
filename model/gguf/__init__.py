"""GGUF files: container, names, config and tokenizer from metadata, and a writer."""

from jev.model.gguf.container import GGUFFile, GGUFTensor

__all__ = ["GGUFFile", "GGUFTensor"]
