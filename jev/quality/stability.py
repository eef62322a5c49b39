"""Do answers stay when only what should not matter changes? Each probe asks a sample of rows again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jev.quality.collect import Collector, Maker
from jev.quality.compare import distance
from jev.quality.data import LabelledRow
from jev.quality.replies import Failure, Judgement, Reply
from jev.schemas import Choice, Question, alternatives

SEEDS = (1, 2, 3)
"""Seeds asked besides the run's own."""

DEFAULT_SEED = 42
"""The seed of a request that names none."""

MOST_EXAMPLES = 20
"""Most flips that one probe lists."""


@dataclass(frozen=True)
class Variant:
    """A row asked in another way.

    Attributes:
        row: index of the row.
        questions: what is asked now.
        ids: for each of the row's own questions that is looked at, its id in this variant.
        options: request fields that differ.
    """

    row: int
    questions: Mapping[str, Question]
    ids: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


Probe = Callable[[Sequence[LabelledRow], Sequence[int]], Iterator[Variant]]


def order_variants(rows: Sequence[LabelledRow], sample: Sequence[int]) -> Iterator[Variant]:
    """The options of every choice in reverse; an answer should follow its option."""
    for index in sample:
        turned = {
            name: question.model_copy(update={"criteria": dict(reversed(question.criteria.items()))})
            for name, question in rows[index].questions.items()
            if isinstance(question, Choice) and len(question.criteria) > 1
        }
        if turned:
            yield Variant(index, {**rows[index].questions, **turned}, {name: name for name in turned})


def seed_variants(rows: Sequence[LabelledRow], sample: Sequence[int]) -> Iterator[Variant]:
    """Other slot noise."""
    for index in sample:
        questions = rows[index].questions
        for seed in SEEDS:
            yield Variant(index, questions, {name: name for name in questions}, {"seed": seed})


def paraphrase_variants(rows: Sequence[LabelledRow], sample: Sequence[int]) -> Iterator[Variant]:
    """The instructions in other words, where `metadata.paraphrases` has some for a question."""
    for index in sample:
        questions = rows[index].questions
        given = paraphrases_of(rows[index])
        for turn in range(max(map(len, given.values()), default=0)):
            reworded = {
                name: questions[name].model_copy(update={"instructions": texts[turn]})
                for name, texts in given.items()
                if turn < len(texts)
            }
            yield Variant(index, {**questions, **reworded}, {name: name for name in reworded})


def rename_variants(rows: Sequence[LabelledRow], sample: Sequence[int]) -> Iterator[Variant]:
    """Every question under another id."""
    for index in sample:
        questions = rows[index].questions
        ids = {name: f"q{number}" for number, name in enumerate(questions, 1)}
        if all(name == renamed for name, renamed in ids.items()):
            ids = {name: f"item_{renamed}" for name, renamed in ids.items()}
        yield Variant(index, {ids[name]: question for name, question in questions.items()}, ids)


def isolation_variants(rows: Sequence[LabelledRow], sample: Sequence[int]) -> Iterator[Variant]:
    """A row's questions one at a time; a row with a single question gets one of another row besides."""
    for place, index in enumerate(sample):
        questions = rows[index].questions
        if len(questions) > 1:
            for name, question in questions.items():
                yield Variant(index, {name: question}, {name: name})
            continue
        (name,) = questions
        other = rows[sample[(place + 1) % len(sample)]].questions
        stranger = next(iter(other.values()))
        before = "another" if name != "another" else "other"
        yield Variant(index, {before: stranger, **questions}, {name: name})


PROBES: Mapping[str, Probe] = {
    "option order": order_variants,
    "seed": seed_variants,
    "paraphrase": paraphrase_variants,
    "id rename": rename_variants,
    "isolation": isolation_variants,
}


def paraphrases_of(row: LabelledRow) -> dict[str, list[str]]:
    """Other wordings of each question's instructions, from `metadata.paraphrases`: a text or a list."""
    given = (row.row.metadata or {}).get("paraphrases")
    if not isinstance(given, dict):
        return {}
    found: dict[str, list[str]] = {}
    for name, texts in given.items():
        listed = [texts] if isinstance(texts, str) else texts
        if name in row.questions and isinstance(listed, list):
            found[name] = [text for text in listed if isinstance(text, str) and text]
    return found


def sample_of(rows: Sequence[LabelledRow], count: int, seed: int = 0) -> list[int]:
    """At most `count` rows by index, drawn with a seed, in the order of the file."""
    if count >= len(rows):
        return list(range(len(rows)))
    return sorted(random.Random(seed).sample(range(len(rows)), count))  # noqa: S311 - a sample, no secret


async def probe(
    name: str,
    collector: Collector,
    rows: Sequence[LabelledRow],
    base: Sequence[Reply | Failure],
    sample: Sequence[int],
    options: Mapping[str, Any],
    done: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Ask the sample in other ways and compare with the answers already there.

    Args:
        name: one of `PROBES`.
        collector: whom to ask.
        rows: all rows.
        base: the backend's outcome for each of them.
        sample: indices of the rows to ask again.
        options: request fields of the run.
        done: called after each request.

    Returns:
        `n` answers compared, `flips`, `flip_rate`, `mean_dp` and `max_dp` (see `compare.distance`),
        `failed` requests and why the first failed, and `examples` of flips; for "seed" also `spread`,
        the mean deviation of the winner's probability from seed to seed, and `max_spread`.
        The rates are None where nothing could be compared.
    """
    own = options.get("seed", DEFAULT_SEED)
    variants = [
        variant
        for variant in PROBES[name](rows, sample)
        if isinstance(base[variant.row], Reply) and variant.options.get("seed") != own
    ]
    outcomes = await collector.ask([_maker(rows, variant, options) for variant in variants], done)
    pairs = list(_pairs(rows, base, variants, outcomes))
    moved = [(pair, distance(pair[2].probabilities, pair[3])) for pair in pairs]
    flipped = [(pair, dp) for pair, dp in moved if pair[2].winner != pair[4]]
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    found: dict[str, Any] = {
        "n": len(pairs),
        "flips": len(flipped),
        "flip_rate": len(flipped) / len(pairs) if pairs else None,
        "mean_dp": float(np.mean([dp for _, dp in moved])) if pairs else None,
        "max_dp": max(dp for _, dp in moved) if pairs else None,
        "requests": len(variants),
        "failed": len(failures),
        "reason": failures[0].reason if failures else None,
        "examples": [
            _example(rows, pair, dp) for pair, dp in sorted(flipped, key=lambda one: -one[1])[:MOST_EXAMPLES]
        ],
    }
    if name == "seed":
        found.update(_spread(pairs))
    return found


def _maker(rows: Sequence[LabelledRow], variant: Variant, options: Mapping[str, Any]) -> Maker:
    row = rows[variant.row]
    return lambda: row.request(variant.questions, {**options, **variant.options})


_Pair = tuple[int, str, Judgement, tuple[float, ...], int]
"""Row, question, the answer before, and the distribution and winner after, in the order of before."""


def _pairs(
    rows: Sequence[LabelledRow],
    base: Sequence[Reply | Failure],
    variants: Sequence[Variant],
    outcomes: Sequence[Reply | Failure],
) -> Iterator[_Pair]:
    for variant, outcome in zip(variants, outcomes, strict=True):
        before = base[variant.row]
        if not isinstance(outcome, Reply) or not isinstance(before, Reply):
            continue
        for name, asked in variant.ids.items():
            after = outcome.answers[asked]
            order = alternatives(variant.questions[asked])
            names = alternatives(rows[variant.row].questions[name])
            by_name = dict(zip(order, after.probabilities, strict=True))
            yield (
                variant.row,
                name,
                before.answers[name],
                tuple(by_name[one] for one in names),
                names.index(order[after.winner]),
            )


def _example(rows: Sequence[LabelledRow], pair: _Pair, dp: float) -> dict[str, Any]:
    index, name, before, after, winner = pair
    names = alternatives(rows[index].questions[name])
    return {
        "row": rows[index].number,
        "question": name,
        "before": names[before.winner],
        "after": names[winner],
        "dp": dp,
        "before_probability": before.confidence,
        "after_probability": after[winner],
    }


def _spread(pairs: Sequence[_Pair]) -> dict[str, float | None]:
    """Sample deviation of the first winner's probability over all seeds, the run's own among them."""
    values: dict[tuple[int, str], list[float]] = {}
    for index, name, before, after, _ in pairs:
        values.setdefault((index, name), [before.confidence]).append(after[before.winner])
    deviations = [float(np.std(one, ddof=1)) for one in values.values()]
    return {
        "spread": float(np.mean(deviations)) if deviations else None,
        "max_spread": max(deviations, default=None),
    }
