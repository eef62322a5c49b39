"""Web pages of others cannot drive a server that asks for no key."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from jev.server.origin import stranger
from jev.settings import Settings


def scope(host: str | None, origin: str | None = None, server: str = "127.0.0.1") -> dict[str, Any]:
    headers = [(b"host", host.encode())] if host is not None else []
    headers += [(b"origin", origin.encode())] if origin is not None else []
    return {"type": "http", "headers": headers, "server": (server, 8000)}


@pytest.mark.parametrize(
    ("host", "origin", "server"),
    [
        ("127.0.0.1:8000", None, "127.0.0.1"),
        ("localhost:8000", "http://localhost:8000", "127.0.0.1"),
        ("[::1]:8000", "http://[::1]:8000", "::1"),
        ("LOCALHOST.", None, "127.0.0.1"),
        ("127.0.0.1:8000", "http://localhost:3000", "127.0.0.1"),
        ("box.example:8000", None, "10.0.0.7"),
        ("box.example:8000", "https://box.example:8000", "10.0.0.7"),
        ("jev.example", "https://jev.example", "127.0.0.1"),
        ("testserver", None, "testserver"),
        ("", None, "127.0.0.1"),
        (None, None, "127.0.0.1"),
        ("0.0.0.0:8000", "http://0.0.0.0:8000", "127.0.0.1"),
        ("192.168.1.7:8000", None, "127.0.0.1"),
        ("[::ffff:127.0.0.1]:8000", None, "::ffff:127.0.0.1"),
        (f"{socket.gethostname().upper()}:8000", None, "127.0.0.1"),
        ("host.docker.internal:8000", None, "127.0.0.1"),
    ],
)
def test_callers_of_this_machine_are_served(host: str | None, origin: str | None, server: str) -> None:
    assert stranger(scope(host, origin, server), {"jev.example"}) is None


@pytest.mark.parametrize(
    ("host", "origin", "server", "reason"),
    [
        ("evil.example:8000", None, "127.0.0.1", "not known as 'evil.example'"),
        ("evil.example:8000", "http://evil.example:8000", "::1", "not known as 'evil.example'"),
        ("[", None, "127.0.0.1", "not known as ''"),
        ("evil.example:8000", "http://evil.example:8000", "::ffff:127.0.0.1", "not known as"),
        ("localhost.evil.example", None, "127.0.0.1", "not known as"),
        ("127.0.0.1:8000", "https://evil.example", "127.0.0.1", "Pages of 'https://evil.example'"),
        ("127.0.0.1:8000", "null", "127.0.0.1", "Pages of 'null'"),
        ("127.0.0.1:8000", "http://[", "127.0.0.1", "Pages of"),
        ("box.example", "https://evil.example", "10.0.0.7", "Pages of 'https://evil.example'"),
    ],
)
def test_strangers_are_refused(host: str | None, origin: str | None, server: str, reason: str) -> None:
    assert reason in (stranger(scope(host, origin, server), {"jev.example"}) or "")


def test_the_app_refuses_before_anything_is_read_unless_keys_are_asked_for(start: Any) -> None:
    form = {"file": ("a.txt", b"x")}
    evil = {"origin": "https://evil.example"}
    open_ = start()
    refused = open_.post("/v1/files", files=form, headers=evil)
    assert refused.status_code == 403
    assert "allowed_hosts" in refused.json()["detail"]["message"]
    assert open_.post("/v1/files", files=form).status_code == 200
    assert (
        start(allowed_hosts="evil.example, x").post("/v1/files", files=form, headers=evil).status_code == 200
    )
    keyed = start(api_keys=["k"])
    assert "allowed_hosts" not in keyed.post("/v1/files", files=form, headers=evil).text
    good = {**evil, "authorization": "Bearer k"}
    assert keyed.post("/v1/files", files=form, headers=good).status_code == 200


def test_whoever_watches_may_call_it_anything(start: Any) -> None:
    client = start()
    assert client.get("/health", headers={"origin": "https://evil.example"}).status_code == 200
    assert client.get("/ready", headers={"origin": "https://evil.example"}).status_code == 200
    assert client.get("/v1/models", headers={"origin": "https://evil.example"}).status_code == 403


def test_names_come_from_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JEV_ALLOWED_HOSTS", "Jev.example, box")
    assert Settings.load().allowed_hosts == ("jev.example", "box")
    assert Settings(allowed_hosts=["Jev.Example.", "[2001:DB8::1]"]).allowed_hosts == (
        "jev.example",
        "2001:db8::1",
    )
    for wrong in (["https://jev.example"], ["box:8000"], '["a"]', ["a b"], [""]):
        with pytest.raises(ValueError, match="give it without scheme, port and path"):
            Settings(allowed_hosts=wrong)
