"""Request -> plan, joint layout: all questions in the system text, one canvas of answers a chunk.

The layout of seeded structured reads as TensorSharp and vLLM's example server use it: right for one
fixed schema over many short states, whose system text is then the cached prefix. Questions of a
chunk share a canvas, so their answers may influence each other.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from jev.errors import InvalidRequestError
from jev.fit import Fit
from jev.material import NOTHING, Material
from jev.parts import Gallery, place, sizes
from jev.plan import Group, NoiseSource, Plan, Slot, Unit, alternatives
from jev.prompt import PromptContext
from jev.schemas import Noul, Question, Score, SystemOneRequest, render_text
from jev.wording import EVIDENCE, instructions_text, label_lines

MAX_OPTIONS = 26
MAX_ID = 128
LINES_UP_TO = 10
"""Requests of more questions use the indexed form, all answers on one line."""

CANVAS_STEP = 16
CHUNK_SEED, READ_SEED = 104729, 7919

_TASK = (
    "Answer the questions below about the state that the user sends. "
    "Each question lists its labels; give exactly one of them for each question."
)
_LINES = 'Reply with one line for each question, in this order, written as "id: label".'
_INDEXED = "Reply on a single line: each id directly followed by its label, one space between questions."
_PARTIAL = "A reply may cover only some of the questions."


@dataclass(frozen=True)
class _Asked:
    """A question with its id and label texts."""

    name: str
    question: Question
    labels: tuple[str, ...]


def plan_joint(request: SystemOneRequest, context: PromptContext, material: Material = NOTHING) -> Plan:
    """Lay the questions of `request` on as few shared canvases as hold them.

    Raises:
        InvalidRequestError: for ids that cannot stand in a canvas, more than 26 options, labels
            that do not take exactly one row each, and what does not fit.
    """
    if request.permutations != 1:
        raise InvalidRequestError.at("permutations", msg="The joint layout reads one order only")
    fit = Fit(request, material, context.tokenizer.longest)
    fit.check_characters(context.max_context, context.max_request_tokens)
    asked = [
        _Asked(name, question, _label_texts(name, question))
        for name, question in request.questions.items()
        if alternatives(question) > 1
    ]
    indexed = len(request.questions) > LINES_UP_TO
    limit = min(context.canvas_length, request.chunk_rows or context.canvas_length)
    chunks = _chunks(asked, indexed, limit, context)
    gallery = Gallery(context.vision, context.soft_tokens, material, fit, most_rows=context.max_context)
    parts = gallery.parts(render_text(request.state).strip(), material.evidence)
    state = (*context.template.rows(sizes(parts)), *context.template.answer_turn)
    images = place(parts, state, context.template)
    evidence = bool(material)
    groups = []
    prefix: tuple[int, ...] = ()
    prompt = rows = 0
    for number, chunk in enumerate(chunks):
        shared = request.chunk_prompt == "shared" and len(chunks) > 1
        if not (shared and prefix):
            system = _system_text(
                request, asked if shared else chunk, indexed, partial=shared, evidence=evidence
            )
            if any(placeholder in system for placeholder in material.assets):
                raise InvalidRequestError.at(
                    "assets", msg="In the joint layout an asset may stand in the state only"
                )
            prefix = context.template.open_user(system)
        canvas, slots = _canvas(chunk, indexed, limit, context)
        noise = NoiseSource(context.vocab_size, request.seed + CHUNK_SEED * number, stride=READ_SEED)
        needed = len(prefix) + len(state) + len(canvas)
        names = tuple(one.name for one in (asked if shared else chunk))
        fit.check(needed, context.max_context, fit.all_at_once, names)
        rows += needed
        # Checked chunk by chunk, so that no more is tokenised than what is the first too much.
        fit.check(rows, context.max_request_tokens, "the whole request", tuple(request.questions), least=True)
        prompt += len(prefix) + len(state)
        unit = Unit(prefix, state, canvas, slots, noise, branch_images=images)
        groups.append(Group((unit,), tuple(one.name for one in chunk)))
    answer = sum(_rows(chunk, indexed, context) for chunk in chunks)
    return Plan(request, tuple(groups), prompt, answer, material.evidence)


def _label_texts(name: str, question: Question) -> tuple[str, ...]:
    if (
        not name.strip()
        or name != name.strip()
        or len(name) > MAX_ID
        or ":" in name
        or any(unicodedata.category(character) == "Cc" for character in name)
    ):
        raise InvalidRequestError.at(
            "questions",
            name,
            msg=f"In the joint layout an id has 1 to {MAX_ID} characters, no ':', no control "
            "characters and no space at either end",
        )
    count = alternatives(question)
    if count > MAX_OPTIONS:
        raise InvalidRequestError.at(
            "questions",
            name,
            "criteria",
            msg=f"{count} options; the joint layout takes at most {MAX_OPTIONS}, the isolated one more",
        )
    if isinstance(question, Noul):
        return ("yes", "no")
    if isinstance(question, Score) and count <= 9:
        return tuple(str(level + 1) for level in range(count))
    return tuple(chr(ord("A") + index) for index in range(count))


def _system_text(
    request: SystemOneRequest, asked: Sequence[_Asked], indexed: bool, *, partial: bool, evidence: bool
) -> str:
    blocks = [_TASK, EVIDENCE] if evidence else [_TASK]
    if request.instructions is not None and (extra := render_text(request.instructions).strip()):
        blocks.append(extra)
    for one in asked:
        lines = label_lines(one.question, one.labels, range(len(one.labels)))
        question = f"Question {one.name}: {instructions_text(one.question)}"
        blocks.append("\n".join([question, *(f"  {line}" for line in lines)]))
    blocks.append(_INDEXED if indexed else _LINES)
    if partial:
        blocks.append(_PARTIAL)
    return "\n\n".join(blocks)


def _answer_text(chunk: Sequence[_Asked], labels: Sequence[str], indexed: bool) -> str:
    if indexed:
        return " ".join(f"{one.name}{label}" for one, label in zip(chunk, labels, strict=True))
    return "\n".join(f"{one.name}: {label}" for one, label in zip(chunk, labels, strict=True))


def _rows(chunk: Sequence[_Asked], indexed: bool, context: PromptContext) -> int:
    """Canvas rows that a chunk's answers take with the thought before and the turn end after."""
    basis = _answer_text(chunk, [one.labels[0] for one in chunk], indexed)
    return len(context.template.empty_thought) + len(context.tokenizer.encode(basis)) + 1


