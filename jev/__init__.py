"""Self-hosted typed decisions."""
