"""Other wordings of the same labelled question: its options in another order, fewer of them, undescribed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from jev.schemas import Choice, Noul, Question, Score


@dataclass(frozen=True)
class Augmentation:
    """How much a question may change from one look at it to the next.

    Attributes:
        shuffle: list a choice's options in random order.
        subset: chance that some of a choice's wrong options are left out; at least one stays.
        undescribed: chance that a question's descriptions are left out, where names are left to go by.
    """

    shuffle: bool = True
    subset: float = 0.3
    undescribed: float = 0.2


NONE = Augmentation(shuffle=False, subset=0.0, undescribed=0.0)


def augmented(
    question: Question, target: Sequence[float], how: Augmentation, random: Random
) -> tuple[Question, tuple[float, ...]]:
    """A question and the distribution over its alternatives, changed at random; both stay in step.

    Alternatives with any probability are never left out. Levels of a score keep their order, which
    carries their meaning.
    """
    match question:
        case Choice():
            return _choice(question, target, how, random)
        case Noul():
            described = question.instructions is not None and question.criteria is not None
            if described and random.random() < how.undescribed:
                question = question.model_copy(update={"criteria": None})
        case Score():
            pass
    return question, tuple(target)


def _choice(
    question: Choice, target: Sequence[float], how: Augmentation, random: Random
) -> tuple[Choice, tuple[float, ...]]:
    options = list(zip(question.criteria.items(), target, strict=True))
    wrong = [index for index, (_, share) in enumerate(options) if share == 0]
    if len(wrong) > 1 and random.random() < how.subset:
        dropped = set(random.sample(wrong, random.randrange(1, len(wrong))))
        options = [option for index, option in enumerate(options) if index not in dropped]
    if how.shuffle:
        random.shuffle(options)
    bare = random.random() < how.undescribed
    criteria = {name: None if bare else description for (name, description), _ in options}
    return question.model_copy(update={"criteria": criteria}), tuple(share for _, share in options)
