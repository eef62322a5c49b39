"""Proves that what fits where is known before anything is loaded, and what does not fit is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jev.cli import app
from jev.loading import load_engine
from jev.model.gguf.write import save_gguf
from jev.planner import Machine, MemoryShortageError, Plan, plan, settle
from jev.settings import Settings

GB = 10**9

CONFIG = Path(__file__).parents[1] / "model" / "data" / "diffusiongemma-26b-a4b" / "config.json"
"""The published 26B-A4B checkpoint: 50.5 GB of text model in bf16, 16.1 GB in int4."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the config of the published model and no weights."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "config.json").write_text(CONFIG.read_text())
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    return folder


def settings(model: Path | None = None, **given: Any) -> Settings:
    return Settings.load(model=model, **{"max_context": 32768, **given})


def planned(model: Path, host: int, gpus: Mapping[str, int] | None = None, **given: Any) -> Plan:
    return plan(settings(model, **given), Machine(host, gpus or {}))


def best(found: Plan) -> tuple[str, str, int]:
    assert found.recommended is not None
    return found.recommended.device, found.recommended.dtype, found.recommended.offloaded


class TestRecommendation:
    @pytest.mark.parametrize(
        ("gpu", "expected"),
        [
            (141 * GB, ("cuda:0", "bfloat16", 0)),
            (80 * GB, ("cuda:0", "bfloat16", 0)),
            (48 * GB, ("cuda:0", "float8", 0)),
            (24 * GB, ("cuda:0", "int4", 0)),
        ],
    )
    def test_the_best_precision_that_fits_on_the_gpu(
        self, large: Path, gpu: int, expected: tuple[str, str, int]
    ) -> None:
        assert best(planned(large, 128 * GB, {"cuda:0": gpu})) == expected

    def test_a_small_gpu_leaves_layers_on_the_host(self, large: Path) -> None:
        found = planned(large, 64 * GB, {"cuda:0": 16 * GB})
        device, dtype, offloaded = best(found)
        assert (device, dtype) == ("cuda:0", "int4")
        assert 0 < offloaded <= 15
        assert found.recommended is not None
        assert found.recommended.needed <= 16 * GB
        fewer = planned(large, 64 * GB, {"cuda:0": 16 * GB}, offload_layers=offloaded - 1, dtype="int4")
        assert next(one for one in fewer.choices if one.dtype == "int4").verdict != "fits"

    def test_long_prompts_that_nobody_asked_for_leave_no_layer_on_the_host(self, large: Path) -> None:
        found = planned(large, 64 * GB, {"cuda:0": 24 * GB}, max_context=None)
        assert best(found) == ("cuda:0", "int4", 0)
        assert found.recommended is not None
        assert found.recommended.verdict == "tight"

    def test_a_gpu_with_little_of_the_model_is_left_alone(self, large: Path) -> None:
        assert best(planned(large, 64 * GB, {"cuda:0": 6 * GB})) == ("cpu", "bfloat16", 0)

    @pytest.mark.parametrize(
        ("host", "dtype"), [(128, "float32"), (64, "bfloat16"), (40, "int8"), (24, "int4")]
    )
    def test_on_the_cpu(self, large: Path, host: int, dtype: str) -> None:
        assert best(planned(large, host * GB)) == ("cpu", dtype, 0)

    def test_nothing_fits(self, large: Path) -> None:
        found = planned(large, 8 * GB)
        assert found.recommended is None
        assert {one.verdict for one in found.choices if one.device == "cpu"} == {"no"}

    def test_the_larger_of_two_gpus(self, large: Path) -> None:
        assert best(planned(large, 64 * GB, {"cuda:0": 10 * GB, "cuda:1": 80 * GB}))[0] == "cuda:1"

    def test_no_prompt_is_longer_than_the_model_takes(self, large: Path) -> None:
        longest = plan(Settings(model=large), Machine(None)).context
        assert plan(Settings(model=large, max_context=10**15), Machine(None)).context == longest

    def test_long_prompts_make_it_tight(self, large: Path) -> None:
        (choice,) = [
            one
            for one in planned(large, 23 * GB, max_context=262144).choices
            if one.dtype == "int4" and one.device == "cpu"
        ]
        assert choice.verdict == "tight"
        assert choice.kv == 2 * (25 * 1023 * 8192 + 262144 * 20480)  # fp32 arithmetic

    def test_a_gguf_file_keeps_its_types(self, tiny: Path, tmp_path: Path) -> None:
        from jev.model.checkpoint import load_checkpoint

        model = load_checkpoint(tiny, vision=False)
        tokenizer = json.loads((tiny / "tokenizer.json").read_text())
        save_gguf(model.text.state_dict(), tmp_path / "tiny.gguf", model.config, tokenizer, type="Q8_0")
        found = plan(settings(tmp_path / "tiny.gguf", max_context=None), Machine(GB, {"cuda:0": GB}))
        assert [(one.device, one.dtype, one.stored) for one in found.choices] == [
            ("cuda:0", "bfloat16", True),
            ("cpu", "float32", True),
        ]


