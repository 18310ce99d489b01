"""Acceptance: how much of a verified draft the target agrees with."""

from __future__ import annotations

from collections.abc import Sequence


def accepted_prefix(draft: Sequence[int], choices: Sequence[int]) -> int:
    """Length of the longest prefix of ``draft`` that equals the target's ``choices``.

    With choices keyed by position this is delta-proposal rejection sampling: exact at every temperature (Leviathan et
    al. 2211.17192 with a point-mass proposal).
    """
    for number, (proposed, chosen) in enumerate(zip(draft, choices, strict=False)):
        if proposed != chosen:
            return number
    return min(len(draft), len(choices))
