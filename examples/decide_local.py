"""Decide in this process, without a server: python examples/decide_local.py.

Needs the server extra (pip install 'jev-server[server]'). The questions are the fields of a class,
and the answers come back as an instance of it.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from jev import Choice, LocalJev, Score

TOPICS = Choice(
    {
        "billing": "a charge or a refund",
        "technical": "a crash or an error",
        "sales": "a purchase or a price",
    }
)

STATES = [
    "My card was charged twice for one order. Please refund the second payment.",
    "The app crashes whenever I open the settings page, so nobody in our office can work.",
    "We would like to buy 50 more licences. Could you send us a price list?",
]


@dataclass
class Ticket:
    """What to find out about a message; every field is a question."""

    about_payment: Annotated[bool, "Is this about a payment?"]
    topic: Annotated[Literal["billing", "technical", "sales"], "Which topic is it about?", TOPICS]
    severity: Annotated[float, "How bad is it?", Score(["no problem", "annoying", "blocks all work"])]


def main() -> None:
    """Print a decision for each state."""
    jev = LocalJev()
    for state in STATES:
        decision = jev.decide(state, Ticket, samples=4)
        ticket = decision.value
        print(state)
        print(f"  topic {ticket.topic} (confidence {decision.confidence['topic']:.2f})")
        print(f"  payment {ticket.about_payment} (P(yes) {decision.probabilities['about_payment']:.2f})")
        print(f"  severity {ticket.severity:.2f} of 0..2")


if __name__ == "__main__":
    main()
