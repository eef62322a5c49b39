"""Proves that two processes take the steps of one with twice the batch, also with spread weights."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tune_cases import job

from jev.model.errors import CheckpointError
from jev.tune.group import meet
from jev.tune.recipe import TuneError
from jev.tune.run import run
from jev.tune.together import run_together


@pytest.mark.slow
@pytest.mark.parametrize(
    ("full", "shard", "held_out"),
    [(False, False, 0.04), (True, True, 0.1)],  # of 24 states: with one, the second process has none
)
def test_two_processes_are_one_with_twice_the_batch(
    tmp_path: Path, small: Path, full: bool, shard: bool, held_out: float
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    options = {"full": full, "held_out": held_out, "steps": 3, "lr": 0.001}
    alone = job(tmp_path / "one", small, batch=6, **options)
    both = job(tmp_path / "two", small, batch=3, processes=2, shard=shard, **options)
    first, second = run(alone), run_together(both)
    assert first is not None
    assert second is not None
    for part in ("curve", "looks"):
        ones, twos = first["training"][part], second["training"][part]
        assert [one[0] for one in ones] == [two[0] for two in twos]
        assert [one[1] for one in twos] == pytest.approx([one[1] for one in ones], abs=1e-5)
        assert [one[2] for one in twos] == pytest.approx([one[2] for one in ones])
    name = "model.safetensors" if full else "adapter_model.safetensors"
    ones, twos = load_file(alone.out / name), load_file(both.out / name)
    assert set(ones) == set(twos)
    assert max(float((twos[key] - value).abs().max()) for key, value in ones.items()) < 1e-3


def test_an_error_of_the_first_process_ends_the_other(tmp_path: Path, small: Path) -> None:
    one = job(tmp_path, small, processes=2)
    one.data.write_text("{}\n")
    with pytest.raises(TuneError, match="no row is left to learn from"):  # and no wait for each other
        run_together(one)
    on_gpu = one.settings.model_copy(update={"device": "cuda:0"})
    with pytest.raises(TuneError, match="torchrun"):
        run_together(dataclasses.replace(one, settings=on_gpu))


def test_a_process_that_never_comes_is_not_waited_for(tmp_path: Path) -> None:
    def waiting() -> None:
        raise RuntimeError("it has ended")

    with pytest.raises(RuntimeError, match="it has ended"):
        meet(0, 2, tmp_path / "meeting", waiting)


def test_a_model_that_cannot_be_read_is_no_traceback(
    tmp_path: Path, small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = shutil.copytree(small, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes((small / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        run_together(job(tmp_path, broken, processes=2))
    assert "Traceback" not in capfd.readouterr().err
