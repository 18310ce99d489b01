"""What speculation is doing, kept from the engine's round events: rates, the last rounds, totals, and reasons in words.

All times are the engine's own. Nothing here draws or depends on when the screen is drawn.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from macspec.request import Event, Finished, GenerationStats, PrefillProgress, Round, Started

#: Rounds kept for the strip, the rate and the shares.
KEEP = 256
#: Engine milliseconds the live rate looks back on.
WINDOW_MS = 1500.0
#: The same for one column of the sparkline, which should show the ups and downs.
SPARK_MS = 200.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over one answer."""

    rounds: int = 0
    parked: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    committed: int = 0

    @property
    def acceptance_length(self) -> float:
        """Tokens committed per round, bonus token included (τ)."""
        return self.committed / self.rounds if self.rounds else 0.0

    @property
    def mean_depth(self) -> float:
        """Draft tokens verified per round that verified any."""
        rounds = self.rounds - self.parked
        return self.verified / rounds if rounds else 0.0

    @property
    def accepted_per_round(self) -> float:
        """Draft tokens accepted per round that verified any."""
        rounds = self.rounds - self.parked
        return self.accepted / rounds if rounds else 0.0


class LiveFigures:
    """The numbers on the screen while an answer runs; they stay after its end."""

    def __init__(self) -> None:
        self.rounds: deque[Round] = deque(maxlen=KEEP)
        #: Tokens per second at recent rounds, for the sparkline.
        self.rates: deque[float] = deque(maxlen=KEEP)
        self.totals = Totals()
        self.stats: GenerationStats | None = None
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.prefill_done = 0
        self.prefilling = False
        #: Raised by every event, so that a display knows when to redraw.
        self.changes = 0

    def take(self, event: Event) -> None:
        """Account for one event of the running answer."""
        self.changes += 1
        if isinstance(event, Started):
            self._begin(event)
        elif isinstance(event, PrefillProgress):
            self.prefill_done = event.done
            self.prefilling = event.done < event.total
        elif isinstance(event, Round):
            self.prefilling = False
            self._round(event)
        elif isinstance(event, Finished):
            self.prefilling = False
            self.stats = event.stats

    @property
    def last(self) -> Round | None:
        """The newest round."""
        return self.rounds[-1] if self.rounds else None

    @property
    def rate(self) -> float:
        """Tokens per second of the engine over its last moments; 0 before the first round."""
        return self._recent_rate(WINDOW_MS)

    def _recent_rate(self, window: float) -> float:
        tokens, spent = 0, 0.0
        for entry in reversed(self.rounds):
            tokens += entry.committed
            spent += round_ms(entry)
            if spent >= window:
                break
        return 1000.0 * tokens / spent if spent else 0.0

    @property
    def context(self) -> int:
        """Tokens in the context now: prompt and what was generated."""
        if self.stats is not None:
            return self.stats.prompt_tokens + self.stats.generation_tokens
        return self.prompt_tokens + self.totals.committed

    def _begin(self, event: Started) -> None:
        self.rounds.clear()
        self.totals, self.stats = Totals(), None
        self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
        self.prefill_done, self.prefilling = event.cached_tokens, True

    def _round(self, event: Round) -> None:
        self.rounds.append(event)
        total = self.totals
        self.totals = Totals(
            total.rounds + 1,
            total.parked + (event.verified == 0),
            total.drafted + event.drafted,
            total.verified + event.verified,
            total.accepted + event.accepted,
            total.committed + event.committed,
        )
        self.rates.append(self._recent_rate(SPARK_MS))


def round_ms(event: Round) -> float:
    """Engine milliseconds of a round."""
    return event.draft_ms + event.verify_ms + event.other_ms


#: Beginnings of the schedulers' reasons, and what to say for them.
_SENTENCES = (
    ("parked", "Parked: on this machine and text, plain decoding is faster than drafting right now."),
    ("probe", "Probing: one deeper round to see whether more would be accepted."),
    ("flat cost", "Full depth: extra rows cost next to nothing on this machine."),
    ("plain", "Plain decoding: speculation is off."),
    ("nothing to verify", "Nothing to verify: the answer may take only one more token."),
)


def why(event: Round | None, max_depth: int) -> str:
    """Why the last round was as narrow as it was, as a sentence; empty before the first round."""
    if event is None:
        return ""
    reason = event.reason.strip()
    for start, sentence in _SENTENCES:
        if reason.startswith(start):
            return sentence
    if reason.startswith("fixed"):
        return f"Fixed: every round verifies {event.verified}, because depth was set by hand."
    if event.verified == 0:
        return "Plain step: nothing was drafted or nothing was worth verifying."
    if event.verified >= max(max_depth, 1):
        return "Full depth: every drafted token is likely enough to pay for its row."
    return (
        f"{event.verified} of {event.drafted} drafted: the next one is less likely to be accepted than its row costs."
    )
