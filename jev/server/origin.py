"""Who may drive a server that asks for no key: not the web pages of others that a browser here shows.

A page may send a form anywhere, and with a name of its own that leads to 127.0.0.1 (DNS rebinding) it may
read the answer too. So without keys a request of another origin is refused, and on a loopback address a
request to any name but this machine's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope


def stranger(scope: Scope, allowed: Collection[str]) -> str | None:
    """Why a request is not served, in one sentence; None if it is.

    Args:
        scope: of an HTTP request.
        allowed: names, without ports, that the server is reached by besides this machine's own.
    """
    headers = Headers(scope=scope)
    host = _name(f"//{headers.get('host', '')}")
    server = (scope.get("server") or ("", 0))[0]
    if _is_loopback(server) and not (_is_here(host) or host in allowed):
        return f"This server is not known as {host[:100]!r}; its settings' allowed_hosts may say so"
    origin = headers.get("origin")
    if origin is None:
        return None
    name = _name(origin)
    if name and (name == host or _is_here(name) or name in allowed):
        return None
    return f"Pages of {origin[:100]!r} may not use this server; its settings' allowed_hosts may say so"


def _name(url: str) -> str:
    """The host of a URL; "" where it has none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_here(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
