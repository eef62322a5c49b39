"""A job that hangs, eats memory, crashes or exits costs its caller one clear error, and the pool goes on."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pymupdf
import pytest

from jev.extractors import (
    ExtractError,
    LimitExceeded,
    Limits,
    ServiceUnavailable,
    Unreadable,
    UnsupportedType,
)
from jev.extractors.extract import extract
from jev.extractors.options import Options
from jev.extractors.worker import Pool

JOBS = """
import ctypes, json, os, resource, signal, sys, tempfile, time
from jev.extractors import Evidence, LimitExceeded, Picture, Unreadable, UnsupportedType


def job(data, name, limits, *, picture_slots, options, field, on_stage):
    word, _, rest = data.decode().partition(" ")
    if word == "sleep":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(float(rest or 3600))
    elif word == "spin":
        while True:
            pass
    elif word == "eat":
        bytearray(64 << 30)
    elif word == "nibble":
        blocks = []
        while True:
            blocks.append(bytearray(b"x" * (16 << 20)))
    elif word == "segfault":
        ctypes.string_at(0)
    elif word == "exit":
        os._exit(3)
    elif word == "abort":
        os.abort()
    elif word == "raise":
        raise KeyError("content of the file")
    elif word == "limit":
        raise LimitExceeded("max_pdf_pages", 32, 57, unit="pages", at_least=True).inside("attachment 2")
    elif word == "unsupported":
        raise UnsupportedType("It is a zip archive")
    elif word == "noise":
        print("printed")
        os.write(1, b"written")
        os.write(2, b"written")
    elif word == "stage":
        on_stage("transcribe")
        on_stage("transcribe")
        time.sleep(float(rest))
    elif word == "leave":
        tempfile.mkstemp()
        time.sleep(3600)
    elif word == "junk":
        for fd in range(3, 64):
            try:
                os.write(fd, b"\\xff" * 64)
            except OSError:
                pass
        time.sleep(3600)
    state = {
        "pid": os.getpid(),
        "torch": "torch" in sys.modules,
        "alarm": signal.alarm(0),
        "cpu": resource.getrlimit(resource.RLIMIT_CPU)[0],
        "memory": resource.getrlimit(resource.RLIMIT_AS)[0],
        "secret": os.environ.get("JEV_API_KEYS"),
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
    }
    numbers = range(1, picture_slots + 1)
    pictures = tuple(Picture.of(bytes([n]) * 3_000_000, n, n, f"page {n}") for n in numbers)
    return Evidence(name, "text", json.dumps(state), pictures, ("a note",), "0" * 64, True)
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "worker_jobs.py").write_text(JOBS)
    sys.path.insert(0, str(folder))
    yield "worker_jobs:job"
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def pool(jobs: str) -> Iterator[Pool]:
    """One worker, whose jobs may take a second and half a gigabyte."""
    limits = Limits(decode_seconds=1, decode_memory_bytes=512 * 2**20)
    with Pool(limits, workers=1, target=jobs) as made:
        yield made


def run(pool: Pool, word: str = "echo") -> dict[str, object]:
    return json.loads(pool.extract_sync(word.encode(), "a.txt", picture_slots=0).text)


def is_alive(pid: object) -> bool:
    return psutil.pid_exists(int(str(pid))) and psutil.Process(int(str(pid))).status() != psutil.STATUS_ZOMBIE


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


@pytest.mark.parametrize("word", ["sleep", "spin", "junk"])
def test_a_job_that_hangs_is_killed_and_the_pool_goes_on(pool: Pool, word: str) -> None:
    before = run(pool)["pid"]
    start = time.monotonic()
    with pytest.raises(ExtractError) as error:
        run(pool, word)
    assert time.monotonic() - start < 30
    assert not is_alive(before)
    if word != "junk":
        assert isinstance(error.value, LimitExceeded)
        assert str(error.value) == "It needs more than the limit of 1 seconds (decode_seconds)"
    assert run(pool)["pid"] != before


@pytest.mark.parametrize("word", ["eat", "nibble"])
def test_a_job_that_eats_memory_is_stopped_at_the_limit(jobs: str, word: str) -> None:
    with Pool(Limits(decode_memory_bytes=512 * 2**20), workers=1, target=jobs) as pool:
        before = run(pool)["pid"]
        with pytest.raises(LimitExceeded, match="decode_memory_bytes") as error:
            run(pool, word)
        assert (error.value.limit, error.value.allowed) == ("decode_memory_bytes", 512 * 2**20)
        assert run(pool)["pid"] != before


