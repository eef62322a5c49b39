"""Bytes to evidence: documents, images, video and speech."""
