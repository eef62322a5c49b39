"""What tuning does on whole data sets: python examples/learn/sets.py DATA/trec DATA/banking77 --minutes 20

Each folder holds train.jsonl.gz and test.jsonl.gz with a text and a label a row. All labels of a set are
the options of one question. Prints accuracy, NLL and calibration error before and after, on test rows.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def read(file: Path, limit: int) -> list[dict[str, Any]]:
    """The first rows of a file."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line, _ in zip(lines, range(limit), strict=False)]


def write(file: Path, rows: list[dict[str, Any]], words: dict[str, str]) -> None:
    """The rows as `jev tune` and `jev quality` take them."""
    with file.open("w", encoding="utf-8") as out:
        for row in rows:
            answers = {"label": words[row["label"]]}
            out.write(json.dumps({"id": row["id"], "state": row["text"], "answers": answers}) + "\n")


def run(*words: str | Path) -> None:
    """Run a command of jev; what it shows goes to the terminal."""
    print(f"$ jev {' '.join(map(str, words))}", flush=True)
    done = subprocess.run([sys.executable, "-m", "jev", *map(str, words)], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def tune(data: Path, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Tune on a set; the figures before and after."""
    train = read(data / "train.jsonl.gz", given.train)
    test = read(data / "test.jsonl.gz", given.test)
    labels = sorted({row["label"] for row in train + test})
    words = {label: label.replace("_", " ").rstrip("?").lower() for label in labels}
    write(folder / "train.jsonl", train, words)
    write(folder / "test.jsonl", test, words)
    question = {
        "type": "choice",
        "instructions": given.instructions,
        "criteria": dict.fromkeys(words[label] for label in labels),
    }
    (folder / "questions.json").write_text(json.dumps({"label": question}))
    run(
        "tune",
        *("--data", folder / "train.jsonl", "--held-out", folder / "test.jsonl"),
        *("--questions", folder / "questions.json", "--out", folder / "adapter"),
        *("--minutes", f"{given.minutes:g}", "--processes", str(given.processes), "--restart"),
        *given.more,
    )
    report = json.loads((folder / "adapter" / "tune.json").read_text())
    return {"labels": len(labels), "before": report["before"], "after": report["after"]}


def main() -> None:
    """Tune on every set and print a table."""
    epilog = "Further flags of jev tune may follow behind --."
    parser = argparse.ArgumentParser(description=__doc__, epilog=epilog)
    parser.add_argument("data", type=Path, nargs="+", help="folders of sets")
    parser.add_argument("--minutes", type=float, default=20, help="time to tune on each")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--train", type=int, default=20_000, help="most rows to learn from")
    parser.add_argument("--test", type=int, default=500, help="most rows to measure with")
    parser.add_argument("--instructions", default="Which label fits the text?")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where results go; by default a temporary one"
    )
    # argparse leaves nothing to a second list of positionals once options stand between the two.
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:cut], argparse.Namespace(more=words[cut + 1 :]))
    root = given.folder or Path(tempfile.mkdtemp(prefix="jev-sets-"))
    found = {}
    for data in given.data:
        folder = root / data.name
        folder.mkdir(parents=True, exist_ok=True)
        found[data.name] = tune(data, folder, given)
    print(f"{'set':<14}{'labels':>7}{'accuracy':>18}{'NLL':>16}{'ECE':>16}")
    for name, one in found.items():
        before, after = one["before"], one["after"]
        cells = [f"{before[key]:.3f} -> {after[key]:.3f}" for key in ("accuracy", "nll", "ece")]
        print(f"{name:<14}{one['labels']:>7}{cells[0]:>18}{cells[1]:>16}{cells[2]:>16}")


if __name__ == "__main__":
    main()
