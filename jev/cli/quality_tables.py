"""A quality report on screen: tables of figures, comparisons, stability, costs and failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from jev.cli.console import Screen, one_line

FIGURES = (
    ("accuracy", "accuracy"),
    ("macro_f1", "macro-F1"),
    ("nll", "log loss"),
    ("brier", "Brier"),
    ("ece", "ECE"),
    ("ece_floor", "ECE floor"),
    ("aurc", "AURC"),
    ("mae", "score MAE"),
    ("qwk", "score QWK"),
)
MOST_LISTED = 10
"""Most questions, flips and failures that the terminal shows; the JSON and the page have all."""


def show_report(screen: Screen, report: Mapping[str, Any]) -> None:
    """Print a report of `build_report`."""
    data, backends = report["data"], report["backends"]
    parts = [
        one_line(data["source"]),
        f"{data['rows']} rows",
        f"{data['questions']} questions, {data['reviewed']} reviewed",
    ]
    screen.show(Text(screen.separator.join(parts), "dim"), wrap=False)
    _show_columns(screen, "all", [(entry["name"], entry["figures"]) for entry in backends])
    for kind in ("noul", "choice", "score"):
        columns = [(entry["name"], entry["types"][kind]) for entry in backends if kind in entry["types"]]
        if columns:
            _show_columns(screen, kind, columns)
    for entry in backends:
        _show_parts(screen, entry, report["slice_by"])
    for pair in report["comparisons"]:
        _show_pair(screen, pair)
    for entry in backends:
        if entry["stability"]:
            _show_stability(screen, entry)
    _show_costs(screen, backends)
    for entry in backends:
        _show_failures(screen, entry)
    notes = [
        "in brackets: 95 % bootstrap intervals over rows",
        "ECE floor: what a calibrated model would show by chance",
    ]
    if any(entry["rounded"] for entry in backends):
        notes.append(f"two decimals: log loss counts a probability below {report['nll_floor']:g} as that")
    screen.show(Text(screen.separator.join(notes), "dim"), wrap=False)


def number(value: float | None) -> str:
    """A figure; "-" where there is none."""
    if value is None:
        return "-"
    return f"{value:.1e}" if value and abs(value) < 0.0005 else f"{value:.3f}"


def _show_columns(screen: Screen, title: str, columns: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    rows: list[list[str]] = [[title, *(one_line(name) for name, _ in columns)]]
    for key, told in FIGURES:
        if all(figures[key] is None for _, figures in columns):
            continue
        rows.append([f"  {told}", *(_with_interval(figures, key) for _, figures in columns)])
    rows.append(["  answers", *(str(figures["n"]) for _, figures in columns)])
    _show_table(screen, rows)


def _with_interval(figures: Mapping[str, Any], key: str) -> str:
    interval = (figures["intervals"] or {}).get(key)
    told = number(figures[key])
    return told if interval is None else f"{told} [{number(interval[0])}, {number(interval[1])}]"


def _show_parts(screen: Screen, entry: Mapping[str, Any], slice_by: str | None) -> None:
    """Figures by slice and by question of one backend."""
    name, questions = one_line(entry["name"]), entry["questions"]
    if entry["slices"]:
        _show_lines(screen, f"by {one_line(str(slice_by))}: {name}", list(entry["slices"].items()))
    if questions:
        parts = [(f"{one['question']} ({one['type']})", one) for one in questions[:MOST_LISTED]]
        _show_lines(screen, f"by question: {name}", parts)
    if len(questions) > MOST_LISTED:
        more = len(questions) - MOST_LISTED + entry["questions_left_out"]
        screen.show(Text(f"  and {more} more questions: see --json or --html\n", "dim"))


def _show_lines(screen: Screen, title: str, parts: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    rows = [["", "answers", "accuracy", "macro-F1", "log loss", "ECE", "floor"]]
    for name, figures in parts:
        values = (number(figures[key]) for key in ("accuracy", "macro_f1", "nll", "ece", "ece_floor"))
        rows.append([f"  {one_line(name)}", str(figures["n"]), *values])
    _show_table(screen, rows, title)


def _show_pair(screen: Screen, pair: Mapping[str, Any]) -> None:
    title = f"{one_line(pair['first'])} and {one_line(pair['second'])}"
    agreement = "-" if pair["agreement"] is None else f"{pair['agreement']:.2%}"
    rows = [
        ["  agreement", f"{agreement} of {pair['n']} answers, {pair['flips']} flips"],
        ["  |dp|", f"mean {number(pair['mean_dp'])}, most {number(pair['max_dp'])}"],
        [
            "  McNemar",
            f"p {number(pair['mcnemar_p'])}: only the first right {pair['first_only_right']}, "
            f"only the second {pair['second_only_right']}",
        ],
    ]
    _show_table(screen, rows, title, head=False)
    flips = pair["flip_list"]
    if flips:
        rows = [["  flips", "question", "reviewed", "first", "second", "|dp|"]]
        for flip in flips[:MOST_LISTED]:
            rows.append(
                [
                    f"  row {flip['row']}",
                    one_line(flip["question"]),
                    "-" if flip["reviewed"] is None else one_line(flip["reviewed"]),
                    _winner(flip, "first"),
                    _winner(flip, "second"),
                    number(flip["dp"]),
                ]
            )
        _show_table(screen, rows)
    if len(flips) > MOST_LISTED:
        screen.show(Text(f"  and {len(flips) - MOST_LISTED} more flips: see --json or --html\n", "dim"))


def _winner(flip: Mapping[str, Any], whose: str) -> str:
    winner = flip[whose]["winner"]
    probability = flip[whose]["probabilities"][flip["alternatives"].index(winner)]
    return f"{one_line(winner)} {probability:.3f}"


def _show_stability(screen: Screen, entry: Mapping[str, Any]) -> None:
    rows = [["", "flips", "of", "mean |dp|", "most |dp|", ""]]
    for name, part in entry["stability"].items():
        note = ""
        if part["failed"]:
            note = f"{part['failed']} of {part['requests']} requests failed: {one_line(part['reason'])}"
        elif not part["n"]:
            note = "nothing to compare"
        elif "spread" in part:
            note = f"deviation {number(part['spread'])}"
        rows.append(
            [
                f"  {name}",
                str(part["flips"]),
                str(part["n"]),
                number(part["mean_dp"]),
                number(part["max_dp"]),
                note,
            ]
        )
    _show_table(screen, rows, f"stability: {one_line(entry['name'])}")


def _show_costs(screen: Screen, backends: Sequence[Mapping[str, Any]]) -> None:
    costs = [entry["costs"] for entry in backends]
    times = [cost["latency"] or dict.fromkeys(("p50", "p90", "p99")) for cost in costs]
    rows = [["cost", *(one_line(entry["name"]) for entry in backends)]]
    rows.append(["  requests", *(f"{cost['requests']}, {cost['cached']} from cache" for cost in costs)])
    rows += [[f"  latency {key}", *(_time(one[key]) for one in times)] for key in ("p50", "p90", "p99")]
    rows.append(["  tokens", *(f"{cost['input_tokens']} in, {cost['output_tokens']} out" for cost in costs)])
    rows.append(["  wall", *(_time(cost["wall_seconds"]) for cost in costs)])
    _show_table(screen, rows)


def _show_failures(screen: Screen, entry: Mapping[str, Any]) -> None:
    failures = entry["failures"]
    if not failures:
        return
    rows = [[f"  row {one['row']}", one_line(one["reason"])] for one in failures[:MOST_LISTED]]
    if len(failures) > MOST_LISTED:
        rows.append([f"  and {len(failures) - MOST_LISTED} more", ""])
    _show_table(screen, rows, f"{len(failures)} failed: {one_line(entry['name'])}", head=False)


def _show_table(
    screen: Screen, rows: Sequence[Sequence[str]], title: str | None = None, *, head: bool = True
) -> None:
    """Print rows below a title that may be longer than a column; with `head` the first row is one."""
    if title is not None:
        screen.show(Text(title, "bold"), wrap=False)
    table = screen.grid(len(rows[0]))
    for place, row in enumerate(rows):
        table.add_row(*(Text(cell, "bold" if head and place == 0 else "") for cell in row))
    screen.show(table)
    screen.show("")


def _time(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 10 else f"{value:.1f} s"