class TestSettling:
    def test_auto_is_the_best_that_fits(self, large: Path) -> None:
        choice = settle(settings(large, dtype="auto"), Machine(24 * GB))
        assert choice.dtype == "int4"
        assert settle(settings(large, dtype="auto"), Machine(200 * GB)).dtype == "float32"

    def test_a_precision_that_is_given_stays(self, large: Path) -> None:
        assert settle(settings(large, dtype="int8"), Machine(200 * GB)).dtype == "int8"

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"dtype": "bfloat16"}, r"as bfloat16 needs 52\.\d GB, but only 24\.0 GB of memory is free"),
            (
                {"dtype": "auto", "device": "cuda"},
                r"needs \d+\.\d GB, but only 2\.0 GB of memory is free on cuda",
            ),
            (
                {"dtype": "bfloat16", "device": "cuda:0", "offload_layers": 29},
                r"needs 47\.\d GB for 29 layers on the host, but only 24\.0 GB of memory is free",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused(self, large: Path, given: dict[str, Any], said: str) -> None:
        machine = Machine(24 * GB, {"cuda:0": 2 * GB if "offload_layers" not in given else 20 * GB})
        with pytest.raises(MemoryShortageError, match=said) as caught:
            settle(settings(large, **given), machine)
        assert "check_memory = false" in str(caught.value)
        settle(settings(large, check_memory=False, **given), machine)

    def test_unknown_memory_refuses_nothing(self, large: Path) -> None:
        assert settle(settings(large, dtype="float32"), Machine(None)).verdict == "unknown"


def test_the_engine_is_loaded_as_settled() -> None:
    assert load_engine(settings(max_context=None, dtype="auto")).precision == "float32"


class TestBeforeLoading:
    @pytest.fixture(autouse=True)
    def little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jev.planner.memory", lambda: (2**30, 20_000_000))

    def test_an_engine_is_not_loaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jev.engine.Engine.load", lambda *args, **options: pytest.fail("loaded"))
        with pytest.raises(MemoryShortageError, match=r"needs \d+ MB, but only 20 MB of memory is free"):
            load_engine(settings(max_context=None))

    @pytest.mark.parametrize("command", [["ask", "state", "--noul", "Is it?"], ["serve", "--port", "0"]])
    def test_commands_say_so(self, command: list[str]) -> None:
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 1
        assert "but only 20 MB of memory is free; check_memory = false" in done.stderr

    def test_the_override_loads(self) -> None:
        assert load_engine(settings(max_context=None, check_memory=False)).name


def test_the_doctor_shows_a_table(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jev.cli.machine_checks._product_seconds", lambda dtype: 1.0)
    done = CliRunner().invoke(app, ["doctor", "--model", str(tiny)])
    assert done.exit_code == 0, done.output
    assert "keys, values (4096 tokens)" in done.stdout
    assert "best here: device = cpu, dtype = float32" in done.stdout
    body = json.loads(CliRunner().invoke(app, ["doctor", "--model", str(tiny), "--json"]).stdout)
    assert body["plan"]["recommended"] == {"device": "cpu", "dtype": "float32", "offload_layers": 0}
    assert body["plan"]["context"] == 4096
