"""What a calibration knows a question by: a hash of the question as the model sees it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from jev.fit import orders
from jev.schemas import Question, SystemOneRequest, alternatives, render_text
from jev.wording import instructions_text, label_lines


def signatures(request: SystemOneRequest) -> dict[str, str]:
    """The signature of every question that a calibration can know, by id.

    Equal signatures mean equal words in front of the model, whatever the state. Isolated, those are the
    question's type, instructions and alternatives in order, the request-wide instructions and the
    orders that are read; its id and its neighbours do not matter, as the model does not see them.
    Joint, it sees all questions with their ids and how they share canvases, so all of that counts.

    Left out are questions with a single alternative, whose probability is 1 in any case, and those that
    an asset's placeholder stands in: what they ask depends on the asset.
    """
    extra = "" if request.instructions is None else render_text(request.instructions).strip()
    about: dict[str, Any] = {"layout": request.layout, "instructions": extra}
    if request.layout == "joint":
        about["questions"] = [[name, _content(question)] for name, question in request.questions.items()]
        about["chunks"] = [request.chunk_rows, request.chunk_prompt]
    common = _digest(about)
    found = {}
    for name, question in request.questions.items():
        if len(alternatives(question)) == 1:
            continue
        own: dict[str, Any] = {"common": common, "question": _content(question)}
        if request.layout == "joint":
            own["id"] = name
        else:
            own["orders"] = orders(question, request.permutations)
        if any(asset in words for asset in request.assets or () for words in _words(extra, own["question"])):
            continue
        found[name] = _digest(own)
    return found


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()


def _words(extra: str, content: list[Any]) -> list[str]:
    """Every text of a question that a placeholder may stand in."""
    return [extra, content[1], *content[2]]


def _content(question: Question) -> list[Any]:
    """The question's type and the words that stand for it in a prompt; labels depend on these alone."""
    count = len(alternatives(question))
    return [
        question.type,
        instructions_text(question),
        label_lines(question, [""] * count, range(count)),
    ]
