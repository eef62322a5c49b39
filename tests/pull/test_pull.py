"""Proves that a pull brings exactly what is asked for, through whatever breaks, or says why not."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_hub import COMMIT, REPO, Behaviour, Hub, sha256

from jev.pull import PinnedFile, Source, missing_files, missing_sentence, place
from jev.pull.errors import HubError, PullError
from jev.pull.report import Quiet
from jev.pull.run import pull
from jev.pull.transfer import Patience

QUICK = Patience(tries=4, first_wait_s=0.01, longest_wait_s=0.02)
WEIGHTS = "model.safetensors"


def source(*names: str, **options: Any) -> Source:
    files = dict.fromkeys(names or ("config.json", WEIGHTS, "empty.txt"), PinnedFile())
    return Source(**{"repo": REPO, "revision": COMMIT, "files": files, **options})


def pinned(hub: Hub, name: str = WEIGHTS, **changed: Any) -> Source:
    content = hub.files[name]
    return source(files={name: PinnedFile(**{"sha256": sha256(content), "size": len(content), **changed})})


def leftovers(cache: Path) -> list[str]:
    """Files that have no final name."""
    return [path.name for path in cache.rglob("*incomplete*")]


class TestWhatComes:
    def test_every_file_comes_whole(self, hub: Hub, cache: Path) -> None:
        got = pull([source()], patience=QUICK)
        assert {one.name: Path(one.path).read_bytes() for one in got} == hub.files
        assert [one.fetched for one in got] == [True] * 3
        assert {one.sha256 for one in got} == set(map(sha256, hub.files.values()))
        assert place(source()) == cache / "models--someone--some-model" / "snapshots" / COMMIT
        assert missing_sentence(source()) is None
        assert leftovers(cache) == []

    def test_what_is_here_is_checked_and_not_fetched_again(self, hub: Hub) -> None:
        pull([source()], patience=QUICK)
        asked = hub.requests.total()
        again = pull([source(), pinned(hub)], patience=QUICK)
        assert [one.fetched for one in again] == [False] * 4
        assert hub.requests.total() == asked

    def test_the_layout_is_the_librarys_own(self, hub: Hub) -> None:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        pull([source()], patience=QUICK)
        assert try_to_load_from_cache(REPO, WEIGHTS, revision=COMMIT) is not None
        gets = hub.requests[f"GET {WEIGHTS}"]
        assert Path(hf_hub_download(REPO, WEIGHTS, revision=COMMIT)).read_bytes() == hub.files[WEIGHTS]
        assert hub.requests[f"GET {WEIGHTS}"] == gets

    def test_a_branch_is_asked_for_again(self, hub: Hub) -> None:
        moving = source(revision="main")
        assert missing_files(moving)
        pull([moving], patience=QUICK)
        assert place(moving).name == COMMIT
        assert not missing_files(moving)
        heads = hub.requests["HEAD config.json"]
        assert [one.fetched for one in pull([moving], patience=QUICK)] == [False] * 3
        assert hub.requests["HEAD config.json"] > heads

    def test_a_single_gguf_is_a_file_and_not_a_folder(self, hub: Hub) -> None:
        hub.files["q4/model.gguf"] = b"GGUF"
        one = source("q4/model.gguf")
        pull([one], patience=QUICK)
        assert place(one).name == "model.gguf"
        assert place(one).read_bytes() == b"GGUF"

    def test_the_token_goes_to_the_hub_and_nowhere_else(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        pull([source()], patience=QUICK)
        assert hub.tokens == {"hub": {"Bearer hf_secret"}, "store": {None}}

    def test_two_pulls_at_once_fetch_once(self, hub: Hub) -> None:
        hub.behaviour[WEIGHTS] = Behaviour(pause_s=0.002)
        results: list[Any] = []
        threads = [
            threading.Thread(target=lambda: results.append(pull([source(WEIGHTS)], patience=QUICK)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(result[0].fetched for result in results) == [False, True]
        assert hub.sent == len(hub.files[WEIGHTS])


class TestBrokenConnections:
    def test_dropped_ones_go_on_where_they_ended(self, hub: Hub) -> None:
        # More drops than tries: each brings something, so none counts as a failure in a row.
        hub.behaviour[WEIGHTS] = Behaviour(drops=9, drop_after=7000)
        (got,) = pull([pinned(hub)], patience=QUICK)
        assert Path(got.path).read_bytes() == hub.files[WEIGHTS]
        assert hub.sent == len(hub.files[WEIGHTS])
        assert hub.ranges == [None, *(f"bytes={7000 * n}-" for n in range(1, 10))]

    def test_those_that_bring_nothing_are_given_up_and_the_part_stays(self, hub: Hub, cache: Path) -> None:
        hub.behaviour[WEIGHTS] = Behaviour(drops=1, drop_after=5000)
        hub.behaviour["config.json"] = Behaviour(drops=99, drop_after=0, large=False)
        with pytest.raises(HubError, match=r"cannot be reached for config\.json"):
            pull([source(WEIGHTS, "config.json")], patience=QUICK)
        assert missing_files(source(WEIGHTS, "config.json")) == ["config.json"]

    def test_a_later_pull_goes_on_from_the_part(self, hub: Hub, cache: Path) -> None:
        hub.behaviour[WEIGHTS] = Behaviour(drops=2, drop_after=30_000)
        with pytest.raises(HubError):
            pull([pinned(hub)], patience=Patience(tries=1))
        assert missing_files(pinned(hub)) == [WEIGHTS]
        assert len(leftovers(cache)) == 1
        hub.behaviour.clear()
        pull([pinned(hub)], patience=QUICK)
        assert hub.ranges[-1] == "bytes=30000-"
        assert hub.sent == len(hub.files[WEIGHTS])

    def test_a_hub_that_knows_no_ranges_sends_all_of_it_again(self, hub: Hub) -> None:
        hub.behaviour[WEIGHTS] = Behaviour(drops=2, drop_after=40_000, ranges=False)
        (got,) = pull([pinned(hub)], patience=QUICK)
        assert Path(got.path).read_bytes() == hub.files[WEIGHTS]
        assert hub.sent == len(hub.files[WEIGHTS]) + 80_000

    def test_a_part_of_something_longer_is_thrown_away(self, hub: Hub, cache: Path) -> None:
        content = hub.files[WEIGHTS]
        part = cache / "models--someone--some-model" / "blobs" / f"{sha256(content)}.jev.incomplete"
        part.parent.mkdir(parents=True)
        part.write_bytes(b"x" * (len(content) + 1))
        (got,) = pull([pinned(hub)], patience=QUICK)
        assert Path(got.path).read_bytes() == content

    @pytest.mark.parametrize("shift", [-7, 7])
    def test_another_range_than_was_asked_for_is_thrown_away(self, hub: Hub, shift: int) -> None:
        hub.behaviour[WEIGHTS] = Behaviour(drops=1, shift=shift)
        (got,) = pull([pinned(hub)], patience=QUICK)
        assert Path(got.path).read_bytes() == hub.files[WEIGHTS]
        assert hub.ranges[-2:] == ["bytes=1000-", None]

    def test_a_hub_that_always_makes_it_begin_again_is_given_up(self, hub: Hub) -> None:
        class Counting(Quiet):
            retries = 0

            def retry(self, name: str, why: str, seconds: float) -> None:
                self.retries += 1
                assert self.retries < 50, why

        hub.behaviour[WEIGHTS] = Behaviour(drops=10**9, drop_after=500, total=1000)
        with pytest.raises(HubError, match="cannot be reached"):
            pull([pinned(hub)], patience=QUICK, report=Counting())

    def test_a_hub_that_hangs(self, hub: Hub) -> None:
        hub.behaviour[WEIGHTS] = Behaviour(hangs=True)
        with pytest.raises(HubError, match="did not answer in time"):
            pull([source(WEIGHTS)], patience=Patience(tries=1))

    def test_a_slow_hub_is_waited_for(self, hub: Hub) -> None:
        hub.behaviour[WEIGHTS] = Behaviour(pause_s=0.01)  # over a second in all, which is the timeout
        (got,) = pull([pinned(hub)], patience=QUICK)
        assert got.fetched

    def test_nobody_listens(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        from huggingface_hub import constants

        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(hub.url, "http://127.0.0.1:1")
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("jev.pull.fetch.RETRY_LOOK_UPS", False)
        with pytest.raises(HubError, match=r"cannot be reached for model\.safetensors"):
            pull([source(WEIGHTS)], patience=QUICK)


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "code", "said", "kind"),
        [
            (401, "", "refuses model.safetensors of someone/some-model (401)", PullError),
            (401, "RepoNotFound", "no repository someone/some-model, or it is private", PullError),
            (403, "GatedRepo", "is gated: ask for access", PullError),
            (403, "", "refuses model.safetensors of someone/some-model", PullError),
            (404, "EntryNotFound", "has no file model.safetensors", PullError),
            (404, "RevisionNotFound", f"has no revision {COMMIT}", PullError),
            (404, "RepoNotFound", "no repository someone/some-model", PullError),
            (418, "", "answers 418", PullError),
            (503, "", "answers 503", HubError),
            (500, "", "answers 500", HubError),
        ],
    )
    def test_a_status_is_a_sentence(
        self, hub: Hub, status: int, code: str, said: str, kind: type, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jev.pull.fetch.RETRY_LOOK_UPS", False)
        hub.behaviour[WEIGHTS] = Behaviour(status=status, code=code)
        with pytest.raises(PullError) as caught:
            pull([source(WEIGHTS)], patience=QUICK)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
        assert type(caught.value) is kind

    def test_a_status_that_passes_is_waited_out(self, hub: Hub) -> None:
        hub.behaviour[WEIGHTS] = Behaviour(status=503, refusals=2, method="GET")
        assert pull([pinned(hub)], patience=QUICK)[0].fetched

    def test_a_repository_that_is_not_there(self, hub: Hub) -> None:
        with pytest.raises(PullError, match="no repository else/model"):
            pull([source(repo="else/model")], patience=QUICK)

    @pytest.mark.parametrize(
        "lie", [{"stated": "../../escape"}, {"stated": ".."}, {"commit": "../../escape"}, {"commit": "."}]
    )
    def test_something_that_is_no_hub(self, hub: Hub, lie: dict[str, str]) -> None:
        hub.behaviour["config.json"] = Behaviour(large=False, **lie)  # type: ignore[arg-type]
        with pytest.raises(PullError, match="no model hub"):
            pull([source("config.json", revision="main")], patience=QUICK)

    def test_another_commit_than_the_one_that_is_wanted(self, hub: Hub) -> None:
        hub.behaviour["config.json"] = Behaviour(large=False, commit="f" * 40)
        with pytest.raises(PullError, match=f"at {'f' * 40} for revision {COMMIT}"):
            pull([source("config.json")], patience=QUICK)

    def test_a_cache_that_cannot_be_written(self, hub: Hub, cache: Path) -> None:
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text("a file where the folder should be")
        with pytest.raises(HubError, match=r"model\.safetensors of someone/some-model cannot be fetched: "):
            pull([source(WEIGHTS)], patience=QUICK)

    @pytest.mark.parametrize("name", ["a\0b", "a\nb", "a\x1b[2Jb", "\ud800"])
    def test_a_name_that_nobody_can_read(self, name: str) -> None:
        with pytest.raises(ValueError, match="is not the path of a file in a repository"):
            source(name)


class TestDigests:
    def test_another_digest_is_refused_before_anything_is_fetched(self, hub: Hub) -> None:
        with pytest.raises(
            PullError, match=rf"has sha256 {sha256(hub.files[WEIGHTS])}, but {'0' * 64} is pinned"
        ):
            pull([pinned(hub, sha256="0" * 64)], patience=QUICK)
        with pytest.raises(PullError, match="has 102400 bytes, but 7 are pinned"):
            pull([pinned(hub, size=7)], patience=QUICK)
        assert hub.sent == 0

    @pytest.mark.parametrize("large", [True, False])
    @pytest.mark.parametrize("pin", [True, False])
    def test_wrong_bytes_are_thrown_away(self, hub: Hub, cache: Path, large: bool, pin: bool) -> None:
        wrong = b"w" * len(hub.files[WEIGHTS])
        hub.behaviour[WEIGHTS] = Behaviour(large=large, body=wrong)
        wanted = pinned(hub) if pin else source(WEIGHTS)
        with pytest.raises(PullError, match="removed"):
            pull([wanted], patience=QUICK)
        assert missing_files(wanted) == [WEIGHTS]
        assert leftovers(cache) == []
        assert not [path for path in cache.rglob("*") if path.is_file() and path.read_bytes() == wrong]

    def test_more_bytes_than_stated_are_thrown_away(self, hub: Hub, cache: Path) -> None:
        hub.behaviour[WEIGHTS] = Behaviour(body=hub.files[WEIGHTS] + b"more" * 9000)
        with pytest.raises(HubError, match="instead of 102400; it was removed"):
            pull([source(WEIGHTS)], patience=QUICK)
        assert leftovers(cache) == []

    def test_a_damaged_file_is_fetched_again(self, hub: Hub) -> None:
        (got,) = pull([pinned(hub)], patience=QUICK)
        Path(got.path).write_bytes(b"d" * got.size)
        (got,) = pull([pinned(hub)], patience=QUICK)
        assert got.fetched
        assert Path(got.path).read_bytes() == hub.files[WEIGHTS]

    def test_a_whole_file_is_kept_when_the_pin_is_wrong(self, hub: Hub) -> None:
        (got,) = pull([source(WEIGHTS)], patience=QUICK)
        with pytest.raises(PullError, match="pinned"):
            pull([pinned(hub, sha256="0" * 64)], patience=QUICK)
        assert Path(got.path).read_bytes() == hub.files[WEIGHTS]


class TestOffline:
    def test_it_checks_what_is_here(self, hub: Hub) -> None:
        pull([source()], patience=QUICK)
        asked = hub.requests.total()
        assert len(pull([source()], offline=True)) == 3
        assert hub.requests.total() == asked

    def test_it_says_what_is_missing(self, hub: Hub) -> None:
        pull([source("config.json")], patience=QUICK)
        with pytest.raises(
            PullError, match=r"offline.*model\.safetensors and 1 more file of someone/some-model"
        ):
            pull([source()], offline=True)

    def test_a_damaged_file_is_said_to_be(self, hub: Hub) -> None:
        (got,) = pull([source(WEIGHTS)], patience=QUICK)
        Path(got.path).write_bytes(b"d" * got.size)
        with pytest.raises(PullError, match="is damaged"):
            pull([source(WEIGHTS)], offline=True)


def test_a_full_disk_is_found_before_the_first_byte(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=64 * 2**20 + 102_399))
    with pytest.raises(HubError, match=r"0\.00 GB are to be fetched, but .* has only 0\.07 GB free"):
        pull([source(WEIGHTS)], patience=QUICK)
    assert hub.requests[f"GET {WEIGHTS}"] == 0
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=64 * 2**20 + 102_400))
    pull([source(WEIGHTS)], patience=QUICK)
