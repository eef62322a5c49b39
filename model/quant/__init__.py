"""Quantised drop-in modules."""
