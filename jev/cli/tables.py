"""A decision on screen: for each question a bar for every answer, then what it took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from rich.text import Text

from jev.cli.console import Screen, one_line
from jev.results import Decision
from jev.schemas import Answer, ChoiceAnswer, NoulAnswer, render_text
from jev.typed import confidence_of


@dataclass(frozen=True)
class Row:
    """One possible answer and its probability."""

    label: str
    probability: float
    won: bool


def rows_of(answer: Answer) -> list[Row]:
    """The possible answers in the order of the question."""
    if isinstance(answer, NoulAnswer):
        return [Row("yes", answer.noul, answer.yes), Row("no", 1 - answer.noul, not answer.yes)]
    if isinstance(answer, ChoiceAnswer):
        return [Row(name, p, name == answer.choice) for name, p in answer.probabilities.items()]
    winner = str(answer.level)
    return [
        Row(f"{level} {_text(answer.legend.get(level, ''))}", p, level == winner)
        for level, p in answer.probabilities.items()
    ]


def summary_of(answer: Answer, confidence: float) -> list[str]:
    """The numbers below the bars."""
    parts = [f"confidence {confidence:.2f}"]
    if not isinstance(answer, (NoulAnswer, ChoiceAnswer)):
        parts.insert(0, f"score {answer.score:.2f} of 0..{len(answer.probabilities) - 1}")
    return parts


def show_decision(screen: Screen, decision: Decision, questions: Mapping[str, Any]) -> None:
    """Print every question of a decision; `questions` are as they were sent."""
    confidence = confidence_of(decision.answers)
    details = _mapping(_mapping(decision.diagnostics).get("questions"))
    for name, answer in decision.answers.items():
        _show_title(screen, name, answer.type, _mapping(questions.get(name)).get("instructions"))
        table = screen.grid(4)
        for row in rows_of(answer):
            style = "bold green" if row.won else ""
            table.add_row(
                Text(f"  {screen.mark if row.won else ' '}", style),
                Text(one_line(row.label), style),
                Text(f"{row.probability:6.1%}", style),
                Text(screen.bar(row.probability), "green" if row.won else "bright_black"),
            )
        screen.show(table)
        parts = [*summary_of(answer, confidence[name]), *_details(_mapping(details.get(name)))]
        screen.show(Text(f"    {screen.separator.join(parts)}\n", "dim"), wrap=False)


def show_footer(screen: Screen, decision: Decision, timing: list[str], notes: list[str]) -> None:
    """Print who answered, what was read and how long it took; then each note on a line of its own."""
    usage = decision.usage
    parts = [one_line(decision.model), f"{usage.input_tokens} + {usage.output_tokens} tokens", *timing]
    lines = [screen.separator.join([*parts, *_run_details(_mapping(decision.diagnostics))]), *notes]
    screen.show(Text("\n".join(lines), "dim"), wrap=False)


def _show_title(screen: Screen, name: str, kind: str, instructions: object) -> None:
    title = Text().append(one_line(name), "bold")
    asked = "" if instructions is None else one_line(_text(instructions))
    title.append(f"{screen.separator}{kind}", "dim")
    if asked and asked != name:
        title.append(f"{screen.separator}{asked}", "dim")
    screen.show(title, wrap=False)


def _details(report: Mapping[str, Any]) -> Iterator[str]:
    """What the diagnostics say of one question, where they say it."""
    for key, name in (
        ("reads", "reads"),
        ("entropy", "entropy"),
        ("stderr", "stderr"),
        ("agreement", "agreement"),
        ("label_mass", "label mass"),
    ):
        value = report.get(key)
        if isinstance(value, (int, float)):
            yield f"{name} {value:.3g}"


def _run_details(report: Mapping[str, Any]) -> Iterator[str]:
    timing, prefixes = _mapping(report.get("timing")), _mapping(report.get("prefixes"))
    for key, name in (("prefill_ms", "prefill"), ("read_ms", "reads")):
        if isinstance(timing.get(key), (int, float)):
            yield f"{name} {timing[key]:.0f} ms"
    if "used" in prefixes and "cached" in prefixes:
        yield f"{prefixes['cached']} of {prefixes['used']} prefixes cached"


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return render_text(value)
