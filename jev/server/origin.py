"""Who may drive a server that asks for no key: not the web pages of others that a browser here shows.

A page may send a form anywhere, and with a name of its own that leads to 127.0.0.1 (DNS rebinding) it may
read the answer too. So without keys a request of another origin is refused, and on a loopback address a
request to any name but this machine's.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

_NAMES = frozenset(
    {"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", "host.docker.internal"}
)
"""What machines call themselves, and what containers call the machine that they run on."""


_OPEN = ("/health", "/ready")
"""Whoever watches the server may call it what they like."""


def stranger(scope: Scope, allowed: Collection[str]) -> str | None:
    """Why a request is not served, in one sentence; None if it is.

    Args:
        scope: of an HTTP request.
        allowed: names, without ports, that the server is reached by besides this machine's own.
    """
    if scope.get("path") in _OPEN:
        return None
    headers = Headers(scope=scope)
    given = headers.get("host", "")  # no browser leaves it out
    host = _name(f"//{given}")
    server = (scope.get("server") or ("", 0))[0]
    # An address is no name, which could lead to another one next time.
    known = _is_here(host) or _address(host) is not None or host in allowed
    if given and _is_loopback(server) and not known:
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
    return name in _NAMES or name in _own_names() or name.endswith(".localhost") or _is_loopback(name)


@lru_cache(maxsize=1)
def _own_names() -> frozenset[str]:
    name = socket.gethostname().lower()
    return frozenset({name, name.partition(".")[0]}) - {""}


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that it is; an IPv4 address in IPv6's form as itself."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_loopback(name: str) -> bool:
    address = _address(name)
    return address is not None and address.is_loopback
