"""Whether to draft at all: parks when plain decoding beats the best expected round, and looks again now and then."""

from __future__ import annotations

from collections import deque
from enum import Enum
from itertools import islice

#: Share of all time that looking again may cost.
PROBE_BUDGET = 0.02
#: How much of a round's worth is what was expected of it; the rest is what came.
EXPECTED_WEIGHT = 0.75
#: Drafted rounds the mean of the advantage looks back on, and the most one of them counts: a lucky round must not hide
#: a dozen bad ones.
MEMORY = 48
CLIP = 2.0
#: A clear loss parks after few rounds, a small one only when many rounds agree; a good stretch is noisy too.
PATIENCE, FEW, CLEARLY_BELOW = 6, 12, -0.15
STEADY = 16
#: Drafts in a row of which nothing was worth verifying.
IDLE = 6
#: What rounds really brought parks too, whatever was expected of them: its mean over so many rounds below that much.
PROOF = 14
DISPROVED_BELOW = -0.35
#: Advantage in tokens per round below which drafting stops, and above which it starts again.
PARK_BELOW = -0.01
UNPARK_ABOVE = 0.02
#: Plain rounds before the first look, before a later look while the last one is not long ago, and at most.
FIRST_GAP = 3
NEAR_GAP = 12
LONGEST_GAP = 192
#: Failed looks at the near gap before the gap grows on.
NEAR_LOOKS = 12


class Mode(Enum):
    """What the parking rule wants of the next round."""

    DRAFT = "draft"
    PARKED = "parked"
    PROBE = "probe"


class Parking:
    """The state machine of parking.

    ``expected`` and ``real`` are what a drafted round was worth over plain decoding, in tokens: as estimated from the
    drafter's confidence, little noise but perhaps wrong, and as it came. ``extra_ms`` is what it took beyond one plain
    step, which is all a probe can waste.
    """

    def __init__(self) -> None:
        self.mode = Mode.DRAFT
        self._recent: deque[float] = deque(maxlen=MEMORY)
        self._idle = 0
        self._real: deque[float] = deque(maxlen=PROOF)
        self._distrust = False
        self._gap = FIRST_GAP
        self._waited = 0
        self._failed = 0
        self._total_ms = 0.0
        self._probe_ms = 0.0

    @property
    def probe_share(self) -> float:
        """Share of the time so far that probes cost beyond plain steps."""
        return self._probe_ms / self._total_ms if self._total_ms else 0.0

    def next(self, probe_ms: float) -> Mode:
        """What to do now; ``probe_ms`` is the extra time a probe is expected to take."""
        if self.mode is Mode.PARKED and self._waited >= self._gap:
            if self._probe_ms + probe_ms <= PROBE_BUDGET * (self._total_ms + probe_ms):
                self.mode = Mode.PROBE
        return self.mode

    def new_request(self) -> None:
        """A new text may be of another kind: look soon."""
        self._failed = 0
        self._gap = FIRST_GAP

    def plain_round(self, ms: float) -> None:
        """A plain step was made."""
        self._total_ms += ms
        self._waited += 1

    def drafted_round(self, expected: float, real: float, extra_ms: float, ms: float, *, idle: bool = False) -> None:
        """A drafted round was made."""
        self._total_ms += ms
        advantage = real if self._distrust else real + EXPECTED_WEIGHT * (expected - real)
        if self.mode is Mode.PROBE:
            self._probe_ms += max(0.0, extra_ms)
            if advantage > UNPARK_ABOVE:
                self._unpark()
            else:
                self._fail()
            return
        self._idle = self._idle + 1 if idle else 0
        self._recent.append(min(CLIP, advantage))
        self._real.append(min(CLIP, real))
        if self._losing():
            self.mode = Mode.PARKED
            self._waited = 0
            self._gap = FIRST_GAP

    def _losing(self) -> bool:
        """Whether the evidence is enough to stop drafting: plain little over few rounds, or a little over many."""
        self._distrust = len(self._real) == PROOF and sum(self._real) < DISPROVED_BELOW * PROOF
        count = len(self._recent)
        few = min(FEW, count)
        return (
            self._distrust
            or self._idle >= IDLE
            or (count >= PATIENCE and sum(islice(reversed(self._recent), few)) < CLEARLY_BELOW * few)
            or (count >= STEADY and sum(self._recent) < PARK_BELOW * count)
        )

    def _unpark(self) -> None:
        self.mode = Mode.DRAFT
        self._recent.clear()
        self._real.clear()
        self._idle = 0
        self._distrust = False
        self._failed = 0
        self._gap = FIRST_GAP

    def _fail(self) -> None:
        self.mode = Mode.PARKED
        self._waited = 0
        self._failed += 1
        if self._gap < NEAR_GAP:
            self._gap = min(NEAR_GAP, self._gap * 2)
        elif self._failed > NEAR_LOOKS:
            self._gap = min(LONGEST_GAP, self._gap * 2)
