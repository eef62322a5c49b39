"""Adapting a checkpoint to labelled decisions."""
