"""Proves that `jev pull` survives being killed, and that commands say what to pull when files are missing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_hub import COMMIT, REPO, Behaviour, Hub, sha256
from typer.testing import CliRunner, Result

from jev import configs
from jev.cli import app
from jev.pull import missing_files
from jev.settings import Settings

WEIGHTS = "model.safetensors"


def jev(*args: str) -> Result:
    return CliRunner().invoke(app, args)


@pytest.fixture
def config(tmp_path: Path, hub: Hub) -> Path:
    """A settings file that pins one of two files."""
    path = tmp_path / "some.toml"
    content = hub.files[WEIGHTS]
    path.write_text(
        f"""
        name = "some"
        [pull.model]
        repo = "{REPO}"
        revision = "{COMMIT}"
        [pull.model.files]
        "config.json" = {{}}
        "{WEIGHTS}" = {{ size = {len(content)}, sha256 = "{sha256(content)}" }}
        """
    )
    return path


def test_files_come_and_settings_find_them(hub: Hub, config: Path) -> None:
    before = jev("serve", "--config", str(config))
    assert before.exit_code == 2
    said = f"not on this machine: config.json and 1 more file of {REPO}; run `jev pull {config}`"
    assert before.stderr.strip() == f"error: {said}"
    done = jev("pull", str(config))
    assert done.exit_code == 0, done.stderr
    model = Settings.load(config).model
    digest = sha256(hub.files["config.json"])
    assert done.stdout.splitlines() == [
        "config.json        33 B       fetched  as the hub states",
        "model.safetensors  100.0 KiB  fetched  pinned",
        "",
        "To pin what is not:",
        f'"config.json" = {{ size = 33, sha256 = "{digest}" }}',
        "",
        f"model: {model}",
    ]
    assert model is not None
    assert (model / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    body = json.loads(jev("pull", str(config), "--offline", "--json").stdout)
    assert body["model"] == str(model)
    assert [(one["name"], one["pinned"], one["fetched"]) for one in body["files"]] == [
        ("config.json", False, False),
        (WEIGHTS, True, False),
    ]
    # What is missing is not said any more; that this is no checkpoint, is.
    assert "text_config is missing" in jev("serve", "--config", str(config)).stderr


def test_it_goes_on_after_it_was_killed(hub: Hub, config: Path, cache: Path) -> None:
    hub.behaviour[WEIGHTS] = Behaviour(pause_s=0.3)
    killed = subprocess.Popen([sys.executable, "-m", "jev", "pull", str(config)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (parts := [path for path in cache.rglob("*.incomplete") if path.stat().st_size > 10_000]):
        assert time.monotonic() < deadline, "nothing has come"
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    have = parts[0].stat().st_size
    assert missing_files(Settings.load(config).pull["model"]) == [WEIGHTS]
    hub.behaviour.clear()
    again = jev("pull", str(config))
    assert again.exit_code == 0, again.stderr
    assert "are here)" in again.stderr
    assert hub.ranges[-1] == f"bytes={have}-"
    assert not list(cache.rglob("*.incomplete"))


def test_ctrl_c_is_clean(hub: Hub, config: Path, cache: Path) -> None:
    hub.behaviour[WEIGHTS] = Behaviour(pause_s=0.3)
    running = subprocess.Popen(
        [sys.executable, "-m", "jev", "pull", str(config)], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 30
    while not [path for path in cache.rglob("*.incomplete") if path.stat().st_size]:
        assert time.monotonic() < deadline, "nothing has come"
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert running.returncode == 130
    assert said.splitlines()[-1] == "stopped; run it again to go on from here"
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("behaviour", "code", "said"),
    [
        (Behaviour(status=403, code="GatedRepo"), 2, "is gated: ask for access"),
        (Behaviour(body=b"x" * 102_400), 2, "is pinned; it was removed"),
        (Behaviour(status=500, method="GET", refusals=99), 1, "answers 500"),
    ],
)
def test_exit_codes(
    hub: Hub, config: Path, behaviour: Behaviour, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jev.pull.transfer import Patience

    monkeypatch.setattr(Patience, "wait_s", lambda self, failures: 0.01)
    hub.behaviour[WEIGHTS] = behaviour
    done = jev("pull", str(config))
    assert done.exit_code == code
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert said in line


@pytest.mark.parametrize("how", ["--offline", "HF_HUB_OFFLINE"])
def test_offline_asks_nobody(hub: Hub, config: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "HF_HUB_OFFLINE":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read when it is imported
    done = jev("pull", str(config), *([how] if how == "--offline" else []))
    assert done.exit_code == 2
    assert f"offline, and not on this machine: config.json and 1 more file of {REPO}" in done.stderr
    assert not hub.requests


def test_a_config_without_anything_to_pull() -> None:
    done = jev("pull", "mini")
    assert done.exit_code == 2
    assert "mini pulls nothing; those that do: diffusiongemma-26b-a4b-bf16, " in done.stderr


class TestSettings:
    def test_a_model_that_is_given_wins(self, config: Path) -> None:
        assert Settings.load(config, model="/elsewhere").model == Path("/elsewhere")

    def test_without_one_it_is_the_pulled_folder(self, config: Path, cache: Path) -> None:
        assert Settings.load(config).model == cache / "models--someone--some-model" / "snapshots" / COMMIT

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (
                '[pull.model]\nrepo = "x"\nfiles = ["a"]',
                r"pull.model.repo \(in .*\): a repository is OWNER/NAME",
            ),
            ('[pull.model]\nrepo = "a/b"\nfiles = ["../a"]', "'../a' is not the path of a file"),
            ('[pull.model]\nrepo = "a/b"\nfiles = ["/a"]', "'/a' is not the path of a file"),
            ('[pull.model]\nrepo = "a/b"\nfiles = []', "pull.model.files"),
            ('[pull.model]\nrepo = "a/b"\nrevision = "../x"\nfiles = ["a"]', "pull.model.revision"),
            ('[pull.model]\nrepo = "a/b"\nfiles = { a = { sha256 = "beef" } }', "pull.model.files.a.sha256"),
            ('[pull.speech]\nrepo = "a/b"\nfiles = ["a"]', "pull.speech"),
        ],
    )
    def test_what_cannot_be_pulled_is_refused(self, tmp_path: Path, text: str, said: str) -> None:
        path = tmp_path / "bad.toml"
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            Settings.load(path)


class TestShippedConfigurations:
    @pytest.mark.parametrize("name", [name for name in configs.names() if name.startswith("diffusiongemma-")])
    def test_everything_is_pinned(self, name: str) -> None:
        settings = Settings.load(configs.path(name))
        assert settings.pull
        for source in settings.pull.values():
            assert len(source.revision) == 40
            assert all(pin.sha256 and pin.size for pin in source.files.values())
        assert settings.model is not None

    def test_sizes_are_those_of_the_published_checkpoint(self) -> None:
        """51,647,562,456 bytes of tensors in eleven shards, whose headers take 5.5 to 60 KB each."""
        (source,) = Settings.load(configs.path("diffusiongemma-26b-a4b-bf16")).pull.values()
        shards = {name: pin.size or 0 for name, pin in source.files.items() if name.startswith("model-")}
        assert len(shards) == 11
        assert 11 * 5_500 < sum(shards.values()) - 51_647_562_456 < 11 * 60_000

    def test_the_vision_tower_lies_beside_the_config_that_describes_it(self) -> None:
        settings = Settings.load(configs.path("diffusiongemma-26b-a4b-vision"))
        assert settings.vision is not None
        assert settings.vision.is_relative_to(settings.model.parents[3])  # type: ignore[union-attr]
        assert "config.json" in settings.pull["vision"].files
        assert settings.model is not None
        assert settings.model.name.endswith(".gguf")
