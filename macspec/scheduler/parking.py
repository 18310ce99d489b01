"""Whether to draft at all: parks when plain decoding beats the best expected round, and looks again now and then."""

from __future__ import annotations

from collections import deque
from enum import Enum

#: Share of all time that looking again may cost.
PROBE_BUDGET = 0.02
#: How much of a round's worth is what was expected of it; the rest is what came.
EXPECTED_WEIGHT = 0.75
#: Drafted rounds before parking is considered, after a start and after an un-parking.
PATIENCE = 6
#: Drafted rounds the running mean of the advantage looks back on, and the most one of them counts: a lucky round must
#: not hide a dozen bad ones.
MEMORY = 12
CLIP = 2.0
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
        self._sum = 0.0
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

    def drafted_round(self, expected: float, real: float, extra_ms: float, ms: float) -> None:
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
        if len(self._recent) == MEMORY:
            self._sum -= self._recent[0]
        self._recent.append(min(CLIP, advantage))
        self._sum += self._recent[-1]
        self._real.append(min(CLIP, real))
        count = len(self._recent)
        self._distrust = len(self._real) == PROOF and sum(self._real) < DISPROVED_BELOW * PROOF
        if self._distrust or (count >= PATIENCE and self._sum < PARK_BELOW * count):
            self.mode = Mode.PARKED
            self._waited = 0
            self._gap = FIRST_GAP

    def _unpark(self) -> None:
        self.mode = Mode.DRAFT
        self._recent.clear()
        self._real.clear()
        self._sum = 0.0
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
