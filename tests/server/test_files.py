"""Uploads are stored once, named by their content, bounded in size, and refused batches leave nothing."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from starlette.testclient import TestClient

from jev.server.app import create_app
from jev.server.files import MAX_BATCHES
from jev.settings import Settings, SettingsError

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
BOUNDARY = "b0undary"
MULTIPART = ("content-type", f"multipart/form-data; boundary={BOUNDARY}")


def upload(client: TestClient, *files: tuple[str, bytes], **headers: str) -> Any:
    return client.post("/v1/files", files=[("file", file) for file in files], headers=headers)


def part(name: str, content: bytes, *, field: str = "file") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'
    return head.encode() + content + b"\r\n"


def end() -> bytes:
    return f"--{BOUNDARY}--\r\n".encode()


def post(client: TestClient, content: bytes, **headers: str) -> Any:
    named = dict([MULTIPART]) | {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post("/v1/files", content=content, headers=named)


def issue(response: Any) -> dict[str, Any]:
    assert response.status_code == 422, response.text
    return response.json()["detail"][0]


def id_of(content: bytes) -> str:
    return f"file-{hashlib.sha256(content).hexdigest()[:32]}"


def left_in(folder: Path) -> list[str]:
    """What is in a folder beside its index."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("index."))


# --- what is stored ----------------------------------------------------------------------------------


def test_one_file(client: TestClient) -> None:
    response = upload(client, ("café.png", PNG))
    assert response.status_code == 200
    (file,) = response.json()["files"]
    assert set(file) == {"id", "name", "bytes", "kind", "sha256", "expires_at"}
    assert (file["id"], file["name"], file["bytes"]) == (id_of(PNG), "café.png", len(PNG))
    assert (file["kind"], file["sha256"]) == ("image", hashlib.sha256(PNG).hexdigest())
    assert file["expires_at"].endswith("Z")
    name, data = client.app.state.service.files.read(file["id"])  # type: ignore[attr-defined]
    assert (name, data) == ("café.png", PNG)


def test_many_files_come_back_in_order(client: TestClient) -> None:
    files = [(f"{i}.txt", f"text {i}".encode()) for i in range(32)]
    answer = upload(client, *files).json()["files"]
    assert [(file["name"], file["id"]) for file in answer] == [(name, id_of(data)) for name, data in files]
    listed = client.get("/v1/files").json()["files"]
    assert [file["id"] for file in listed] == [file["id"] for file in reversed(answer)]


def test_the_same_bytes_are_one_file(start: Callable[..., TestClient], tmp_path: Path) -> None:
    client = start(files_dir=tmp_path)
    twice = upload(client, ("a.txt", b"same"), ("b.txt", b"same")).json()["files"]
    again = upload(client, ("c.txt", b"same")).json()["files"]
    assert {file["id"] for file in (*twice, *again)} == {id_of(b"same")}
    assert [file["name"] for file in (*twice, *again)] == ["a.txt", "b.txt", "c.txt"]
    assert left_in(tmp_path) == [id_of(b"same")]
    assert client.get(f"/v1/files/{id_of(b'same')}").json()["name"] == "c.txt"


def test_bytes_survive_boundaries_in_every_place(start: Callable[..., TestClient], tmp_path: Path) -> None:
    client = start(files_dir=tmp_path)
    contents = [b"\r\n--b0undar", b"a\r\n\r\n--", b"x" * 3_000_000 + b"\r\n--b0undarx", b"\r\n\r\n"]
    body = b"".join(part(f"{i}.txt", data) for i, data in enumerate(contents)) + end() + b"epilogue"
    assert post(client, body).status_code == 200
    assert [(tmp_path / id_of(data)).read_bytes() for data in contents] == contents


