"""How fast the model works through what waits, and how long a wait may be."""

from __future__ import annotations

import math

MEMORY_S = 3.0
"""Seconds of work after which what was learned before counts 1/e."""
CROWD = 8
"""Requests in a step from which their pace is that of a queue."""
PACKING = 0.5
"""Share of a single request's time that one in a queue is taken to need until a queue has been seen."""
BURST_S = 2.0
"""A burst is what comes within this time of a short queue."""
BURST_PATIENCE = 5.0
"""A burst may wait this many times as long as what comes to a queue that stands."""


class Pace:
    """Seconds of work a token, of late.

    Single requests and queues apart: a step that holds the rows of many needs less time for each, so
    that the pace of single requests would make a burst look twice as slow as it will be.
    """

    def __init__(self) -> None:
        self._seconds = {False: 0.0, True: 0.0}
        self._tokens = {False: 0.0, True: 0.0}

    def learn(self, seconds: float, tokens: int, requests: int) -> None:
        """Note that the model was busy for `seconds` with `tokens` of finished requests.

        Args:
            seconds: how long it worked.
            tokens: of the requests that it finished.
            requests: how many it held when it finished them.
        """
        crowd = requests >= CROWD
        kept = math.exp(-seconds / MEMORY_S)
        self._seconds[crowd] = kept * self._seconds[crowd] + seconds
        self._tokens[crowd] = kept * self._tokens[crowd] + tokens

    def wait(self, tokens: int, requests: int) -> float:
        """Seconds until `requests` with `tokens` in all will have run; 0 before anything was learned."""
        single, queue = self._of(False), self._of(True)
        if requests < CROWD:
            return tokens * (single or queue)
        return tokens * (queue or PACKING * single)

    def _of(self, crowd: bool) -> float:
        return self._seconds[crowd] / self._tokens[crowd] if self._tokens[crowd] else 0.0


class Patience:
    """How long what comes now may have to wait.

    A queue that stands makes every caller wait for as long as it is, so it is kept short. A burst is
    over when it has been answered: it may be longer.

    Args:
        seconds: longest wait for what comes to a queue that stands.
        welcome: requests up to which a queue is short.
    """

    def __init__(self, seconds: float, welcome: int) -> None:
        self._seconds = seconds
        self._welcome = welcome
        self._short_at = -math.inf

    def limit(self, pending: int, now: float) -> float:
        """Longest wait for a request that finds `pending` others at the time `now`; none if they are few."""
        if pending < self._welcome:
            self._short_at = now
            return math.inf
        return self._seconds * (BURST_PATIENCE if now - self._short_at <= BURST_S else 1.0)
