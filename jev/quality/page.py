"""The report as one HTML page that needs nothing but itself: no network, no files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from jev.quality.charts import reliability_svg, risk_svg
from jev.quality.data import LabelledRow
from jev.quality.report import excerpts

MOST_CONFUSED = 24
"""Largest label set that is shown as a matrix; more would not fit a page."""


def render_page(report: Mapping[str, Any], rows: Sequence[LabelledRow]) -> str:
    """The page. States, options and names are text wherever they stand, whatever they spell.

    Args:
        report: of `build_report`.
        rows: what was asked; the page shows the beginning of those that flip or were answered wrong.
    """
    environment = Environment(
        loader=PackageLoader("jev.quality"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({"figure": figure, "share": share, "seconds": seconds})
    lists = _lists(report)
    numbers = {entry["row"] for one in lists for entry in one["entries"]}
    curves = [
        (entry["name"], entry["curves"]["risk_coverage"]) for entry in report["backends"] if entry["curves"]
    ]
    return environment.get_template("report.html").render(
        report=report,
        browser=_script_json({"lists": lists, "rows": excerpts(rows, numbers)}),
        has_lists=bool(numbers),
        reliability={
            entry["name"]: reliability_svg(entry["curves"]["reliability"])
            for entry in report["backends"]
            if entry["curves"]
        },
        risk=risk_svg(curves) if curves else None,
        curve_names=[name for name, _ in curves],
        most_confused=MOST_CONFUSED,
    )


def figure(value: float | None) -> str:
    """A figure with three decimals, more for one that three would show as nothing."""
    if value is None:
        return "-"
    if value and abs(value) < 0.0005:
        return f"{value:.1e}"
    return f"{value:.3f}"


def share(value: float | None) -> str:
    """A share in percent."""
    return "-" if value is None else f"{value:.1%}"


def seconds(value: float | None) -> str:
    """A time, in milliseconds below ten seconds."""
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 10 else f"{value:.1f} s"


def _lists(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the browser of the page lists: flips of each pair, then wrong answers of each backend."""
    lists = [
        {
            "title": f"flips: {pair['first']} → {pair['second']}",
            "names": [pair["first"], pair["second"]],
            "entries": [
                {**entry, "answers": [entry["first"], entry["second"]]} for entry in pair["flip_list"]
            ],
        }
        for pair in report["comparisons"]
    ]
    lists += [
        {
            "title": f"wrong answers: {entry['name']}",
            "names": [entry["name"]],
            "entries": [{**one, "answers": [one["answer"]]} for one in entry["mistakes"]],
        }
        for entry in report["backends"]
    ]
    return lists


def _script_json(data: Any) -> Markup:
    """JSON that can stand inside a script element: nothing in it can end the element."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(safe)  # noqa: S704 - the three characters that mean something in HTML are gone
