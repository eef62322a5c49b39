"""Measure how fast attachments are read, what the worker processes cost, and how much of a request it is.

Each file is read in this process, in a worker process that runs, and in one that has to start first; then
a request with one page of the same kind is answered by the model, with the file new and with it known.
Calls take turns, so that a machine that changes its speed changes it for all of them.

    python benchmarks/extract.py
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from common import Quartiles, add_json_option, console, machine, machine_line, parser_of, progress, say, table
from files import KINDS, MODEL, SPEECH, File, folder_of, make, missing
from rich.console import Console
from texts import questions
from timing import Variant, run_rounds

from jev.attachments import NoFiles, Reader, reader_of, sources_of
from jev.engine import Engine
from jev.extractors import AudioOptions, Limits, Options, Pool
from jev.extractors.extract import extract
from jev.schemas import parse_json, parse_request
from jev.settings import Settings

MIB = 2**20
NO_CACHE = {"max_cached_transcripts": 0}
"""Limits under which speech is heard each time."""
NAME = b"{name}"


class Request(Variant):
    """A request with one file, from the bytes of its body to its answer.

    Attributes:
        reading: seconds of each round from the attachment's base64 to its evidence.

    """

    def __init__(self, file: File, engine: Engine, reader: Reader, *, known: bool) -> None:
        super().__init__(f"{file.kind}, {'known' if known else 'new'} file", self._decide)
        self.engine, self.reader, self.known = engine, reader, known
        self.reading: list[float] = []
        entry = {"name": f"{NAME.decode()}-{file.name}", "data": base64.b64encode(file.data).decode()}
        asked = {key: one.model_dump() for key, one in questions(1).items()}
        body = {"state": "Read the attachment.", "questions": asked, "samples": 1, "files": [entry]}
        self._body = json.dumps(body).encode()

    @property
    def share(self) -> Quartiles:
        """How much of its time went into reading, round by round."""
        return Quartiles.of([a / b for a, b in zip(self.reading, self.seconds, strict=True)])

    def _decide(self, number: int) -> None:
        # A file with another name is another file to the caches of evidence and of prompts.
        name = b"known" if self.known else str(number).encode()
        request, _ = parse_request(parse_json(self._body.replace(NAME, name)))
        started = time.perf_counter()
        sources = sources_of(request, {}, NoFiles(), self.reader.pool.limits)
        material = self.reader.read_sync(sources)
        if number >= 0:
            self.reading.append(time.perf_counter() - started)
        self.engine.decide(request, material)


@dataclass(frozen=True)
class Measured:
    """One kind of file and its variants; see the module's text."""

    file: File
    here: Variant
    worker: Variant
    cold: Variant
    new: Request
    known: Request

    @property
    def overhead_ms(self) -> Quartiles:
        """What a running worker adds, round by round."""
        pairs = zip(self.worker.seconds, self.here.seconds, strict=True)
        return Quartiles.of([1000 * (worker - here) for worker, here in pairs])

    def rate(self, amount: float) -> Quartiles:
        """`amount` a second, read in this process."""
        return Quartiles.of([amount / one for one in self.here.seconds])


def measure(kind: str, pages: int, rounds: int, engine: Engine, settings: Settings) -> Measured:
    """Run all variants of a kind."""
    file = make(kind, pages)
    audio = _audio(settings) if file.speech else None
    limits, options = Limits(**NO_CACHE), Options(ocr=file.ocr, audio=audio)
    slots = limits.max_images

    def cold(_: int) -> object:
        with Pool(limits, options, workers=1) as started:
            return started.extract_sync(file.data, file.name, picture_slots=slots)

    calls: dict[str, Callable[[int], object]] = {
        "in process": lambda _: extract(file.data, file.name, limits, picture_slots=slots, options=options),
        "worker": lambda _: pool.extract_sync(file.data, file.name, picture_slots=slots),
        "new worker": cold,
    }
    reader = reader_of(settings, has_vision=engine.has_vision)
    try:
        with Pool(limits, options, workers=1) as pool:
            here, worker, fresh = (Variant(f"{kind}, {where}", call) for where, call in calls.items())
            page = make(kind, 1)
            new, known = (Request(page, engine, reader, known=known) for known in (False, True))
            run_rounds([here, worker, new, known], rounds)
            run_rounds([fresh], rounds, warm_up=0)
    finally:
        reader.close()
    return Measured(file, here, worker, fresh, new, known)


