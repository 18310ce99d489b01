"""Counters of the server and of the engine, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from macspec.request import GenerationStats
from macspec.worker.protocol import EngineStats

_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


@dataclass
class Histogram:
    """Observations in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(_BUCKETS, seconds)] += 1
        self.total += seconds

    def lines(self, name: str) -> list[str]:
        """Prometheus' cumulative form."""
        out, sum_so_far = [], 0
        for bound, count in zip((*map(str, _BUCKETS), "+Inf"), self.counts, strict=True):
            sum_so_far += count
            out.append(f'{name}_bucket{{le="{bound}"}} {sum_so_far}')
        return [*out, f"{name}_sum {self.total:.6f}", f"{name}_count {sum_so_far}"]


class Metrics:
    """What happened since the server started."""

    def __init__(self) -> None:
        self.responses: Counter[tuple[str, int]] = Counter()
        self.first_token = Histogram()
        self.duration = Histogram()
        self.disconnects = 0
        self.last: GenerationStats | None = None

    def text(self, running: int, waiting: int, engine: EngineStats) -> str:
        """The whole page."""
        out = ["# HELP macspec_http_responses_total Responses by route and status."]
        out.append("# TYPE macspec_http_responses_total counter")
        for (route, status), count in sorted(self.responses.items()):
            out.append(f'macspec_http_responses_total{{route="{route}",status="{status}"}} {count}')
        histograms = {
            "macspec_time_to_first_token_seconds": ("From the request to its first text.", self.first_token),
            "macspec_request_duration_seconds": ("From the request to the end of its answer.", self.duration),
        }
        for name, (help_text, histogram) in histograms.items():
            out += [f"# HELP {name} {help_text}", f"# TYPE {name} histogram", *histogram.lines(name)]
        for name, kind, help_text, value in self._values(running, waiting, engine):
            out += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(out) + "\n"

    def _values(self, running: int, waiting: int, engine: EngineStats) -> list[tuple[str, str, str, float]]:
        counter, gauge = "counter", "gauge"
        return [
            ("macspec_requests_running", gauge, "Answers in progress.", running),
            ("macspec_requests_waiting", gauge, "Requests waiting for their turn.", waiting),
            ("macspec_client_disconnects_total", counter, "Clients that left before the end.", self.disconnects),
            ("macspec_prompt_tokens_total", counter, "Prompt tokens.", engine.prompt_tokens),
            ("macspec_cached_tokens_total", counter, "Prompt tokens that needed no work.", engine.cached_tokens),
            ("macspec_generation_tokens_total", counter, "Tokens committed.", engine.generation_tokens),
            ("macspec_rounds_total", counter, "Draft-verify rounds.", engine.rounds),
            ("macspec_parked_rounds_total", counter, "Rounds without draft tokens.", engine.parked_rounds),
            ("macspec_drafted_tokens_total", counter, "Draft tokens proposed.", engine.drafted),
            ("macspec_verified_tokens_total", counter, "Draft tokens verified.", engine.verified),
            ("macspec_accepted_tokens_total", counter, "Draft tokens accepted.", engine.accepted),
            ("macspec_cancelled_requests_total", counter, "Answers ended early.", engine.cancelled),
            ("macspec_failed_requests_total", counter, "Answers that failed in the engine.", engine.failed),
            ("macspec_engine_busy_seconds_total", counter, "Seconds in engine steps.", engine.busy_seconds),
            ("macspec_engine_restarts_total", counter, "Engine processes replaced.", engine.restarts),
            ("macspec_engine_step_seconds", gauge, "Age of the running engine step.", engine.step_seconds),
            ("macspec_memory_active_bytes", gauge, "Memory in use on the device.", engine.memory_active),
            ("macspec_memory_cache_bytes", gauge, "Freed memory the allocator keeps.", engine.memory_cache),
            ("macspec_memory_peak_bytes", gauge, "Most memory in use so far.", engine.memory_peak),
            ("macspec_process_footprint_bytes", gauge, "Memory of the engine process.", engine.memory_footprint),
            ("macspec_prefix_cache_bytes", gauge, "Memory of the prefix cache.", engine.prefix_cache_bytes),
        ]
