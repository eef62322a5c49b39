"""From uncertain answers to an adapter, start to end: python examples/learn/loop.py --minutes 6

A batch labels customers' messages and queues what it is unsure of; the queue is reviewed; the reviewed
rows tune an adapter; a gate compares it with the model as it was on rows that nothing has learned from;
a server answers with it. Every command is printed as it can be typed. Only the reviewer is simulated:
the known labels in tickets.jsonl press the keys that a person presses in `jev review`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

HERE = Path(__file__).parent
QUESTIONS = HERE / "questions.json"


def run(*words: str | Path, show: bool = True) -> str:
    """Run a command of jev, showing it and what it says; returns its output. What fails ends the loop."""
    print(f"\n$ {shlex.join(['jev', *map(str, words)])}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "jev", *map(str, words)], stdout=subprocess.PIPE, text=True, check=False
    )
    if show:
        print(done.stdout, end="", flush=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def review(queue: Path, out: Path, known: dict[str, str]) -> None:
    """Answer every row of the queue as `jev review QUEUE --out OUT` does when a person presses the keys."""
    from jev.review import Session, Store, load_queue
    from jev.schemas import index_of

    print(f"\n$ jev review {queue} --out {out}   # here the known labels press the keys", flush=True)
    found = load_queue(queue, out=out)
    with Store(out) as store:
        session = Session(found.items, store)
        while (item := session.current) is not None:
            session.answer(index_of(item.question, known[item.row.id or ""]))
        told = session.summary
    print(f"{told.reviewed} reviewed, {told.corrected} of them corrected")


def accuracy(text: str) -> float:
    """The accuracy in the JSON that `jev quality run --json` prints."""
    figures = json.loads(text)["backends"][0]["figures"]
    print(f"accuracy {figures['accuracy']:.3f}, NLL {figures['nll']:.3f}, {figures['n']} answers")
    return figures["accuracy"]


def ask(adapter: Path, state: str) -> None:
    """Start a server with the adapter and ask it about a message, with and without."""
    words = ["jev", "serve", "--port", "0", "--adapter", f"tickets={adapter}"]
    print(f"\n$ {shlex.join(words)}", flush=True)
    server = subprocess.Popen(
        [sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert server.stdout is not None
        url = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
        for model in ("jev-latest", "jev-latest+tickets"):
            body = {"model": model, "state": state, "questions": json.loads(QUESTIONS.read_text())}
            answer = httpx.post(f"{url}/v1/systemone", json=body, timeout=60).raise_for_status().json()
            topic = answer["answers"]["topic"]
            print(f"{model}: {topic['choice']} ({topic['probabilities'][topic['choice']]:.2f})")
    finally:
        server.terminate()
        server.wait(30)


def main() -> None:
    """Run the loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=6, help="time to tune")
    parser.add_argument("--below", type=float, default=0.9, help="review answers less certain than this")
    parser.add_argument("--limit", type=int, default=None, help="only so many messages")
    parser.add_argument("--processes", type=int, default=2, help="processes that tune")
    parser.add_argument(
        "--floor", type=float, default=None, help="accuracy that the gate asks for; by default as before"
    )
    parser.add_argument("--measure", type=int, default=160, help="messages that the gate measures with")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where everything goes; by default a temporary one"
    )
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="jev-learn-"))
    folder.mkdir(parents=True, exist_ok=True)

    rows = [json.loads(line) for line in (HERE / "tickets.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = rows[: given.limit]
    messages = folder / "messages.jsonl"  # as they come in: nobody has labelled them
    messages.write_text("".join(json.dumps({"id": row["id"], "state": row["state"]}) + "\n" for row in rows))

    out, queue = folder / "answers.jsonl", folder / "answers.review.jsonl"
    run(
        "batch",
        "run",
        "--input",
        messages,
        "--output",
        out,
        "--questions",
        QUESTIONS,
        "--review-below",
        str(given.below),
    )
    reviewed = folder / "reviewed.jsonl"
    review(queue, reviewed, {row["id"]: row["answers"]["topic"] for row in rows})

    adapter = folder / "tickets"
    run(
        "tune",
        "--data",
        reviewed,
        "--out",
        adapter,
        "--minutes",
        f"{given.minutes:g}",
        "--processes",
        str(given.processes),
    )

    measured = ["quality", "run", "--data", HERE / "held-out.jsonl", "--questions", QUESTIONS, "--json"]
    measured += ["--limit", str(given.measure)]
    before = accuracy(run(*measured, show=False))
    floor = before if given.floor is None else given.floor
    gate = [
        "--adapter",
        f"tickets={adapter}",
        "--backend",
        "torch+tickets",
        "--fail-under",
        f"accuracy={floor!r}",
    ]
    after = accuracy(run(*measured, *gate, show=False))
    print(f"\naccuracy on messages that nothing has learned from: {before:.3f} before, {after:.3f} after")

    ask(adapter, "I see the same coffee twice on my statement, but I only bought one.")


if __name__ == "__main__":
    main()
