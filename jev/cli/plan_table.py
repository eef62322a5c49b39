"""What of the model fits where, as a table and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from jev.cli.console import Screen
from jev.errors import JevError
from jev.loading import check_pulled
from jev.model.errors import CheckpointError
from jev.settings import Settings

if TYPE_CHECKING:
    from jev.planner import Choice, Plan

_STYLES = {"fits": "green", "tight": "yellow", "no": "red", "unknown": "bright_black"}
_WORDS = {"fits": "fits", "tight": "tight: short prompts only", "no": "does not fit"}


def plan_here(settings: Settings) -> Plan | None:
    """The plan for this machine; None where the checks have said already why there is none."""
    try:
        from jev.planner import Machine, plan  # noqa: PLC0415 - it loads torch

        check_pulled(settings)
        return plan(settings, Machine.here())
    except (JevError, CheckpointError, ImportError, OSError):
        return None


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan with bytes as numbers."""
    best = plan.recommended
    return {
        "context": plan.context,
        "choices": [
            {
                "device": choice.device,
                "dtype": choice.dtype,
                "weights": choice.weights.total,
                "kv": choice.kv,
                "total": choice.needed,
                "least": choice.least,
                "free": choice.free,
                "offload_layers": choice.offloaded,
                "verdict": choice.verdict,
            }
            for choice in plan.choices
        ],
        "recommended": None
        if best is None
        else {"device": best.device, "dtype": best.dtype, "offload_layers": best.offloaded},
    }


def show_plan(screen: Screen, plan: Plan) -> None:
    """Print the table and what is best."""
    from jev.planner import gigabytes  # noqa: PLC0415

    table: Table = screen.grid(6)
    kv = f"keys, values ({plan.context} tokens)"
    table.add_row(*(Text(title, "dim") for title in ("device", "precision", "weights", kv, "total", "")))
    for choice in plan.choices:
        table.add_row(
            choice.device,
            "as stored" if choice.stored else choice.dtype,
            gigabytes(choice.weights.total),
            gigabytes(choice.kv),
            gigabytes(choice.needed),
            Text(_verdict(choice, plan), _STYLES[choice.verdict]),
        )
    screen.show(table)
    best = plan.recommended
    if best is None:
        screen.show(Text("\nbest here: nothing fits", "red"))
        return
    way = f"device = {best.device}, dtype = {best.dtype}"
    if best.offloaded:
        way += f", offload_layers = {best.offloaded}"
    screen.show(Text(f"\nbest here: {way}"))


def _verdict(choice: Choice, plan: Plan) -> str:
    if choice.verdict == "unknown":
        return "no GPU here" if choice.device.startswith("cuda") else "free memory is not known"
    if choice.offloaded:
        return f"{_WORDS[choice.verdict]}, {choice.offloaded} of {plan.layers} layers on the host"
    return _WORDS[choice.verdict]
