"""The folder of a run: whose it is, what it is of, and what of it is there already."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jev.quality.data import DataError
from jev.tune.keep import write_json
from jev.tune.recipe import TuneError

RUN = "run.json"
TEACHER = "teacher.jsonl"
REPORT = "tune.json"


class Place:
    """`--out`: the result's folder, with the run's own files in `training` below it.

    Args:
        out: the folder.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.training = out / "training"
        self._held: int | None = None

    @property
    def report(self) -> dict[str, Any] | None:
        """What the finished run says of itself; None while it is not finished."""
        path = self.out / REPORT
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    @property
    def begun(self) -> bool:
        """Whether a run has begun to train here."""
        return (self.training / RUN).exists()

    def check(self, inputs: Sequence[Path] = (), *, restart: bool = False) -> None:
        """Refuse a folder that is somebody else's, before anything is loaded; with `restart` empty ours.

        Args:
            inputs: files and folders that the run reads.
            restart: throw away what an earlier run has left.

        Raises:
            TuneError: naming it.
        """
        for file in inputs:
            if self.out.resolve() in (file.resolve(), *file.resolve().parents):
                raise TuneError(f"--out {self.out}: {file} is in it; give a folder of its own")
        if self.out.exists() and not self.out.is_dir():
            raise TuneError(f"--out {self.out}: it is not a folder")
        if not self.out.parent.is_dir():
            raise TuneError(f"--out {self.out}: there is no folder {self.out.parent}")
        ours = self.out.is_dir() and (self.begun or self._before_a_run())
        if self.out.is_dir() and any(self.out.iterdir()) and not ours:
            raise TuneError(f"--out {self.out}: it holds other files; give an empty or new folder")
        if ours:
            self.hold()
        if restart and ours:
            shutil.rmtree(self.out)
            self.close()

    def _before_a_run(self) -> bool:
        """Whether it holds nothing but what is there before a run begins: a teacher's answers."""
        if {file.name for file in self.out.iterdir()} != {self.training.name} or not self.training.is_dir():
            return False
        return {file.name for file in self.training.iterdir()} <= {TEACHER, f"{RUN}.part"}

    def hold(self) -> None:
        """Make the folder, and keep other runs out of it until `close` or the end of this process.

        Raises:
            TuneError: another run is at work in it.
        """
        self.training.mkdir(parents=True, exist_ok=True)
        if self._held is not None:
            return
        self._held = os.open(self.training, os.O_RDONLY)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise TuneError(f"--out {self.out}: another run is at work in it") from None
        except OSError:
            pass  # a file system without locks

    def close(self) -> None:
        """Let others in again."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Note what run this is, so that no other one goes on with it.

        Raises:
            TuneError: another run is at work in the folder, or has been meanwhile.
        """
        self.hold()
        self.compare(facts)
        write_json(self.training / RUN, facts)

    def compare(self, facts: Mapping[str, Any]) -> None:
        """Refuse to go on with a run that is another one.

        Args:
            facts: what makes it this run, as far as it is known: plain values by name, or such mappings.

        Raises:
            TuneError: naming what differs.
        """
        path = self.training / RUN
        mine = json.loads(json.dumps(facts))
        if not path.exists():
            return
        try:
            there = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise TuneError(f"{path} cannot be read ({error}); --restart begins anew") from None
        # The run knows more of itself by and by: what it does not know yet is compared later.
        differs = list(_differences({name: there.get(name) for name in mine}, mine))
        if differs:
            raise TuneError(
                f"--out {self.out} is of another run: {'; '.join(differs)}. "
                "Give another folder, or --restart to begin anew"
            )

    def done(self, report: Mapping[str, Any]) -> None:
        """Write the report, and drop what only an unfinished run needs."""
        write_json(self.out / REPORT, report)
        for file in self.training.glob("*.pt*"):
            file.unlink()


def digest(*files: Path) -> str:
    """SHA-256 in hex of what files hold.

    Raises:
        DataError: one cannot be read.
    """
    found = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as opened:
                found.update(hashlib.file_digest(opened, "sha256").digest())
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror})") from None
    return found.hexdigest()


def _differences(there: Mapping[str, Any], mine: Mapping[str, Any], before: str = ""):
    for name in dict.fromkeys((*there, *mine)):
        old, new = there.get(name), mine.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, before)
        elif old != new:
            yield f"{before}{name} was {_told(old)} and is {_told(new)}"


def _told(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"
