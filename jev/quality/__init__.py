"""The quality harness: how well a backend decides, and whether another decides alike."""
