"""Ask a server about several messages at once: python examples/decide_http.py.

Start one with `jev serve`. JEV_BASE_URL (default http://127.0.0.1:8000) and JEV_API_KEY say which
server to ask. Needs only the SDK (pip install jev-server).
"""

import asyncio
import sys

from jev import AsyncJev, Choice, JevError, Noul

QUESTIONS = {
    "happy": Noul("Is the customer happy?"),
    "topic": Choice(
        "Which topic is it about?",
        {
            "billing": "a charge or a refund",
            "technical": "a crash or an error",
            "sales": "a purchase or a price",
        },
    ),
}

STATES = [
    "My card was charged twice for one order. Please refund the second payment.",
    "The app crashes whenever I open the settings page, so nobody in our office can work.",
    "We bought 50 more licences yesterday. Thank you for the quick help, everything works!",
]


async def main() -> None:
    """Print the answers in the order of the states."""
    async with AsyncJev() as jev:
        decisions = await asyncio.gather(*(jev.decide(state, QUESTIONS) for state in STATES))
    for state, decision in zip(STATES, decisions, strict=True):
        topic, happy = decision.choices["topic"], decision.nouls["happy"]
        print(state)
        print(f"  {topic.choice} ({topic.probabilities[topic.choice]:.0%}), happy {happy.noul:.0%}")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except JevError as error:
        sys.exit(f"error: {error}")