def test_get_list_delete(client: TestClient) -> None:
    assert client.get("/v1/files").json() == {"files": []}
    (file,) = upload(client, ("a.txt", b"a")).json()["files"]
    assert client.get(f"/v1/files/{file['id']}").json() == file
    assert client.get("/v1/files").json() == {"files": [file]}
    gone = client.delete(f"/v1/files/{file['id']}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert client.get("/v1/files").json() == {"files": []}
    for response in (client.get(f"/v1/files/{file['id']}"), client.delete(f"/v1/files/{file['id']}")):
        assert response.status_code == 404
        assert response.json()["detail"]["error_type"] == "not_found_error"


@pytest.mark.parametrize(
    "path", ["..", "../index.sqlite", "%2e%2e%2findex.sqlite", "index.sqlite", "file-", "file-" + "A" * 32]
)
def test_no_path_is_made_of_an_id(start: Callable[..., TestClient], tmp_path: Path, path: str) -> None:
    client = start(files_dir=tmp_path)
    for method in ("GET", "DELETE"):
        assert client.request(method, f"/v1/files/{path}").status_code in (404, 405)
    assert (tmp_path / "index.sqlite").exists()


def test_stored_bytes_are_a_metric(client: TestClient) -> None:
    upload(client, ("a.txt", b"a" * 1000), ("b.txt", b"b" * 500))
    assert "jev_stored_bytes 1500.0" in client.get("/metrics").text


# --- what is refused ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "uploads"


@pytest.fixture
def small(start: Callable[..., TestClient], folder: Path) -> TestClient:
    """An app with one file of ten bytes, that takes files of 1000 bytes, 3000 together."""
    client = start(files_dir=folder, max_upload_bytes=1000, files_quota_bytes=3000)
    assert upload(client, ("kept.txt", b"0123456789")).status_code == 200
    return client


KEPT = [id_of(b"0123456789")]


def test_33_files_413(small: TestClient, folder: Path) -> None:
    response = upload(small, *[(f"{i}.txt", b"%d" % i) for i in range(33)])
    assert response.status_code == 413
    assert "32" in response.json()["detail"]["message"]
    assert left_in(folder) == KEPT


def test_a_file_may_have_the_limit_and_not_one_byte_more(small: TestClient, folder: Path) -> None:
    response = upload(small, ("a.txt", b"a"), ("b.txt", b"b" * 1001))
    assert response.status_code == 413
    assert response.json()["detail"]["message"] == "The file 'b.txt' is over the limit of 1000 bytes"
    assert left_in(folder) == KEPT
    assert upload(small, ("b.txt", b"b" * 1000)).status_code == 200


@pytest.mark.anyio
async def test_a_body_of_more_than_all_files_is_refused_unread(
    running: Callable[..., Any], call: Callable[..., Any]
) -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async with running(max_upload_bytes=1000) as (app, _):
        headers = [MULTIPART, ("content-length", "10000000")]
        assert (await call(app, receive, headers=headers, path="/v1/files")).status == 413


@pytest.mark.anyio
@pytest.mark.parametrize("head", [b"", part("a.txt", b"x" * 900), part("a.txt", b"")[:-2]])
async def test_an_endless_body_413(
    running: Callable[..., Any], call: Callable[..., Any], folder: Path, head: bytes
) -> None:
    sent = 0

    async def receive() -> dict[str, Any]:
        nonlocal sent
        sent += 1
        return {"type": "http.request", "body": head if sent == 1 else b"\r\n" * 5000, "more_body": True}

    async with running(max_upload_bytes=1000, files_dir=folder) as (app, _):
        response = await call(app, receive, headers=[MULTIPART], path="/v1/files")
        assert response.status in (413, 422)
        assert sent < 150
        assert left_in(folder) == []


def test_the_quota_413(small: TestClient, folder: Path) -> None:
    for i in range(2):
        assert upload(small, (f"{i}.txt", b"%d" % i * 1000)).status_code == 200
    before = left_in(folder)
    refused = upload(small, ("2.txt", b"2"), ("3.txt", b"3" * 990))
    assert refused.status_code == 413
    assert "quota of 3000 bytes" in refused.json()["detail"]["message"]
    assert left_in(folder) == before  # nothing was removed to make room, and nothing was added
    assert upload(small, ("0.txt", b"0" * 1000), ("2.txt", b"2" * 990)).status_code == 200
    assert upload(small, ("0.txt", b"0" * 1000)).status_code == 200  # takes no room: it is there
    small.delete(f"/v1/files/{id_of(b'0' * 1000)}")
    assert upload(small, ("3.txt", b"3" * 1000)).status_code == 200


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.exe", b"MZ\x90\0" + bytes(60), "It is a program"),
        ("a.txt", b"", "It is empty"),
        ("a.pdf", b"no", "its content is not a PDF file"),
        ("a.zip", b"PK\x03\x04" + bytes(60), "archive is damaged"),
        ("../a.txt", b"a", "directories"),
        ("/etc/passwd", b"a", "directories"),
        ("a\\b.txt", b"a", "directories"),
        ("..", b"a", "directories"),
        ("a\tb.txt", b"a", "control"),
        ("a" * 256, b"a", "longer than 255"),
        ("", b"a", "no filename"),
    ],
)
def test_files_that_are_refused_are_named(
    small: TestClient, folder: Path, name: str, content: bytes, message: str
) -> None:
    response = post(small, part("good.txt", b"good") + part(name, content) + end())
    found = issue(response)
    assert found["loc"] == ["body", "files", 1]
    assert found["type"] == "attachment"
    assert message in found["msg"]
    assert left_in(folder) == KEPT


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing of this is multipart",
        end(),
        part("a.txt", b"a"),
        (part("a.txt", b"a") + end())[:-6],
        part("a.txt", b"a", field="document") + end(),
        part("a.txt", b"a") + part("request", b"{}", field="request") + end(),
        f"--{BOUNDARY}\r\n\r\nx\r\n".encode() + end(),
        f"--{BOUNDARY}\r\nX: {'y' * 9000}\r\n\r\nx\r\n".encode() + end(),
        part("a\xff.txt", b"a").replace("a\xff".encode(), b"a\xff") + end(),
    ],
)
def test_bodies_that_are_not_an_upload_422(small: TestClient, folder: Path, body: bytes) -> None:
    assert issue(post(small, body))["loc"][0] == "body"
    assert left_in(folder) == KEPT


