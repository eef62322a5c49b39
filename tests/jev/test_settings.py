"""Settings come from one place each, in a fixed order, and a bad one is named in one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jev.settings import Settings, SettingsError

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"JEV_{name.upper()}", raising=False)


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "jev.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_precedence_is_overrides_then_environment_then_file_then_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = toml(tmp_path, 'port = 1\nhost = "file"\nname = "file"\nstep_rows = 7\n')
    monkeypatch.setenv("JEV_PORT", "2")
    monkeypatch.setenv("JEV_HOST", "environment")
    settings = Settings.load(file, port=3, name=None)
    assert (settings.port, settings.host, settings.name, settings.step_rows) == (3, "environment", "file", 7)
    assert settings.max_pending_requests == 64


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JEV_PORT", "")
    assert Settings.load().port == 8000


def test_variables_of_other_parts_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JEV_BASE_URL", "http://example.test")
    monkeypatch.setenv("JEV_API_KEY", "client-side")
    assert Settings.load().api_keys == ()


@pytest.mark.parametrize("given", ["one, two,", ["one", "two"], ("one", "two")])
def test_keys_are_a_list_or_comma_separated(given: object) -> None:
    keys = Settings.load(api_keys=given).api_keys
    assert [key.get_secret_value() for key in keys] == ["one", "two"]


def test_keys_come_from_the_environment_and_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JEV_API_KEYS", "s3cret,other")
    settings = Settings.load()
    assert [key.get_secret_value() for key in settings.api_keys] == ["s3cret", "other"]
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize("given", [",", " , ", "", [""], ["two words"], ["schlüssel"], ["a\nb"]])
def test_a_key_list_that_would_let_everyone_or_nobody_in_is_refused(given: object) -> None:
    with pytest.raises(SettingsError, match="api_keys") as caught:
        Settings.load(api_keys=given)
    assert "schlüssel" not in str(caught.value)


def test_sizes_may_have_units(tmp_path: Path) -> None:
    file = toml(tmp_path, 'max_body_bytes = "3MiB"\ncache_bytes = 0\n')
    settings = Settings.load(file)
    assert (settings.max_body_bytes, settings.cache_bytes) == (3 * 2**20, 0)


def test_an_unknown_setting_is_one_sentence_with_a_suggestion(tmp_path: Path) -> None:
    file = toml(tmp_path, "prot = 8000\n")
    with pytest.raises(SettingsError) as caught:
        Settings.load(file)
    assert str(caught.value) == f"{file}: unknown setting 'prot'; did you mean 'port'?"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 70000),
        ("port", -1),
        ("max_pending_requests", 0),
        ("max_body_bytes", 0),
        ("max_body_bytes", "a lot"),
        ("request_timeout_s", 0),
        ("request_timeout_s", float("inf")),
        ("rate_limit_rpm", -1),
        ("threads", 0),
        ("log_level", "loud"),
        ("dtype", "int3"),
        ("host", ""),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: "):
        Settings.load(**{name: value})


def test_a_bad_value_says_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = toml(tmp_path, "port = 70000\n")
    with pytest.raises(SettingsError, match=rf"^port \(in {re.escape(str(file))}\): "):
        Settings.load(file)
    monkeypatch.setenv("JEV_PORT", "eighty")
    with pytest.raises(SettingsError, match=r"^port \(from JEV_PORT\): "):
        Settings.load(file)


@pytest.mark.parametrize("content", [b"port = \n", b"\xff\xfe", b"port = 1\nport = 2\n"])
def test_a_file_that_is_not_toml_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jev.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="is not valid TOML"):
        Settings.load(path)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.toml: cannot be read \(No such file or directory\)"):
        Settings.load(tmp_path / "none.toml")


def test_settings_do_not_change_after_they_were_read() -> None:
    settings = Settings.load()
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_server_toml_lists_every_setting_with_its_default() -> None:
    path = CONFIGS / "server.toml"
    assert Settings.load(path) == Settings.load()
    listed = set(re.findall(r"^(?:# )?([a-z_]+) = ", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert listed == set(Settings.model_fields)


def test_mini_toml_serves_the_embedded_model() -> None:
    settings = Settings.load(CONFIGS / "mini.toml")
    assert settings.model is None
    assert settings.device == "cpu"


def test_every_setting_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
