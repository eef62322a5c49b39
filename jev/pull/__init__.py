"""Checkpoints from a model hub: what a deployment needs of one, whether it is here, and fetching it."""

from jev.pull.places import missing_files, missing_sentence, place
from jev.pull.source import PinnedFile, Source

__all__ = ["PinnedFile", "Source", "missing_files", "missing_sentence", "place"]
