"""A round whose depth is decided on the device: draft, depth, verification and acceptance are one graph, one host sync.

Every drafted row is part of the pass; kernels skip those beyond the depth, which they read from a buffer. Rows that are
skipped hold no choices, so the text cannot depend on them. Whether this beats reading the confidences first is decided
by a race (`race_case`), like any kernel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from macspec.engine.sampling import Chooser
from macspec.engine.session import Session
from macspec.engine.verify import accepted_prefix
from macspec.kernels.ops import RoundOps
from macspec.kernels.probe import Case
from macspec.request import SamplingParams
from macspec.scheduler.interface import SlotConfidence
from macspec.scheduler.plan import DepthPlan
from macspec.scheduler.survival import SurvivalModel
from macspec_models.drafters.interface import DraftBlock

#: Case that decides whether these rounds are used.
CASE = "device_round"


@dataclass(frozen=True, slots=True)
class DeviceTurn:
    """What came back from the device: ``choices`` after the anchor and the accepted drafts. Logits stay there."""

    draft: list[int]
    confidence: tuple[SlotConfidence, ...]
    depth: int
    choices: list[int]
    logits: mx.array


def run_round(session: Session, chooser: Chooser, ops: RoundOps, plan: DepthPlan, block: DraftBlock) -> DeviceTurn:
    """Verify a lazy draft as deep as ``plan`` says and wait for the outcome. The session must commit next."""
    packed, logits = build_round(session, chooser, ops, plan, block)
    slots = block.tokens.shape[0]
    values = np.array(packed)
    numbers = values[: 2 * slots + 3].astype(int).tolist()
    accepted, depth, draft, tokens = numbers[0], numbers[1], numbers[2 : slots + 2], numbers[slots + 2 :]
    rows = values[2 * slots + 3 :].reshape(slots, 3)
    confidence = tuple(SlotConfidence(*map(float, row)) for row in rows)
    return DeviceTurn(draft, confidence, depth, tokens[: accepted + 1], logits)


def build_round(
    session: Session, chooser: Chooser, ops: RoundOps, plan: DepthPlan, block: DraftBlock
) -> tuple[mx.array, mx.array]:
    """The graph of a round, lazy.

    Returns:
        Accepted drafts, depth, draft tokens ``[k]``, the target's choices up to the bonus token ``[k + 1]`` padded with
        -1, and the confidences ``[k, 3]``, flat in one float32 array (token ids are exact up to 2^24); and the logits
        ``[k + 1, vocab]``.
    """
    slots = block.tokens.shape[0]
    depth = depth_on_device(plan, block.confidence[:, 0], slots)
    rows = mx.concatenate([mx.array([session.anchor], mx.int32), block.tokens.astype(mx.int32)])
    with ops.counting(depth + 1):
        logits = session.forward(rows[None])
        choices = chooser.choose(logits, len(session.tokens), [])
        tokens, summary = ops.accept_prefix(rows[1:], choices, depth)
    numbers = mx.concatenate([summary[:1], depth, rows[1:], tokens]).astype(mx.float32)
    return mx.concatenate([numbers, block.confidence.reshape(-1)]), logits


def depth_on_device(plan: DepthPlan, probabilities: mx.array, slots: int) -> mx.array:
    """``plan.depth`` of a lazy draft's probabilities ``[slots]``: int32 ``[1]``."""
    most = min(plan.slots, slots)
    if plan.constant or most == 0:
        return mx.array([most], mx.int32)
    p = probabilities[:most]
    column = mx.sum(p[:, None] >= mx.array(plan.edges)[None], axis=1, keepdims=True)
    middle = mx.take_along_axis(mx.array(plan.logits)[:most], column, axis=1)[:, 0]
    clipped = mx.clip(p, plan.LEAST, plan.MOST)
    x = middle + plan.slope * (mx.log(clipped / (1 - clipped)) - mx.array(plan.mids)[column[:, 0]]) + plan.bias
    alive = mx.cumprod(mx.sigmoid(mx.clip(x, -plan.bound, plan.bound)))
    value = mx.concatenate([mx.zeros((1,)), mx.cumsum(alive)]) - mx.array(plan.price[: most + 1])
    if plan.again:
        again = [plan.again[min(k, len(plan.again) - 1)] for k in range(most)]
        lost = mx.concatenate([mx.ones((1,)), alive[:-1]]) - alive
        value = value - mx.concatenate([mx.zeros((1,)), mx.cumsum(lost * mx.array(again))])
    return mx.argmax(value, keepdims=True).astype(mx.int32)


def race_case(session: Session, ops: RoundOps, pair: str, kernels: str) -> Case:
    """Rounds of this pair with the depth decided on the device against rounds that read the confidences first.

    Both start with a wait for the round before, as they do in use, so the one has one wait a round and the other two.

    Args:
        session: with a prompt in its caches; its drafter makes the drafts, and nothing of them stays.
        pair, kernels: name the models and the kernels that take part; a change asks for a new race.
    """
    drafter, context = session.drafter, session.context
    assert drafter is not None and context is not None
    slots = drafter.max_depth
    chooser = Chooser(SamplingParams(), session.target.vocab_size, None, session.tokens, 0, frozenset(), ops=ops)
    # A row costs a third of a token: drafts of most lengths pay for some of their rows.
    plan = SurvivalModel().plan(slots, 0.0, [0.35 * row for row in range(slots + 1)])

    def draft(anchor: mx.array) -> DraftBlock:
        session.tokens[-1] = int(np.array(anchor)[0])
        return drafter.draft(context, session.anchor, session.tokens, limit=slots)

    def on_device(anchor: mx.array) -> mx.array:
        packed, _ = build_round(session, chooser, ops, plan, draft(anchor))
        session.cache.rollback()
        return packed[slots + 2 : 2 * slots + 3]

    def on_host(anchor: mx.array) -> mx.array:
        block = draft(anchor)
        both = np.array(mx.concatenate([block.tokens.astype(mx.float32)[:, None], block.confidence], axis=1))
        tokens: list[int] = both[: plan.depth(both[:, 1].tolist()), 0].astype(int).tolist()
        logits = session.forward(mx.array([[session.anchor, *tokens]]))
        choices: Sequence[int] = np.array(chooser.choose(logits, len(session.tokens), tokens)).tolist()
        session.cache.rollback()
        kept = accepted_prefix(tokens, choices) + 1
        return mx.array([*choices[:kept], *[-1] * (slots + 1 - kept)], mx.float32)

    return Case(
        CASE,
        pair,
        str(session.target.dtype).removeprefix("mlx.core."),
        slots + 1,
        hashlib.sha256(kernels.encode()).hexdigest()[:8],
        lambda variant: [mx.array([1 + variant], mx.int32)],
        on_device,
        on_host,
        on_host,
        1e-8,  # token ids: equal or not
    )
