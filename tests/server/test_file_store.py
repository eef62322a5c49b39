"""The store keeps files for their time, across restarts and beside other processes, and follows no links."""

from __future__ import annotations

import hashlib
import io
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jev.errors import TooLargeError
from jev.extractors.detect import sniff
from jev.server import files
from jev.server.file_kind import SMALL, kind_of
from jev.server.files import FileStore
from jev.settings import SettingsError

OPTIONS: dict[str, Any] = {"quota_bytes": 10_000, "ttl_s": 100.0, "max_bytes": 5_000}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "uploads"


@pytest.fixture
def store(folder: Path, clock: Clock) -> Iterator[FileStore]:
    store = FileStore(folder, **OPTIONS, clock=clock)
    yield store
    store.close()


def put(store: FileStore, data: bytes, name: str = "a.txt") -> str:
    with store.begin() as batch:
        batch.start(name)
        batch.write(data)
        batch.finish()
        return batch.commit()[0].id


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("index."))


def test_modes(store: FileStore, folder: Path) -> None:
    file = put(store, b"x")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / file).stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "index.sqlite").stat().st_mode) == 0o600


def test_a_use_prolongs_and_a_look_does_not(store: FileStore, folder: Path, clock: Clock) -> None:
    used, looked = put(store, b"used"), put(store, b"looked at")
    clock.now += 60
    assert store.read(used) == ("a.txt", b"used")
    assert store.get(looked).expires == 1100
    assert store.get(used).expires == 1160
    clock.now += 40
    assert [file.id for file in store.list(10)] == [used]
    for forget in (store.get, store.read, store.delete):
        with pytest.raises(KeyError):
            forget(looked)
    assert left_in(folder) == sorted([used, looked])
    store.sweep()
    assert left_in(folder) == [used]
    assert store.stored_bytes == 4
    clock.now += 60
    with pytest.raises(KeyError):
        store.read(used)


def test_uploading_again_prolongs(store: FileStore, clock: Clock) -> None:
    file = put(store, b"x")
    clock.now += 99
    assert put(store, b"x", "b.txt") == file
    clock.now += 99
    assert store.read(file) == ("b.txt", b"x")


def test_only_what_has_expired_makes_room(store: FileStore, clock: Clock) -> None:
    old = put(store, b"o" * 5000)
    clock.now += 50
    put(store, b"n" * 5000)
    with pytest.raises(TooLargeError, match="quota of 10000"):
        put(store, b"!")
    assert store.get(old)
    clock.now += 50
    put(store, b"!")
    with pytest.raises(KeyError):
        store.get(old)


