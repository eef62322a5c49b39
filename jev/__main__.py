"""The `jev` command and `python -m jev`."""

from __future__ import annotations

import sys

import jev._before_torch  # noqa: F401 - before any command imports torch


def main() -> None:
    """Run the command line; without the packages it needs, say in one line how to get them."""
    try:
        from jev.cli import app  # noqa: PLC0415 - typer may not be installed

        app()
    except ModuleNotFoundError as error:
        missing = (error.name or "jev").split(".")[0]
        if missing == "jev":
            raise
        sys.stderr.write(f"error: this needs {missing}: pip install 'jev-server[server]'\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
