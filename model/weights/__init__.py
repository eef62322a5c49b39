"""Checkpoint formats: how tensors on disk become parameters."""
