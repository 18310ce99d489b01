"""Which proposer drafts this round: the model drafter or prompt lookup. No tensors here.

The decision comes before the model drafts, so that a round given to lookup saves the model's pass. It may depend on
anything but the target's result, and does not: what is drafted never changes the text.
"""

from __future__ import annotations

from collections.abc import Sequence


def expected_accepted(chances: Sequence[float]) -> float:
    """Expected length of the accepted prefix: sum over k of the product of the first k chances."""
    total, survival = 0.0, 1.0
    for chance in chances:
        survival *= chance
        total += survival
    return total


class ProposerChoice:
    """Buys the proposer with more expected tokens for its price.

    A round costs one verification, and ``draft_share`` of one more when the model drafts. Lookup is chosen when
    ``(1 + E_lookup) * (1 + draft_share) > 1 + E_model``, both expectations counting accepted draft tokens.
    """

    #: Accepted tokens per model draft assumed at first, and the weight of that assumption in rounds.
    PRIOR_MEAN, PRIOR_ROUNDS = 2.0, 4.0
    #: Memory of about 25 rounds: acceptance changes with the kind of text being written.
    DECAY = 0.96
    #: Lookup must be better by this factor, so that a wrong estimate costs little.
    MARGIN = 1.1

    def __init__(self, draft_share: float = 0.2) -> None:
        self.draft_share = draft_share
        self._sum, self._rounds = self.PRIOR_MEAN * self.PRIOR_ROUNDS, self.PRIOR_ROUNDS

    @property
    def model_expects(self) -> float:
        """Accepted tokens a model draft has lately brought."""
        return self._sum / self._rounds

    def learn(self, accepted: int) -> None:
        """A model draft brought this many accepted tokens."""
        self._sum = self._sum * self.DECAY + accepted
        self._rounds = self._rounds * self.DECAY + 1

    def prefers_lookup(self, chances: Sequence[float]) -> bool:
        """Whether lookup, with these conditional chances of its tokens, is the better buy."""
        if not chances:
            return False
        return (1 + expected_accepted(chances)) * (1 + self.draft_share) > self.MARGIN * (1 + self.model_expects)