def test_small_files_are_counted_too(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_STORED", 2)
    put(store, b"1")
    put(store, b"2")
    with pytest.raises(TooLargeError, match="2 uploads"):
        put(store, b"3")
    put(store, b"2")


def test_a_restart_finds_files_and_drops_what_is_over(folder: Path, clock: Clock) -> None:
    store = FileStore(folder, **OPTIONS, clock=clock)
    old = put(store, b"old")
    clock.now += 60
    kept = put(store, b"kept")
    store.close()
    stem = "part-" + "0" * 32
    orphan = "file-" + "0" * 32
    for name in (f"{stem}-0", f"{stem}.lock", orphan):
        (folder / name).write_bytes(b"left by a crash")
    clock.now += 60
    store = FileStore(folder, **OPTIONS, clock=clock)
    try:
        assert left_in(folder) == [kept]
        assert store.read(kept) == ("a.txt", b"kept")
        assert store.stored_bytes == 4
        with pytest.raises(KeyError):
            store.read(old)
    finally:
        store.close()


def test_another_process_that_starts_leaves_a_living_upload_alone(
    store: FileStore, folder: Path, clock: Clock
) -> None:
    with store.begin() as batch:
        batch.start("a.txt")
        batch.write(b"half ")
        other = FileStore(folder, **OPTIONS, clock=clock)
        batch.write(b"and half")
        batch.finish()
        (file,) = batch.commit()
    try:
        assert other.read(file.id) == ("a.txt", b"half and half")
        other.delete(file.id)
    finally:
        other.close()
    with pytest.raises(KeyError):
        store.read(file.id)


def test_a_link_is_never_followed(store: FileStore, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"data")
    file = put(store, b"data")
    for make in (lambda p: p.symlink_to(secret), os.mkfifo, Path.mkdir):
        path = folder / file
        path.unlink()
        make(path)
        with pytest.raises(KeyError):
            store.read(file)
        if make is Path.mkdir:
            path.rmdir()
        assert put(store, b"data") == file
        assert store.read(file) == ("a.txt", b"data")
    assert secret.read_bytes() == b"data"
    (folder / file).unlink()
    (folder / file).symlink_to(secret)
    store.sweep()
    assert left_in(folder) == []
    assert store.list(10) == []
    assert secret.exists()


@pytest.mark.parametrize("file", ["", "..", "/etc/passwd", "index.sqlite", "file-../x", f"file-{0:032}\n"])
def test_ids_are_ids(store: FileStore, file: str) -> None:
    for use in (store.read, store.get, store.delete):
        with pytest.raises(KeyError):
            use(file)


def test_a_file_changed_behind_the_store_is_gone(store: FileStore, folder: Path) -> None:
    file = put(store, b"whole")
    (folder / file).write_bytes(b"cut")
    with pytest.raises(KeyError):
        store.read(file)
    assert put(store, b"whole") == file
    assert store.read(file)[1] == b"whole"


def test_a_file_of_another_size_is_not_read_to_find_that_out(store: FileStore, folder: Path) -> None:
    file = put(store, b"whole")
    with (folder / file).open("r+b") as grown:
        grown.truncate(2**40)  # takes no disk, and no memory would hold it
    with pytest.raises(KeyError):
        store.read(file)
    assert store.size(file) == 5
    with pytest.raises(KeyError):
        store.size(f"file-{0:032}")


def test_a_batch_is_all_or_nothing(store: FileStore, folder: Path) -> None:
    kept = put(store, b"kept")
    with store.begin() as batch:
        for data in (b"kept", b"new"):
            batch.start("a.txt")
            batch.write(data)
            batch.finish()
    assert left_in(folder) == [kept]
    assert store.read(kept)[1] == b"kept"


def test_an_index_that_fails_takes_the_blobs_back(
    store: FileStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(row: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(store._index, "put", fail)
    with pytest.raises(Exception, match="The server's disk fails") as caught:
        put(store, b"x")
    assert getattr(caught.value, "status", None) == 503
    assert left_in(folder) == []


@pytest.mark.parametrize("make", ["a file", "another folder", "a damaged index", "a linked index"])
def test_a_folder_that_cannot_be_used_is_one_sentence(folder: Path, tmp_path: Path, make: str) -> None:
    if make == "a file":
        folder.write_bytes(b"")
    else:
        folder.mkdir(mode=0o755)
        if make == "another folder":
            (folder / "thesis.doc").write_bytes(b"precious")
        elif make == "a damaged index":
            (folder / "index.sqlite").write_bytes(b"not a database, " * 100)
        else:
            FileStore(tmp_path / "other", **OPTIONS).close()
            (folder / "index.sqlite").symlink_to(tmp_path / "other" / "index.sqlite")
    with pytest.raises(SettingsError, match="files_dir"):
        FileStore(folder, **OPTIONS)
    if make == "another folder":
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_temporary_folder_ends_with_its_store() -> None:
    store = FileStore(None, **OPTIONS)
    folder = store._folder
    assert store.read(put(store, b"x")) == ("a.txt", b"x")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    store.close()
    assert not folder.exists()


def test_threads_and_stores_on_one_folder_agree(folder: Path) -> None:
    stores = [FileStore(folder, quota_bytes=10**6, ttl_s=100, max_bytes=5000) for _ in range(3)]
    failures: list[BaseException] = []

    def work(store: FileStore, seed: int) -> None:
        try:
            for i in range(15):
                data = f"content {(i * seed) % 7}".encode() * 50
                file = put(store, data)
                try:
                    assert store.read(file)[1] == data
                    if i % 5 == seed % 5:
                        store.delete(file)
                except KeyError:
                    pass  # another thread was quicker to delete it
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(stores[i % 3], i + 1)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    listed = stores[0].list(100)
    for store in stores:
        store.close()
    assert not failures
    assert left_in(folder) == sorted(file.id for file in listed)
    for file in listed:
        assert hashlib.sha256((folder / file.id).read_bytes()).hexdigest() == file.sha256


SCRIPT = """
import sys
from pathlib import Path
from jev.server.files import FileStore
store = FileStore(Path(sys.argv[1]), quota_bytes=10**6, ttl_s=100, max_bytes=10**5)
for i in range(20):
    with store.begin() as batch:
        for n in (i, i + 1):
            batch.start("a.txt")
            batch.write(b"%d " % n * 1000)
            batch.finish()
        for file in batch.commit():
            store.read(file.id)
    store.sweep()
store.close()
"""


@pytest.mark.slow
def test_processes_on_one_folder_agree(folder: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    errors = [process.communicate(timeout=120)[1].decode() for process in running]
    assert [process.returncode for process in running] == [0] * 4, errors
    store = FileStore(folder, **OPTIONS)
    listed = store.list(100)
    store.close()
    assert left_in(folder) == sorted(file.id for file in listed)
    assert len(listed) == 21
    assert all((folder / file.id).stat().st_size == file.size for file in listed)


def _docx(padding: int) -> bytes:
    types = (
        '<Types><Override ContentType="application/vnd.openxmlformats-officedocument.'
        'wordprocessingml.document.main+xml"/></Types>'
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("[Content_Types].xml", types)
        archive.writestr("word/media/picture.png", bytes(padding))
    return packed.getvalue()


FILL = bytes(SMALL)
LARGE = {
    "docx": _docx(SMALL),
    "mp4": b"\0\0\0\x14ftypisom\0\0\0\0isom" + FILL + b"hdlr\0\0\0\0\0\0\0\0vide",
    "m4a": b"\0\0\0\x14ftypisom\0\0\0\0isom" + FILL + b"hdlr\0\0\0\0\0\0\0\0soun",
    "mov": b"\0\x10\0\0mdat" + FILL + b"moov",
    "webm": b"\x1a\x45\xdf\xa3webm" + FILL + b"A_OPUS",
    "pdf": b"%PDF-1.7" + FILL,
    "txt": b"a" * SMALL + b"b",
    "htm": b"<!doctype html>" + FILL,
    "eml": b"From: a\nTo: b\n\n" + b"a" * SMALL,
    "png": b"\x89PNG\r\n\x1a\n" + FILL,
    "": b"From: a\nTo: b\n\n" + b"a" * SMALL,
}


@pytest.mark.parametrize("extension", LARGE)
def test_large_files_are_told_apart_as_small_ones_are(tmp_path: Path, extension: str) -> None:
    name = f"a.{extension}" if extension else "a"
    data = LARGE[extension]
    assert len(data) > SMALL
    (tmp_path / "x").write_bytes(data)
    with (tmp_path / "x").open("rb") as file:
        assert kind_of(file, len(data), name) == sniff(data, name).kind


def test_a_large_file_that_is_refused_says_why(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x1f\x8b" + FILL)
    with (tmp_path / "x").open("rb") as file, pytest.raises(ValueError, match="gzip"):
        kind_of(file, SMALL + 2, "a.gz")
