"""Request -> plan, isolated layout: one branch and one canvas for every question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jev.errors import InvalidRequestError
from jev.labels import Label, Labels
from jev.material import NOTHING, Material
from jev.model.template import Template
from jev.model.tokenizer import Tokenizer
from jev.model.vision_config import VisionConfig
from jev.parts import Gallery, place, sizes
from jev.plan import Group, NoiseSource, PlacedImage, Plan, Slot, Unit, alternatives, content_key
from jev.schemas import Choice, Noul, Question, SystemOneRequest, render_text
from jev.wording import instructions_text, label_lines, system_text


@dataclass(frozen=True)
class PromptContext:
    """What prompts are built with: the loaded checkpoint's tokenizer, layout, labels and limits.

    Attributes:
        vocab_size: ids that slot noise is drawn from.
        canvas_length: widest canvas of the checkpoint.
        max_context: most prompt and canvas rows of one read.
        max_request_tokens: most prompt and canvas rows of one request over all its questions.
        vision: the vision tower's shape; None = pictures cannot be shown.
        soft_tokens: rows a picture may take; None = the checkpoint's own budget.
    """

    tokenizer: Tokenizer
    template: Template
    labels: Labels
    vocab_size: int
    canvas_length: int
    max_context: int
    max_request_tokens: int
    vision: VisionConfig | None = None
    soft_tokens: int | None = None


def plan_isolated(request: SystemOneRequest, context: PromptContext, material: Material = NOTHING) -> Plan:
    """Lay every question of `request` on a branch and canvas of its own.

    Raises:
        InvalidRequestError: when a question cannot be labelled, or state and question do not fit.
    """
    check_length(request, context, material)
    template = context.template
    gallery = Gallery(
        context.vision,
        context.soft_tokens,
        material.assets,
        most_rows=context.max_context,
        longest=context.tokenizer.longest,
    )
    parts = gallery.parts(render_text(request.state), material.evidence)
    system = system_text(request.instructions, evidence=bool(material))
    prefix = template.open_user(system, sizes(parts))
    images = place(parts, prefix, template)
    check_fit(len(prefix), context.max_context, "the state")
    groups = []
    branches = canvases = 0
    for name, question in request.questions.items():
        if alternatives(question) == 1:
            continue
        units = []
        for order in rotations(question, request.permutations):
            unit = _unit(name, question, order, (prefix, images), request.seed, context, gallery)
            branches += len(unit.branch)
            canvases += len(unit.canvas)
            # Checked one by one, so that no more is tokenised than what is the first too much.
            check_fit(
                len(prefix) + len(unit.branch) + len(unit.canvas),
                context.max_context,
                f"the state with the question {name[:64]!r}",
                loc=_longer(name, len(unit.branch), len(prefix)),
            )
            check_fit(
                len(prefix) + branches + canvases, context.max_request_tokens, "the whole request", least=True
            )
            units.append(unit)
        groups.append(Group(tuple(units), (name,)))
    return Plan(request, tuple(groups), len(prefix) + branches, canvases, material.evidence)


def rotations(question: Question, permutations: int) -> list[tuple[int, ...]]:
    """Orders in which the alternatives are listed: for a choice up to `permutations` rotations.

    A choice of n options has n rotations; fewer are spread evenly over them.
    """
    count = alternatives(question)
    times = min(permutations, count) if isinstance(question, Choice) else 1
    shifts = [count * turn // times for turn in range(times)]
    return [tuple((index + shift) % count for index in range(count)) for shift in shifts]


def labels_for(name: str, question: Question, labels: Labels) -> Sequence[Label]:
    """The label tokens of a question, one for each alternative."""
    count = alternatives(question)
    pool = (
        labels.noul
        if isinstance(question, Noul)
        else labels.choice
        if isinstance(question, Choice)
        else labels.score
    )
    if count > len(pool):
        raise InvalidRequestError.at(
            "questions",
            name,
            "criteria",
            msg=f"{count} options, but this model's tokenizer has labels for {len(pool)}",
        )
    return pool[:count]


def _longer(name: str, question: int, state: int) -> tuple[str, ...]:
    """Where in the body the longer of a question and the state stands."""
    return ("questions", name) if question > state else ("state",)


def check_fit(
    needed: int, limit: int, what: str, *, least: bool = False, loc: tuple[str, ...] = ("state",)
) -> None:
    """Refuse what is longer than `limit` tokens, naming both numbers; `least` = it may be longer still."""
    if needed > limit:
        raise InvalidRequestError.at(
            *loc,
            msg=f"Too long: {what} needs {'at least ' if least else ''}{needed} tokens, the limit is {limit}",
            type="tokens_exceeded",
        )


def check_length(request: SystemOneRequest, context: PromptContext, material: Material) -> None:
    """Refuse text that is too long however it is tokenised, before paying for tokenising it."""
    state = len(render_text(request.state)) + len(render_text(request.instructions or ""))
    state += sum(len(one.text) for one in material.evidence)
    _check_characters(state, context, context.max_context, "the state")
    total = state
    for name, question in request.questions.items():
        count = alternatives(question)
        if count == 1:
            continue
        lines = label_lines(question, [""] * count, range(count))
        own = len(instructions_text(question)) + sum(map(len, lines))
        what = f"the state with the question {name[:64]!r}"
        _check_characters(state + own, context, context.max_context, what, loc=_longer(name, own, state))
        total += own * len(rotations(question, request.permutations))
    _check_characters(total, context, context.max_request_tokens, "the whole request")


def _check_characters(
    count: int, context: PromptContext, limit: int, what: str, *, loc: tuple[str, ...] = ("state",)
) -> None:
    check_fit(-(-count // context.tokenizer.longest), limit, what, least=True, loc=loc)


def _unit(
    name: str,
    question: Question,
    order: tuple[int, ...],
    prefix: tuple[tuple[int, ...], tuple[PlacedImage, ...]],
    seed: int,
    context: PromptContext,
    gallery: Gallery,
) -> Unit:
    labels = labels_for(name, question, context.labels)
    lines = "\n".join(label_lines(question, [label.text for label in labels], order))
    text = f"\n\nQuestion: {instructions_text(question)}\n{lines}\nAnswer with one label."
    parts = gallery.parts(text)
    branch = (*context.template.rows(sizes(parts)), *context.template.answer_turn)
    thought = context.template.empty_thought
    return Unit(
        prefix=prefix[0],
        branch=branch,
        canvas=(*thought, context.template.pad, context.template.turn_end),
        slots=(Slot(name, len(thought), tuple(label.id for label in labels), order),),
        noise=NoiseSource(context.vocab_size, seed, content_key(branch)),
        prefix_images=prefix[1],
        branch_images=place(parts, branch, context.template),
    )
