"""The HTTP server: the System One API over one engine."""
