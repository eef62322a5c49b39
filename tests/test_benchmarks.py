"""Every benchmark runs as documented and reports what it measured, and agreement counts what differs."""

from __future__ import annotations

import gzip
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jev import Choice
from jev.model import embedded
from jev.model.checkpoint import load_checkpoint
from jev.model.weights.safetensors import save_checkpoint

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TIMEOUT_S = 600


def run(script: str, *arguments: str | Path) -> str:
    """Run a benchmark as a user does and return what it printed."""
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments), "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two labelled sets of three rows."""
    folder = tmp_path / "data"
    for name, labels in (("weather", ("rain", "snow", "sun")), ("spam", ("no spam", "spam"))):
        rows = [
            {"id": f"{name}-{n}", "text": f"text number {n} about {label}", "label": label}
            for n, label in enumerate((*labels, labels[0])[:3])
        ]
        (folder / name).mkdir(parents=True)
        with gzip.open(folder / name / "test.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    """The embedded model's own weights as an fp32 checkpoint, which transformers can read."""
    folder = tmp_path / "reference"
    source = embedded.path()
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    save_checkpoint(load_checkpoint(source).text.state_dict(), folder / "model.safetensors")
    return folder


@pytest.mark.slow
def test_agreement(data: Path, reference: Path):
    sets = ("--data", data, "--sets", "weather,spam", "--rows", "6")
    printed = run("agreement.py", *sets, "--reference", reference, "--in-process", "--yes-no")
    totals = [line.split("│") for line in printed.splitlines() if line.startswith("│ all")]
    assert [(row[2].strip(), row[3].strip()) for row in totals] == [("6", "100.00%")] * 2
    assert all(float(row[5]) < 1e-4 for row in totals)
    assert "NOT MET" not in printed


TINY = ("--rounds", "1", "--short", "20", "--long", "40", "--many", "3")


@pytest.mark.slow
def test_read(tmp_path: Path):
    out = tmp_path / "out.json"
    printed = run("read.py", *TINY, "--json", out)
    report = json.loads(out.read_text())
    counts = {one["name"]: one["counts"] for one in report["requests"]}
    few, many = (counts[f"{n}, new state of 40, samples 1"] for n in ("1 question", "3 questions"))
    assert few["rows_prefill"] == many["rows_prefill"] > 40
    assert (few["reads"], many["reads"]) == (1, 3)
    assert counts["1 question, known state of 20, samples 1"]["rows_prefill"] == 0
    assert len(report["ratios"]) == 4
    assert all(one["gflops"]["median"] > 0 for one in report["rates"])
    assert "8 questions / 1 question, new states, samples auto" in printed
    assert "GFLOP/s" in printed


@pytest.mark.slow
def test_generate(tmp_path: Path):
    out = tmp_path / "out.json"
    small = ("--vocab", "500", "--canvas", "20", "--hidden", "64", "--layers", "2")
    printed = run("generate.py", "--rounds", "2", "--prompt", "10", *small, "--json", out)
    embedded_, random = json.loads(out.read_text())["models"]
    assert (embedded_["canvas"], random["canvas"], random["vocab"]) == (64, 20, 500)
    for one in (embedded_, random):
        assert one["first"]["median"] > 0
        assert 0.3 < one["step_to_forward"]["median"] < 10
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("│ ")] == [
        embedded.NAME,
        "random",
    ]


@pytest.mark.slow
def test_memory():
    printed = run("memory.py", "--requests", "4", "--every", "2", "--baseline", "2", "--longest", "40")
    rows = [line.split("│") for line in printed.splitlines() if line.startswith("│ ")]
    assert [row[1].strip() for row in rows] == ["0", "2", "4"]
    assert [row[2].strip() for row in rows] == ["", "1", "4"]
    assert all(0.1 < float(row[5]) < 10 for row in rows)


@pytest.mark.slow
def test_extract(tmp_path: Path):
    out = tmp_path / "out.json"
    printed = run("extract.py", "--kinds", "csv,pdf", "--rounds", "1", "--pages", "2", "--json", out)
    rows = [line.split("│")[1].strip() for line in printed.splitlines() if line.startswith("│ ")]
    assert rows == ["csv", "pdf"] * 2
    for kind in json.loads(out.read_text())["kinds"]:
        assert (kind["unit"], kind["count"]) == ("page", 2)
        assert kind["units_per_second"]["median"] == pytest.approx(2000 / kind["ms"]["median"])
        adds = kind["worker_ms"]["median"] - kind["ms"]["median"]
        assert kind["worker_adds_ms"]["median"] == pytest.approx(adds)
        # It has to start an interpreter first.
        assert kind["new_worker_ms"]["median"] > kind["worker_ms"]["median"]
        new, known = kind["request"]["new"], kind["request"]["known"]
        assert 0 < new["reading_share"]["median"] < 1
        assert 0 < known["reading_share"]["median"] < 1
        assert known["ms"]["median"] < new["ms"]["median"]


def test_extract_names_a_kind_that_there_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module("extract").arguments(["--kinds", "csv,doc"])
    assert "there is no kind 'doc'; choose from text," in capsys.readouterr().err