@pytest.mark.parametrize(
    ("word", "how"), [("segfault", "signal 11"), ("abort", "signal 6"), ("exit", "exit status 3")]
)
def test_a_job_that_ends_its_process_is_an_unreadable_file(pool: Pool, word: str, how: str) -> None:
    before = run(pool)["pid"]
    with pytest.raises(Unreadable, match=f"decoder of its content crashed .{how}"):
        run(pool, word)
    assert run(pool)["pid"] != before


def test_an_unforeseen_error_does_not_show_content(pool: Pool) -> None:
    with pytest.raises(Unreadable) as error:
        run(pool, "raise")
    assert "content of the file" not in str(error.value)
    run(pool)


def test_errors_keep_their_class_words_and_numbers_and_the_worker(pool: Pool) -> None:
    before = run(pool)["pid"]
    with pytest.raises(LimitExceeded) as error:
        run(pool, "limit")
    assert str(error.value).startswith("In attachment 2: It has at least 57 pages")
    assert (error.value.limit, error.value.allowed, error.value.actual) == ("max_pdf_pages", 32, 57)
    assert error.value.at_least
    with pytest.raises(UnsupportedType, match="It is a zip archive"):
        run(pool, "unsupported")
    assert run(pool)["pid"] == before


def test_evidence_arrives_whole(pool: Pool) -> None:
    evidence = pool.extract_sync(b"echo", "näme.txt", picture_slots=3)
    assert (evidence.name, evidence.kind, evidence.notes, evidence.sampled) == (
        "näme.txt",
        "text",
        ("a note",),
        True,
    )
    assert [(p.width, p.height, p.place) for p in evidence.pictures] == [
        (n, n, f"page {n}") for n in (1, 2, 3)
    ]
    assert [p.png for p in evidence.pictures] == [bytes([n]) * 3_000_000 for n in (1, 2, 3)]
    assert len({p.sha256 for p in evidence.pictures}) == 3


