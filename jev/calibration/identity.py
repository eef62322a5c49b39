"""What a calibration belongs to: the model's weights and the words of the prompt."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from jev.errors import InvalidRequestError
from jev.extractors import Evidence
from jev.joint import plan_joint
from jev.material import NOTHING, Material
from jev.plan import Plan
from jev.prompt import PromptContext, plan_isolated
from jev.schemas import Choice, Noul, Question, Score, SystemOneRequest


@dataclass(frozen=True)
class Identity:
    """A model as calibrations tell it from others.

    Attributes:
        model: its name; for people, two names of the same weights are the same model.
        weights: digest of its config and tensors (`jev.model.weights.identity`), and of its adapter if it
            has one.
        prompt: digest of the prompts that it is asked with (`prompt_digest`).
        precision: as the setting `dtype`; "" if not known. Another one is worth a warning.
    """

    model: str
    weights: str
    prompt: str
    precision: str = ""

    def adapted(self, name: str, digest: str) -> Identity:
        """The same model with an adapter: to calibrations it is another one."""
        weights = hashlib.sha256(f"{self.weights}+{digest}".encode()).hexdigest()
        return dataclasses.replace(self, model=f"{self.model}+{name}", weights=weights)


_QUESTIONS: dict[str, Question] = {
    "a": Noul("Is it?"),
    "b": Noul(true="so", false="not so"),
    "c": Noul(false="not so"),
    "d": Choice("Which?", {"one": "first", "two": None, "three": "last"}),
    "e": Choice(["one", "two"]),
    "f": Score("How much?", ["none", "some", "much"]),
    "g": Score([str(level) for level in range(10)]),
}
_EVIDENCE = Evidence(name="a.txt", kind="text", text="Evidence.", pictures=(), notes=("A note.",), sha256="0")


def prompt_digest(context: PromptContext) -> str:
    """SHA-256 in hex of the prompts, canvases and labels of a few fixed requests, in token ids.

    Made of real prompts, so that no change of wording, template, labels or tokenizer can be forgotten.
    Takes a few milliseconds; the deployment's own limits do not matter.
    """
    far = dataclasses.replace(context, max_context=2**20, max_request_tokens=2**20)
    digest = hashlib.sha256()
    for plan in _plans(far):
        for unit in plan.units:
            slots = [(slot.position, slot.labels, slot.order) for slot in unit.slots]
            digest.update(repr((unit.prefix, unit.branch, unit.canvas, slots)).encode())
    return digest.hexdigest()


def _plans(context: PromptContext) -> Iterator[Plan]:
    """Requests that show every piece of wording in both layouts."""
    many = {f"{number}": Noul("Is it?") for number in range(11)}
    for material in (NOTHING, Material(evidence=(_EVIDENCE,))):
        for instructions in (None, "Be strict."):
            request = SystemOneRequest(state="A state.", questions=_QUESTIONS, instructions=instructions)
            yield plan_isolated(request, context, material)
            for questions in (*({name: one} for name, one in _QUESTIONS.items()), _QUESTIONS, many):
                # Few rows a canvas, so that there are several and the words about that are used.
                update = {
                    "layout": "joint",
                    "questions": questions,
                    "chunk_prompt": "shared",
                    "chunk_rows": 16,
                }
                try:
                    yield plan_joint(request.model_copy(update=update), context, material)
                except InvalidRequestError:  # a canvas or a tokenizer that cannot hold it answers it never
                    continue