@pytest.mark.slow
def test_tune(tmp_path: Path, tiny: Path):
    out = tmp_path / "out.json"
    small = ("--rounds", "1", "--batch", "2", "--tokens", "20", "--questions", "2")
    printed = run("tune.py", "--model", tiny, *small, "--json", out)
    steps = {one["name"]: one for one in json.loads(out.read_text())["steps"]}
    assert {name: one["work_in_forwards"] for name, one in steps.items()} == {
        "all weights": 3,
        "an adapter of rank 16": 2,
    }
    for one in steps.values():
        rate = one["step_gflops"]["median"] / one["forward_gflops"]["median"]
        assert one["share"]["median"] == pytest.approx(rate)
        ratio = one["step_ms"]["median"] / one["forward_ms"]["median"]
        assert rate == pytest.approx(one["work_in_forwards"] / ratio)
        assert ratio > 1
    assert "at least 70%" in printed


def test_agreement_counts_what_differs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    agreement, labelled = map(importlib.import_module, ("agreement", "labelled"))

    def row(name: str, gold: int, reference: tuple[float, ...], served: tuple[float, ...]):
        example = labelled.Example(name, "text", Choice(["a", "b"]), ("a", "b"), gold)
        return agreement.Row("set", example, reference, served, 1.0, 1.0)

    compared = agreement.Comparison("title", "short")
    compared.rows = [
        row("same", 0, (0.9, 0.1), (0.8, 0.2)),
        row("close", 0, (0.51, 0.49), (0.47, 0.53)),
    ]
    total = compared.summary()
    assert (total["agreement"], total["reference_accuracy"], total["served_accuracy"]) == (0.5, 1, 0.5)
    assert total["max_dp"] == pytest.approx(0.1)
    assert total["mean_dp"] == pytest.approx(0.07)
    assert (total["reference_macro_f1"], total["served_macro_f1"]) == (1, pytest.approx(1 / 3))
    (flip,) = compared.flips
    assert (flip["id"], flip["reference"], flip["served"]) == ("close", "a", "b")
    assert flip["reference_margin"] == pytest.approx(0.02)
    assert flip["served_margin"] == pytest.approx(0.06)


SMALL = (
    *("--layers", "2", "--hidden", "256", "--intermediate", "384", "--experts", "4", "--expert-width", "96"),
    *("--heads", "2", "--vocab", "22100"),
)


@pytest.mark.slow
def test_synthesize_and_big(tmp_path: Path):
    path = tmp_path / "small.gguf"
    run("synthesize.py", path, *SMALL)
    whole = path.read_bytes()
    # As if it had been killed: within the header, within a tensor, and behind the last one.
    for size in (1000, len(whole) - 2_000_000, len(whole)):
        (tmp_path / "again.gguf.part").write_bytes(whole[:size])
        run("synthesize.py", tmp_path / "again.gguf", *SMALL)
        assert (tmp_path / "again.gguf").read_bytes() == whole
        (tmp_path / "again.gguf").unlink()
    out = tmp_path / "out.json"
    printed = run("big.py", path, "--rounds", "1", "--tokens", "10", "--json", out)
    report = json.loads(out.read_text())
    assert report["file_bytes"] == len(whole)
    assert report["peak"] >= report["loaded"] > report["before"] > 0
    assert report["first_ms"] > 0
    assert report["repeated_counts"]["rows_prefill"] == 0
    # Of the same request again only the canvas is computed, where there are kernels.
    assert report["repeated_counts"]["rows_read"] == 6 or not report["row_invariant"]
    assert [line.split()[1] for line in printed.splitlines() if line.startswith(("│ 16", "│ 64"))] == [
        "16",
        "64",
    ]


@pytest.mark.slow
def test_synthesize_a_folder(tmp_path: Path):
    run("synthesize.py", tmp_path / "out", *SMALL, "--no-vision")
    first = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    (shard,) = (name for name in first if name.endswith(".safetensors"))
    (tmp_path / "out" / shard).rename(tmp_path / "out" / f"{shard}.part")
    with (tmp_path / "out" / f"{shard}.part").open("r+b") as file:
        file.truncate(len(first[shard]) // 2)
    run("synthesize.py", tmp_path / "out", *SMALL, "--no-vision")
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == first
    model = load_checkpoint(tmp_path / "out")
    logits = model.decode([3, 5], model.prefill(list(range(5, 40))))
    assert 0.5 < logits.std() < 2


@pytest.mark.slow
def test_formats(data: Path):
    printed = run("formats.py", "--data", data, "--sets", "weather,spam", "--rows", "4", "--types", "Q4_K")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if "%" in line]
    assert [(row[0], row[3]) for row in rows if row[3] != "kernels"] == [
        ("Q4_K", "torch"),
        ("Q4_K", "padded"),
    ]
    assert all(float(row[6]) < 0.5 for row in rows)


@pytest.mark.slow
def test_kernels():
    report = json.loads(
        run("kernels.py", "--no-layers", "--rounds", "1", "--rows", "1", "4", "--json").splitlines()[-1]
    )
    assert {one["type"] for one in report["types"]} == {"Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1", "Q8_0"}
    assert all(0.003 < one["error"] < 0.01 for one in report["types"])