def _audio(settings: Settings) -> AudioOptions:
    return AudioOptions(model=settings.speech_model, language=settings.speech_language)


def show(out: Console, measured: Sequence[Measured]) -> None:
    """Print both tables."""
    made = table(
        "Reading a file: median (quartiles) in this process; medians of the rest",
        "kind", "KiB", "holds", "ms", "MiB/s", "a second", "worker ms", "worker adds ms", "new worker ms",
    )  # fmt: skip
    for one in measured:
        file = one.file
        made.add_row(
            file.kind,
            f"{len(file.data) / 1024:.0f}",
            f"{file.count:.3g} {file.unit}{'s' * (file.count != 1)}",
            one.here.ms.shown(1 if one.here.ms.median < 100 else 0),
            f"{one.rate(len(file.data) / MIB).median:.2f}",
            f"{_short(one.rate(file.count).median)} {file.unit}s",
            f"{one.worker.ms.median:.1f}",
            f"{one.overhead_ms.median:.1f}",
            f"{one.cold.ms.median:.0f}",
        )
    out.print(made)
    made = table(
        "A request with one page, picture, clip or recording and one question: median (quartiles)",
        "kind", "new file: ms", "of it reading", "share", "known file: ms", "of it reading", "share",
    )  # fmt: skip
    for one in measured:
        cells = []
        for request in (one.new, one.known):
            reading = Quartiles.of([1000 * seconds for seconds in request.reading])
            cells += [request.ms.shown(0), f"{reading.median:.1f}", f"{request.share.median:.0%}"]
        made.add_row(one.file.kind, *cells)
    out.print(made)


def _short(number: float) -> str:
    """Three digits, or all before the point if they are more."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def report(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return the same as plain values."""
    plain = dataclasses.asdict
    return [
        {
            "kind": one.file.kind,
            "bytes": len(one.file.data),
            "unit": one.file.unit,
            "count": one.file.count,
            "ms": plain(one.here.ms),
            "mib_per_second": plain(one.rate(len(one.file.data) / MIB)),
            "units_per_second": plain(one.rate(one.file.count)),
            "worker_ms": plain(one.worker.ms),
            "worker_adds_ms": plain(one.overhead_ms),
            "new_worker_ms": plain(one.cold.ms),
            "request": {
                name: {"ms": plain(request.ms), "reading_share": plain(request.share)}
                for name, request in (("new", one.new), ("known", one.known))
            },
        }
        for one in measured
    ]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS), help="which of " + ", ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=3, help="calls of each variant (default 3)")
    parser.add_argument("--pages", type=int, default=16, help="pages of a document (default 16)")
    parser.add_argument("--threads", type=int, help="torch threads")
    add_json_option(parser)
    args = parser.parse_args(argv)
    args.kinds = args.kinds.split(",")
    if unknown := [kind for kind in args.kinds if kind not in KINDS]:
        parser.error(f"--kinds: there is no kind {unknown[0]!r}; choose from {', '.join(KINDS)}")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = machine(args.threads)
    for kind in list(args.kinds):
        if lacking := missing(kind):
            progress(f"{kind} is left out: it needs {lacking}")
            args.kinds.remove(kind)
    speech = folder_of(MODEL) if any(kind in SPEECH for kind in args.kinds) else None
    given = {"speech_model": str(speech / "model"), "speech_language": "en"} if speech else {}
    settings = Settings.load(extract_workers=1, limits=NO_CACHE, **given)
    engine = Engine.load()
    measured = []
    for kind in args.kinds:
        progress(kind)
        measured.append(measure(kind, args.pages, args.rounds, engine, settings))
    facts |= {"model": engine.name, "rounds": args.rounds}
    if say({"machine": facts, "kinds": report(measured)}, args.json):
        out = console()
        out.print(f"{engine.name}, {args.rounds} rounds; {machine_line(facts)}")
        show(out, measured)


if __name__ == "__main__":
    main()
