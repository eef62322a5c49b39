"""Diagrams as inline SVG; every text in them is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

SIDE = 260
"""Width and height of a diagram's plane in pixels."""

_LEFT, _TOP, _BOTTOM, _RIGHT = 44, 10, 40, 10


def reliability_svg(bins: Sequence[Mapping[str, Any]]) -> Markup:
    """Accuracy by bin of confidence as bars, the mean confidence as a dot; on the diagonal they agree.

    Args:
        bins: of `figures.curves`. The strip below shows how much weight each bin has.
    """
    most = max((one["weight"] for one in bins), default=0) or 1
    parts = [_plane("confidence", "accuracy", 1.0), _line([(0.0, 0.0), (1.0, 1.0)], "diagonal")]
    for one in bins:
        if one["accuracy"] is None:
            continue
        x, width = _x(one["low"]), _x(one["high"]) - _x(one["low"]) - 1
        told = (
            f"{one['low']:.2f} to {one['high']:.2f}: {one['count']} answers, "
            f"confidence {one['confidence']:.3f}, accuracy {one['accuracy']:.3f}"
        )
        y = _y(one["accuracy"])
        share = one["weight"] / most
        parts.append(
            f'<g><title>{escape(told)}</title><rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{_y(0) - y:.1f}"/><rect class="mass" x="{x:.1f}" y="{_y(0) - 6:.1f}" '
            f'width="{width:.1f}" height="6" opacity="{0.15 + 0.85 * share:.2f}"/>'
            f'<circle class="dot" cx="{_x(one["confidence"]):.1f}" cy="{y:.1f}" r="3"/></g>'
        )
    return _svg(parts, "Reliability diagram")


def risk_svg(curves: Sequence[tuple[str, Sequence[Sequence[float]]]]) -> Markup:
    """Risk by coverage, a line for each backend.

    Args:
        curves: names with points (coverage, risk).
    """
    top = max((risk for _, points in curves for _, risk in points), default=0)
    # The next of these above the largest risk, so that good models fill the plane too.
    scale = next((limit for limit in (0.05, 0.1, 0.2, 0.5) if top <= limit), 1.0)
    parts = [_plane("coverage", "risk", scale)]
    for number, (name, points) in enumerate(curves):
        line = [(coverage, risk / scale) for coverage, risk in points]
        parts.append(f"<g><title>{escape(name)}</title>{_line(line, f'line c{number % 6}')}</g>")
    return _svg(parts, "Risk-coverage curves")


def _svg(parts: Sequence[str], title: str) -> Markup:
    width, height = _LEFT + SIDE + _RIGHT, _TOP + SIDE + _BOTTOM
    body = "".join(parts)
    # Every part is made of numbers and of texts that went through escape.
    return Markup(  # noqa: S704
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">{body}</svg>'
    )


def _plane(across: str, up: str, top: float) -> str:
    """Grid, ticks and titles; `top` is the value at the upper edge."""
    parts = []
    for step in range(6):
        share = step / 5
        x, y = _x(share), _y(share)
        parts.append(
            f'<line class="grid" x1="{_x(0)}" x2="{_x(1)}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share * top:.2g}</text>'
            f'<text x="{x:.1f}" y="{_y(0) + 15:.1f}" text-anchor="middle">{share:.1f}</text>'
        )
    middle = _TOP + SIDE / 2
    parts.append(
        f'<text x="{_x(0.5):.1f}" y="{_y(0) + 32:.1f}" text-anchor="middle">{escape(across)}</text>'
        f'<text x="11" y="{middle}" text-anchor="middle" transform="rotate(-90 11 {middle})">'
        f"{escape(up)}</text>"
    )
    return "".join(parts)


def _line(points: Sequence[tuple[float, float]], kind: str) -> str:
    path = " ".join(f"{_x(x):.1f},{_y(y):.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{path}"/>'


def _x(share: float) -> float:
    return _LEFT + share * SIDE


def _y(share: float) -> float:
    return _TOP + (1 - share) * SIDE
