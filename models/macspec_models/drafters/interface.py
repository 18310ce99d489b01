"""The one interface every kind of drafter offers the decode loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import mlx.core as mx

#: Embeds token ids ``[..., n]`` to ``[..., n, width]`` with the target's table.
Embed = Callable[[mx.array], mx.array]
#: Scores hidden states ``[..., width]`` to logits ``[..., vocab]`` with the target's head.
Head = Callable[[mx.array], mx.array]


@dataclass(frozen=True)
class DraftBlock:
    """Proposals of one round, still lazy on the device.

    ``tokens``: int32 ``[k]``, first slot first. ``confidence``: float32 ``[k, 3]`` with, per token, its probability,
    the top-1/top-2 logit gap and the entropy in nats, all on the target's logit scale. ``k`` may be below the
    drafter's ``max_depth`` and may be 0 when it has nothing to propose. ``source`` is the kind of proposer that made
    the block where a drafter has several; confidences of different sources are not comparable. ``features``: float32
    inputs of a length predictor, from drafters that were given a ``feature_map``.
    """

    tokens: mx.array
    confidence: mx.array
    source: str = ""
    features: mx.array | None = None


class DraftContext(Protocol):
    """What a drafter keeps of the committed tokens. Grows with ``Drafter.extend``, never by drafting."""

    @property
    def length(self) -> int:
        """Committed positions it holds; the next anchor's absolute position."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        ...

    def trim(self, length: int) -> None:
        """Forget positions from ``length`` on."""
        ...

    def skip(self, count: int) -> None:
        """Pass over ``count`` positions whose features nobody kept; drafts see nothing of them."""
        ...

    def fork(self) -> DraftContext:
        """An independent copy that shares what is immutable."""
        ...

    def arrays(self) -> list[mx.array]:
        """Arrays to evaluate so that nothing stays lazy."""
        ...


class Drafter(Protocol):
    """Proposes draft tokens; can change only the speed of generation, never its text."""

    @property
    def kind(self) -> str:
        """``dflash``, ``dflash2``, ``dspark``, ``domino``, ``lookup``."""
        ...

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs it reads, ascending; empty when it reads none."""
        ...

    @property
    def max_depth(self) -> int:
        """Most draft tokens one block gives."""
        ...

    def new_context(self) -> DraftContext:
        """An empty context."""
        ...

    def extend(self, context: DraftContext, features: mx.array) -> None:
        """Append committed positions: ``features [n, taps * target width]``, taps concatenated in ascending order."""
        ...

    def draft(
        self,
        context: DraftContext,
        anchor: int,
        history: Sequence[int],
        *,
        limit: int | None = None,
        noise: Callable[[int, int], mx.array] | None = None,
    ) -> DraftBlock:
        """Propose what follows ``anchor``, the last committed token, at absolute position ``context.length``.

        Args:
            history: every committed token id, prompt included, the anchor last.
            limit: at most this many draft tokens are of use now.
            noise: ``noise(first_position, rows)`` gives the target's own keyed noise ``[rows, vocab]`` already scaled
                by the temperature; when given, slot k takes the arg max of logits plus its row (coupled drafting).
        """
        ...


@runtime_checkable
class FreeDrafter(Protocol):
    """A drafter that has proposals which no model has to be run for, so that they are worth a look in any round."""

    def draft_free(self, context: DraftContext, history: Sequence[int], *, limit: int) -> DraftBlock:
        """What can be had for nothing, perhaps no token at all; else as ``Drafter.draft``."""
        ...