def test_other_content_types_and_encodings_415(client: TestClient) -> None:
    assert client.post("/v1/files", json={}).status_code == 415
    assert client.post("/v1/files", content=b"x").status_code == 415
    assert post(client, end(), content_encoding="gzip").status_code == 415
    assert issue(post(client, end(), content_type="multipart/form-data"))["type"] == "multipart_invalid"
    assert issue(post(client, end(), content_type="multipart/form-data; boundary=" + "b" * 300))


def test_files_are_behind_the_key_and_the_rate_limit(start: Callable[..., TestClient]) -> None:
    client = start(api_keys=["k"], rate_limit_rpm=2)
    for method, path in (("POST", ""), ("GET", ""), ("GET", "/x"), ("DELETE", "/x")):
        assert client.request(method, f"/v1/files{path}").status_code == 403
    assert upload(client, ("a.txt", b"a"), authorization="Bearer no").status_code == 401
    for status in (200, 200, 429):
        assert upload(client, ("a.txt", b"a"), authorization="Bearer k").status_code == status


def test_files_need_no_model(start: Callable[..., TestClient]) -> None:
    client = start()
    client.app.state.service._serving = None  # type: ignore[attr-defined]
    assert client.get("/v1/models").status_code == 503
    assert upload(client, ("a.txt", b"a")).status_code == 200


@pytest.mark.anyio
async def test_a_bad_folder_is_told_where_a_bad_model_is(tmp_path: Path) -> None:
    (tmp_path / "uploads").write_bytes(b"not a folder")
    app = create_app(Settings(files_dir=tmp_path / "uploads"))
    async with app.router.lifespan_context(app):
        with pytest.raises(SettingsError, match=r"files_dir: .* cannot be used"):
            await asyncio.wrap_future(app.state.service.loaded)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/v1/files")).status_code == 503
            assert (await client.get("/ready")).status_code == 503


@pytest.mark.skipif(os.geteuid() == 0, reason="the owner of everything may write everywhere")
def test_a_folder_that_cannot_be_written_503(small: TestClient, folder: Path) -> None:
    folder.chmod(0o500)
    try:
        response = upload(small, ("a.txt", b"a"))
    finally:
        folder.chmod(0o700)
    assert response.status_code == 503
    assert response.json()["detail"]["error_type"] == "storage_unavailable"