def _chunks(asked: Sequence[_Asked], indexed: bool, limit: int, context: PromptContext) -> list[list[_Asked]]:
    """Fill canvases greedily, in order."""
    chunks: list[list[_Asked]] = []
    for one in asked:
        if chunks and _rows([*chunks[-1], one], indexed, context) <= limit:
            chunks[-1].append(one)
            continue
        rows = _rows([one], indexed, context)
        if rows > limit:
            raise InvalidRequestError.at(
                "questions", one.name, msg=f"The answer needs {rows} canvas rows, the limit is {limit}"
            )
        chunks.append([one])
    return chunks


def _canvas(
    chunk: Sequence[_Asked], indexed: bool, limit: int, context: PromptContext
) -> tuple[tuple[int, ...], tuple[Slot, ...]]:
    """The padded canvas and its slots, found by re-tokenising the answers with each label in turn."""
    encode, template = context.tokenizer.encode, context.template
    first = [one.labels[0] for one in chunk]
    basis = encode(_answer_text(chunk, first, indexed))
    offset = len(template.empty_thought)
    slots: list[Slot] = []
    for index, one in enumerate(chunk):
        position: int | None = None
        ids = []
        for label in one.labels[1:]:
            other = encode(_answer_text(chunk, [*first[:index], label, *first[index + 1 :]], indexed))
            differs = [row for row, pair in enumerate(zip(basis, other, strict=False)) if len(set(pair)) > 1]
            if len(other) != len(basis) or len(differs) != 1 or position not in (None, differs[0]):
                raise InvalidRequestError.at(
                    "questions",
                    one.name,
                    msg=f"The label {label!r} does not take exactly one canvas row behind this id; "
                    "use another id or the isolated layout",
                )
            position = differs[0]
            ids.append(other[position])
        assert position is not None  # two labels at least
        ids.insert(0, basis[position])
        if len(set(ids)) != len(ids) or any(slot.position == offset + position for slot in slots):
            raise InvalidRequestError.at(
                "questions", one.name, msg="Its labels do not have a canvas row and tokens of their own"
            )
        slots.append(Slot(one.name, offset + position, tuple(ids), tuple(range(len(ids)))))
    rows = [*template.empty_thought, *basis, template.turn_end]
    width = min(limit, -(-len(rows) // CANVAS_STEP) * CANVAS_STEP)
    return (*rows, *[template.pad] * (width - len(rows))), tuple(slots)
