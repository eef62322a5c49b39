"""Prometheus metrics of one app, in a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BLOCK_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

ENGINE_COUNTERS = {
    "reads": ("jev_reads", "Canvas reads"),
    "rows_prefill": ("jev_rows_prefill", "Prompt rows computed"),
    "rows_read": ("jev_rows_read", "Canvas rows computed"),
    "prefix_hits": ("jev_prefix_cache_hits", "Prompt prefixes found in the cache"),
    "prefix_misses": ("jev_prefix_cache_misses", "Prompt prefixes that had to be computed"),
    "branch_hits": ("jev_branch_cache_hits", "Questions found in the cache"),
    "texts": ("jev_texts", "Texts begun"),
    "text_tokens": ("jev_text_tokens", "Tokens of texts, up to their ends"),
    "canvases": ("jev_text_canvases", "Canvases finished"),
    "canvas_rows": ("jev_text_canvas_rows", "Rows of these canvases"),
    "text_steps": ("jev_text_steps", "Forwards for texts"),
}


class Metrics:
    """What `GET /metrics` shows.

    Args:
        pending: returns the requests and tokens that are waiting or running.
        stats: returns the engine's cumulative numbers; empty while there is no engine.
        stored: returns the bytes of all uploads.
        batches: returns how many batches have not ended, and how many of their requests were answered
            and were not.
        texts: returns the texts that wait or are being written, and the rows that they may take.
    """

    def __init__(
        self,
        pending: Callable[[], tuple[int, int]],
        stats: Callable[[], dict[str, float]],
        stored: Callable[[], int],
        batches: Callable[[], dict[str, int]],
        texts: Callable[[], tuple[int, int]],
    ) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "jev_requests", "Finished HTTP requests", ["path", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "jev_request_seconds",
            "Seconds from a request's first byte to its answer",
            ["path"],
            buckets=LATENCY_BUCKETS,
            registry=self._registry,
        )
        waiting = Gauge("jev_pending_requests", "Requests waiting or running", registry=self._registry)
        waiting.set_function(lambda: pending()[0])
        tokens = Gauge("jev_pending_tokens", "Tokens of them", registry=self._registry)
        tokens.set_function(lambda: pending()[1])
        writing = Gauge("jev_pending_texts", "Texts waiting or being written", registry=self._registry)
        writing.set_function(lambda: texts()[0])
        rows = Gauge("jev_pending_text_rows", "Rows they may take at most", registry=self._registry)
        rows.set_function(lambda: texts()[1])
        self._blocks = Histogram(
            "jev_text_canvas_seconds",
            "Seconds a canvas took, without other work between its steps",
            buckets=BLOCK_BUCKETS,
            registry=self._registry,
        )
        files = Gauge("jev_stored_bytes", "Bytes of uploaded files", registry=self._registry)
        files.set_function(stored)
        unfinished = Gauge("jev_batches", "Batches waiting or running", registry=self._registry)
        unfinished.set_function(lambda: batches()["unfinished"])
        self._registry.register(_EngineCollector(stats))
        self._registry.register(_BatchCollector(batches))
        ProcessCollector(registry=self._registry)

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count one finished request; `path` is a route, never what the caller typed."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def canvas(self, seconds: float) -> None:
        """Count a finished canvas of a text."""
        self._blocks.observe(seconds)

    def render(self) -> bytes:
        """Return the text exposition."""
        return generate_latest(self._registry)


class _BatchCollector(Collector):
    """Shows how many requests of batches were decided."""

    def __init__(self, batches: Callable[[], dict[str, int]]) -> None:
        self._batches = batches

    def collect(self) -> Iterator[Metric]:
        decided = CounterMetricFamily("jev_batch_requests", "Requests of batches", labels=["outcome"])
        found = self._batches()
        for outcome in ("completed", "failed"):
            decided.add_metric([outcome], found[outcome])
        yield decided


class _EngineCollector(Collector):
    """Shows the engine's own counters as they are at the moment of a scrape."""

    def __init__(self, stats: Callable[[], dict[str, float]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for key, (name, text) in ENGINE_COUNTERS.items():
            yield CounterMetricFamily(name, text, value=stats.get(key, 0.0))
        yield GaugeMetricFamily(
            "jev_prefix_cache_bytes", "Bytes of cached prompt prefixes", value=stats.get("prefix_bytes", 0.0)
        )