def test_a_full_disk_503(small: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> int:
        return os.open("/dev/full", os.O_RDWR) if not path.name.endswith(".lock") else make(path)

    from jev.server import files

    make = files.create
    monkeypatch.setattr(files, "create", full)
    response = upload(small, ("a.txt", b"a" * 900))
    assert response.status_code == 503
    assert "no space left" in response.json()["detail"]["message"]
    assert left_in(folder) == KEPT


# --- uploads that are slow, large, many or broken off ------------------------------------------------


@pytest.mark.anyio
async def test_a_client_that_goes_away_leaves_nothing(
    running: Callable[..., Any], call: Callable[..., Any], folder: Path
) -> None:
    seen: list[str] = []
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": part("a.txt", b"a" * 2_000_000), "more_body": True},
        {"type": "http.request", "body": part("b.txt", b"b" * 2_000_000)[:-9], "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        seen.extend(left_in(folder))
        return messages.pop(0)

    async with running(files_dir=folder) as (app, _):
        assert (await call(app, receive, headers=[MULTIPART], path="/v1/files")).status == 499
        assert len(set(seen)) == 3  # the lock and two files were there
        assert left_in(folder) == []
        assert app.state.service.files.list(10) == []


@pytest.mark.anyio
@pytest.mark.parametrize(("pause", "message"), [(5.0, "for 0.05 s"), (0.02, "within 1 s")])
async def test_a_silent_or_slow_client_408(
    running: Callable[..., Any], call: Callable[..., Any], folder: Path, pause: float, message: str
) -> None:
    sent = 0

    async def receive() -> dict[str, Any]:
        nonlocal sent
        sent += 1
        if sent > 1:
            await asyncio.sleep(pause)
        return {"type": "http.request", "body": part("a.txt", b"a") if sent == 1 else b"", "more_body": True}

    async with running(files_dir=folder, body_timeout_s=0.05) as (app, _):
        response = await call(app, receive, headers=[MULTIPART], path="/v1/files")
        assert response.status == 408
        assert message in response.json()["detail"]["message"]
        assert left_in(folder) == []


@pytest.mark.anyio
async def test_a_cancelled_upload_leaves_nothing(
    running: Callable[..., Any], call: Callable[..., Any], folder: Path
) -> None:
    first = True

    async def receive() -> dict[str, Any]:
        nonlocal first
        if first:
            first = False
            body = part("a.txt", b"a" * 2_000_000)
            return {"type": "http.request", "body": body, "more_body": True}
        written.set()
        await asyncio.Event().wait()
        raise AssertionError

    written = asyncio.Event()
    async with running(files_dir=folder) as (app, _):
        task = asyncio.create_task(call(app, receive, headers=[MULTIPART], path="/v1/files"))
        await written.wait()
        assert left_in(folder)
        task.cancel()
        assert (await task).status == 503
        assert left_in(folder) == []


@pytest.mark.anyio
async def test_the_same_bytes_from_many_clients_at_once(running: Callable[..., Any], folder: Path) -> None:
    content = b"same" * 100_000
    async with running(files_dir=folder, files_quota_bytes=12 * len(content)) as (_, client):
        posts = [client.post("/v1/files", files={"file": (f"{i}.txt", content)}) for i in range(12)]
        responses = await asyncio.gather(*posts)
        assert {response.json()["files"][0]["id"] for response in responses} == {id_of(content)}
        assert left_in(folder) == [id_of(content)]
        assert (folder / id_of(content)).read_bytes() == content


@pytest.mark.anyio
async def test_what_arrives_at_once_is_bounded_too(
    running: Callable[..., Any], call: Callable[..., Any], folder: Path
) -> None:
    first = True

    async def receive() -> dict[str, Any]:
        nonlocal first
        if first:
            first = False
            body = part("a.txt", b"a" * 1_500_000)[:-2]
            return {"type": "http.request", "body": body, "more_body": True}
        written.set()
        await asyncio.Event().wait()
        raise AssertionError

    written = asyncio.Event()
    async with running(files_dir=folder, files_quota_bytes=2_000_000) as (app, client):
        task = asyncio.create_task(call(app, receive, headers=[MULTIPART], path="/v1/files"))
        await written.wait()
        file = {"file": ("b.txt", b"b" * 1_000_000)}
        assert (await client.post("/v1/files", files=file)).status_code == 529
        task.cancel()
        await task
        assert (await client.post("/v1/files", files=file)).status_code == 200


@pytest.mark.anyio
async def test_so_many_uploads_at_once_and_no_more(
    running: Callable[..., Any], call: Callable[..., Any]
) -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    def start() -> asyncio.Task[Any]:
        return asyncio.create_task(call(app, receive, headers=[MULTIPART], path="/v1/files"))

    async with running() as (app, client):
        waiting = [start() for _ in range(MAX_BATCHES)]
        await asyncio.sleep(0)
        assert (await start()).status == 529
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert (await client.post("/v1/files", files={"file": ("a.txt", b"a")})).status_code == 200


@pytest.mark.slow
@pytest.mark.anyio
async def test_200_megabytes_take_little_memory(
    running: Callable[..., Any], call: Callable[..., Any], folder: Path
) -> None:
    process = psutil.Process()
    block = b"0123456789abcde\n" * 4096
    peak = 0

    async def body() -> AsyncIterator[bytes]:
        yield part("big.txt", b"")[:-2]
        for _ in range(200 * 16):
            yield block
        yield b"\r\n" + end()

    pieces = body()

    async def receive() -> dict[str, Any]:
        nonlocal peak
        peak = max(peak, process.memory_info().rss)
        piece = await anext(pieces, None)
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async with running(files_dir=folder, max_upload_bytes="256MiB") as (app, client):
        await client.post("/v1/files", files={"file": ("a.txt", b"a" * 3_000_000)})
        before = process.memory_info().rss
        response = await call(app, receive, headers=[MULTIPART], path="/v1/files")
        peak = max(peak, process.memory_info().rss)
        assert response.status == 200
        assert response.json()["files"][0]["bytes"] == 200 * 2**20
        assert peak - before < 32 * 2**20
