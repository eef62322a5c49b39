"""Bearer keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers

from jev.errors import AuthenticationError, PermissionDeniedError


class Authenticator:
    """Checks `Authorization: Bearer KEY` against the accepted keys. Without keys it accepts everyone.

    Args:
        keys: the accepted keys.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def check(self, headers: Headers) -> str | None:
        """Return a name for the caller's key that is safe to keep, or None when authentication is off.

        Raises:
            PermissionDeniedError: there is no key, or it is not a bearer token.
            AuthenticationError: the key is not an accepted one.
        """
        if not self._digests:
            return None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise PermissionDeniedError()
        given = _digest(key)
        # Every key is compared, in constant time, so that timing tells nothing about any of them.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        if not any(matches):
            raise AuthenticationError()
        return given.hex()[:16]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8")).digest()