def test_the_servers_secrets_are_not_passed_on(jobs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JEV_API_KEYS", "secret")
    with Pool(workers=1, target=jobs) as pool:
        assert run(pool)["secret"] is None


def test_the_child_is_bounded_even_without_its_parent(pool: Pool) -> None:
    state = run(pool)
    assert state["memory"] == 512 * 2**20
    assert 0 < int(str(state["alarm"])) <= 11
    assert 0 < int(str(state["cpu"])) < 1000
    assert state["core"] == 0
    assert state["torch"] is False


def test_what_decoders_print_is_not_seen(pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    run(pool, "noise")
    assert capfd.readouterr() == ("", "")


def test_a_stage_brings_its_own_time(jobs: str) -> None:
    with Pool(Limits(decode_seconds=1, transcribe_seconds=30), workers=1, target=jobs) as pool:
        run(pool, "stage 1.5")
    with Pool(Limits(decode_seconds=1, transcribe_seconds=0.5), workers=1, target=jobs) as pool:
        with pytest.raises(LimitExceeded) as error:
            run(pool, "stage 60")
        assert (error.value.limit, error.value.allowed) == ("transcribe_seconds", 0.5)


def test_workers_start_late_and_are_replaced_after_their_jobs(jobs: str) -> None:
    before = children()
    with Pool(workers=1, jobs_each=2, target=jobs) as pool:
        assert children() == before
        pids = [run(pool)["pid"] for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert children() == before


def test_no_more_workers_than_asked_for_and_the_loop_stays_free(jobs: str) -> None:
    async def main() -> tuple[set[int], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticker = asyncio.create_task(tick())
        with Pool(workers=2, target=jobs) as pool:
            jobs_ = [pool.extract(b"sleep 0.1", "a", picture_slots=0) for _ in range(8)]
            done = await asyncio.gather(*jobs_)
            ticker.cancel()
        return {json.loads(evidence.text)["pid"] for evidence in done}, ticks

    pids, ticks = asyncio.run(main())
    assert len(pids) == 2
    assert ticks > 20


def test_threads_share_a_pool(pool: Pool) -> None:
    results: list[object] = []
    threads = [threading.Thread(target=lambda: results.append(run(pool)["pid"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8


def test_cancelling_kills_the_job_and_frees_its_place(jobs: str) -> None:
    async def main() -> None:
        with Pool(Limits(decode_seconds=300), workers=1, target=jobs) as pool:
            first = json.loads((await pool.extract(b"echo", "a", picture_slots=0)).text)["pid"]
            hanging = asyncio.create_task(pool.extract(b"sleep", "a", picture_slots=0))
            waiting = asyncio.create_task(pool.extract(b"sleep", "a", picture_slots=0))
            await asyncio.sleep(0.3)
            waiting.cancel()
            hanging.cancel()
            for task in (waiting, hanging):
                with pytest.raises(asyncio.CancelledError):
                    await task
            evidence = await asyncio.wait_for(pool.extract(b"echo", "a", picture_slots=0), 60)
            assert json.loads(evidence.text)["pid"] != first
            assert not is_alive(first)

    asyncio.run(main())


def test_closing_ends_running_and_waiting_jobs_and_later_ones(jobs: str) -> None:
    before = children()
    pool = Pool(Limits(decode_seconds=300), workers=1, target=jobs)
    run(pool)
    errors: list[ExtractError] = []

    def hang() -> None:
        try:
            run(pool, "sleep")
        except ExtractError as error:
            errors.append(error)

    threads = [threading.Thread(target=hang) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    pool.close()
    for thread in threads:
        thread.join(30)
    assert [type(error) for error in errors] == [ServiceUnavailable] * 3
    assert children() == before
    pool.close()
    with pytest.raises(ServiceUnavailable, match="closed"):
        run(pool)
    with pytest.raises(ServiceUnavailable, match="closed"):
        asyncio.run(pool.extract(b"echo", "a", picture_slots=0))


def test_temporary_files_go_with_the_worker(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Pool(Limits(decode_seconds=1), workers=1, target=jobs) as pool:
        run(pool)
        (mine,) = tmp_path.iterdir()
        with pytest.raises(LimitExceeded):
            run(pool, "leave")
        assert not mine.exists()
        run(pool)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_cannot_start_is_not_the_files_fault() -> None:
    with Pool(workers=1, target="no_such_module:job") as pool:
        for _ in range(2):
            with pytest.raises(ServiceUnavailable, match="could not be started: ModuleNotFoundError"):
                run(pool)


def test_a_script_without_a_main_guard_can_use_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    code = """
        import os
        from jev.extractors.worker import Pool
        pool = Pool(workers=1)
        print(pool.extract_sync(b"hello", "a.txt", picture_slots=0).text, flush=True)
        print(pool._places.queue[-1]._process.pid, flush=True)
        if os.environ.get("DIE"):
            os._exit(0)
    """
    script.write_text(textwrap.dedent(code))
    for environment in ({}, {"DIE": "1"}):
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "TMPDIR": str(tmp_path), **environment},
        )
        assert (done.returncode, done.stderr) == (0, "")
        text, pid = done.stdout.split()
        assert text == "hello"
        deadline = time.monotonic() + 10
        while is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not is_alive(pid)


def test_the_real_job_gives_what_it_gives_in_process() -> None:
    document = pymupdf.open()
    document.new_page().insert_text((72, 72), "words")
    document.new_page().draw_circle((100, 100), 50)
    files = [(document.tobytes(), "a.pdf"), ("Grüße".encode("latin-1"), "a.txt"), (b"<p>x", "a.html")]
    with Pool(workers=1) as pool:
        for data, name in files:
            here = extract(data, name, Limits(), picture_slots=8, options=Options())
            assert pool.extract_sync(data, name, picture_slots=8) == here
        with pytest.raises(UnsupportedType):
            pool.extract_sync(b"x", "a.exe", picture_slots=8)


@pytest.mark.parametrize("arguments", [{"workers": 0}, {"jobs_each": 0}])
def test_a_pool_needs_workers_and_jobs(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        Pool(**arguments)


def test_a_process_that_was_ended_between_two_jobs_costs_no_job_an_error(pool: Pool) -> None:
    before = psutil.Process(int(str(run(pool)["pid"])))
    before.kill()
    while before.is_running() and before.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert run(pool)["pid"] != before.pid


def test_without_a_folder_or_a_pipe_no_worker_is_started(
    jobs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("tempfile.mkdtemp", "Pipe"):
        with monkeypatch.context() as patch, Pool(workers=1, target=jobs) as broken:
            patch.setattr(f"jev.extractors.worker_process.{name}", full)
            with pytest.raises(ServiceUnavailable, match="could not be started"):
                run(broken)
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_is_killed_leaves_no_files(jobs: str, tmp_path: Path) -> None:
    code = f"""
        import os, signal, sys
        sys.path.insert(0, {sys.path[0]!r})
        from jev.extractors.worker import Pool
        pool = Pool(workers=1, target={jobs!r})
        pool.extract_sync(b"noise", "a.txt", picture_slots=0)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, timeout=60)
    assert ended.returncode == -9
    until = time.monotonic() + 10
    while list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []
