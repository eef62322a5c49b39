"""What does not fit is refused with both numbers, at the longest of the parts that a prompt is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jev.errors import InvalidRequestError
from jev.material import Loc, Material
from jev.plan import alternatives
from jev.schemas import Choice, Question, SystemOneRequest, render_text
from jev.wording import instructions_text, label_lines

PICTURE_CHARACTERS = 1000
"""What a picture weighs against text where the longest part is looked for: about its rows in characters."""


@dataclass(frozen=True)
class Fit:
    """Checks lengths of one request, and names in its refusals what is long.

    Attributes:
        request: the request.
        material: what it brings besides its JSON.
        longest: characters of the tokenizer's longest token.
    """

    request: SystemOneRequest
    material: Material
    longest: int

    def check(
        self,
        needed: int,
        limit: int,
        what: str = "",
        names: Sequence[str] = (),
        *,
        least: bool = False,
    ) -> None:
        """Refuse what is longer than `limit` tokens.

        Args:
            needed: tokens.
            limit: most of them.
            what: what they are of; by default the state.
            names: the questions that are in it.
            least: whether it may be longer still.

        Raises:
            InvalidRequestError: naming both numbers, at the longest part.
        """
        if needed > limit:
            count = f"at least {needed}" if least else str(needed)
            raise InvalidRequestError.at(
                *self._longest_part(names),
                msg=f"Too long: {what or self.state} needs {count} tokens, the limit is {limit}",
                type="tokens_exceeded",
            )

    def check_characters(self, context_limit: int, request_limit: int) -> None:
        """Refuse text that is too long however it is tokenised, before paying for tokenising it.

        Args:
            context_limit: most tokens of the state with one question.
            request_limit: most tokens of the state with all questions in all their orders.
        """
        state = len(render_text(self.request.state)) + len(render_text(self.request.instructions or ""))
        state += sum(len(one.text) for one in self.material.evidence)
        self.check(self._fewest(state), context_limit, least=True)
        total = state
        for name, question in self.request.questions.items():
            if alternatives(question) == 1:
                continue
            own = _characters(question)
            needed = self._fewest(state + own)
            self.check(needed, context_limit, self.state_with(name), (name,), least=True)
            total += own * len(orders(question, self.request.permutations))
        names = tuple(self.request.questions)
        self.check(self._fewest(total), request_limit, "the whole request", names, least=True)

    @property
    def state(self) -> str:
        """How the text before the questions is called."""
        return self._state_and()

    @property
    def all_at_once(self) -> str:
        """How a prompt with several questions is called."""
        return self._state_and("questions", "canvas")

    def state_with(self, name: str) -> str:
        """How the state with one question is called."""
        state = self.state
        return f"{state}{' and' if ' with ' in state else ' with'} the question {name[:64]!r}"

    def _state_and(self, *more: str) -> str:
        parts = ["instructions"] if self.request.instructions else []
        parts += ["attachments"] if self.material.evidence else []
        parts += more
        listed = " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))
        return f"the state with its {listed}" if listed else "the state"

    def _fewest(self, characters: int) -> int:
        """The least tokens that so many characters can be."""
        return -(-characters // self.longest)

    def _longest_part(self, names: Sequence[str]) -> Loc:
        parts: list[tuple[int, Loc]] = [
            (len(render_text(self.request.state)), ("state",)),
            (len(render_text(self.request.instructions or "")), ("instructions",)),
        ]
        for loc, one in self.material.placed:
            parts.append((len(one.text) + PICTURE_CHARACTERS * len(one.pictures), loc))
        asked = {name: self.request.questions[name] for name in names}
        own = {
            name: _characters(question) * len(orders(question, self.request.permutations))
            for name, question in asked.items()
        }
        if own:
            name = max(own, key=lambda one: own[one])
            # One question is named, unless it is their number that makes them long.
            alone = 2 * own[name] > sum(own.values())
            parts.append((sum(own.values()), ("questions", name) if alone else ("questions",)))
        return max(parts, key=lambda part: part[0])[1]


def orders(question: Question, permutations: int) -> list[tuple[int, ...]]:
    """Orders in which the alternatives are listed: those of a choice, at most `permutations` different ones.

    An even number are rotations, spread evenly, each of the list as it is and of the reversed list: these are
    the same orders if the caller lists the options in reverse, so the average over them is the same too. An
    odd number up to the number of options are rotations alone; a larger odd number is one fewer.
    """
    count = alternatives(question)
    if not isinstance(question, Choice) or count == 1 or permutations == 1:
        return [tuple(range(count))]
    times = min(permutations, count if count == 2 else 2 * count)
    if times % 2 and times <= count:
        return [_rotated(range(count), count * turn // times) for turn in range(times)]
    pairs = times // 2
    lists = (range(count), range(count - 1, -1, -1))
    return [_rotated(one, count * turn // pairs) for turn in range(pairs) for one in lists]


def _rotated(listed: Sequence[int], shift: int) -> tuple[int, ...]:
    return (*listed[shift:], *listed[:shift])


def _characters(question: Question) -> int:
    """Characters of a question's own text, without its labels."""
    count = alternatives(question)
    lines = label_lines(question, [""] * count, range(count))
    return len(instructions_text(question)) + sum(map(len, lines))
