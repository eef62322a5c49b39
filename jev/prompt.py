"""Request -> plan, isolated layout: one branch and one canvas for every question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jev.errors import InvalidRequestError
from jev.fit import Fit, orders
from jev.labels import Label, Labels
from jev.material import NOTHING, Material
from jev.model.template import Template
from jev.model.tokenizer import Tokenizer
from jev.model.vision_config import VisionConfig
from jev.parts import Gallery, Own, place, sizes
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
    fit = Fit(request, material, context.tokenizer.longest)
    fit.check_characters(context.max_context, context.max_request_tokens)
    template = context.template
    gallery = Gallery(context.vision, context.soft_tokens, material, fit, most_rows=context.max_context)
    parts = gallery.parts(render_text(request.state), material.evidence)
    own = system_text(None, evidence=bool(material))
    whole = system_text(request.instructions, evidence=bool(material))
    system = gallery.parts([Own(own), whole.removeprefix(own)])
    prefix = template.open_user(sizes(system), sizes(parts))
    images = place([*system, *parts], prefix, template)
    fit.check(len(prefix), context.max_context)
    groups = []
    names: list[str] = []
    branches = canvases = 0
    for name, question in request.questions.items():
        if alternatives(question) == 1:
            continue
        units = []
        names.append(name)
        for order in orders(question, request.permutations):
            unit = _unit(name, question, order, (prefix, images), request.seed, context, gallery)
            branches += len(unit.branch)
            canvases += len(unit.canvas)
            # Checked one by one, so that no more is tokenised than what is the first too much.
            needed = len(prefix) + len(unit.branch) + len(unit.canvas)
            fit.check(needed, context.max_context, fit.state_with(name), (name,))
            needed = len(prefix) + branches + canvases
            fit.check(needed, context.max_request_tokens, "the whole request", names, least=True)
            units.append(unit)
        groups.append(Group(tuple(units), (name,)))
    return Plan(request, tuple(groups), len(prefix) + branches, canvases, material.evidence)


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
    shown = [label.text for label in labels]
    pieces = [Own("\n\nQuestion: "), instructions_text(question, order)]
    for label, line in zip(shown, label_lines(question, shown, order), strict=True):
        pieces += [Own(f"\n{label}"), line.removeprefix(label)]
    parts = gallery.parts([*pieces, Own("\nAnswer with one label.")], name=name)
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
