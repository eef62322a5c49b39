"""A file of replies by request, so that a run that was stopped goes on and a second report costs nothing."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from jev.quality.data import DataError
from jev.quality.replies import Judgement, Reply
from jev.schemas import SystemOneRequest, parse_json


def key_of(identity: str, request: SystemOneRequest) -> str:
    """A hash of who is asked (name, model and fingerprint of a backend) and of the whole request."""
    digest = hashlib.sha256(f"{identity}\0".encode())
    digest.update(request.model_dump_json().encode())
    return digest.hexdigest()


class ReplyCache:
    """Replies in a JSONL file; a line that a kill cut short is dropped when the file is opened.

    Args:
        path: the file.
        ours: whether nobody else can have made it: then it may hold nothing but a line that was cut short.

    Raises:
        DataError: the file is no such cache, or cannot be written.
    """

    def __init__(self, path: Path, *, ours: bool = False) -> None:
        self._path = path
        self._ours = ours
        self._replies: dict[str, Reply] = {}
        try:
            # Appending creates the file if need be, and never empties what is there.
            self._stream = path.open("ab+")
        except OSError as error:
            raise DataError(f"{path}: cannot be written ({error.strerror})") from None
        try:
            self._load()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stream.close()

    def get(self, key: str) -> Reply | None:
        """The reply to a request seen before."""
        return self._replies.get(key)

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply; it is in the file when this returns."""
        self._replies[key] = reply
        line = json.dumps({"key": key, **_plain(reply)}, ensure_ascii=False, separators=(",", ":"))
        self._stream.write(f"{line}\n".encode())
        self._stream.flush()

    def _load(self) -> None:
        self._stream.seek(0)
        end = 0
        for number, line in enumerate(self._stream, 1):
            if not line.endswith(b"\n"):
                break
            try:
                entry = parse_json(line)
                self._replies[entry["key"]] = _reply(entry)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                raise DataError(
                    f"{self._path}: line {number} is no reply that jev quality kept; give another --cache"
                ) from None
            end += len(line)
        if end < self._stream.seek(0, io.SEEK_END):
            if end == 0 and not self._ours:  # no whole line of ours: it may be anybody's file
                raise DataError(f"{self._path}: it is no cache of jev quality; give another --cache")
            self._stream.truncate(end)


def _plain(reply: Reply) -> dict[str, Any]:
    return {
        "answers": {
            name: {"p": list(answer.probabilities), "winner": answer.winner}
            for name, answer in reply.answers.items()
        },
        "seconds": reply.seconds,
        "input_tokens": reply.input_tokens,
        "output_tokens": reply.output_tokens,
        "rounded": reply.rounded,
    }


def _reply(entry: dict[str, Any]) -> Reply:
    answers = cast("dict[str, dict[str, Any]]", entry["answers"])
    return Reply(
        answers={
            name: Judgement(tuple(map(float, answer["p"])), int(answer["winner"]))
            for name, answer in answers.items()
        },
        seconds=float(entry["seconds"]),
        input_tokens=int(entry["input_tokens"]),
        output_tokens=int(entry["output_tokens"]),
        rounded=bool(entry["rounded"]),
        cached=True,
    )
