"""The cases of a round's small ops, from a pair's shapes; those of the matrices and of attention are in `cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from macspec.kernels import reference
from macspec.kernels.calls import Kernels
from macspec.kernels.cases import (
    ANY_SHAPE,
    PROBED_ROWS,
    TOLERANCE,
    adversarial,
    choice_shape,
    on_cpu,
    plain,
    replay_shape,
    vocabulary_shape,
)
from macspec.kernels.probe import Arrays, Case
from macspec.kernels.replacement import places
from macspec.kernels.replay import RecordedDelta
from macspec.kernels.source import load
from macspec_models.drafters.confidence import read
from macspec_models.target import Target


def round_cases(kernels: Kernels, target: Target, drafter: Any) -> list[Case]:
    """Everything a round over this pair may ask for besides the target's own matrices and attention."""
    wanted = {case.name: case for case in acceptance_cases(kernels)}
    # Logits as the model gives them, and in float32 once bias, masks or penalties were applied.
    for dtype in dict.fromkeys((target.dtype, mx.float32)):
        wanted |= {case.name: case for case in choice_cases(kernels, target.vocab_size, dtype)}
    head = getattr(drafter, "head", None)
    if head is not None:
        rows = target.vocab_size if head.rows is None else head.rows.size
        wanted |= {case.name: case for case in confidence_cases(kernels, rows)}
    for _, module in places(target.model):
        if isinstance(module, RecordedDelta) and module.head_k_dim % 32 == 0:
            sizes = (module.num_k_heads, module.num_v_heads, module.head_v_dim, module.head_k_dim)
            wanted |= {case.name: case for case in replay_cases(kernels, *sizes, target.dtype)}
    return list(wanted.values())


def choice_cases(kernels: Kernels, vocab: int, dtype: mx.Dtype) -> list[Case]:
    """`keyed_choice`, greedy and warm, over the target's vocabulary, all row counts."""
    found = []
    for temperature in (0.0, 0.8):
        key: dict[str, Any] = {"temperature": temperature, "seed": 0x9E3779B97F4A7C15, "position": 1000}
        for rows in PROBED_ROWS:
            found.append(
                Case(
                    "keyed_choice",
                    choice_shape(vocab, temperature),
                    plain(dtype),
                    rows,
                    load("keyed_choice").digest,
                    _logits(rows, vocab, dtype),
                    lambda a, key=key: kernels.keyed_choice(a, **key),
                    lambda a, key=key: reference.keyed_choice(a, **key),
                    on_cpu(lambda a, key=key: reference.keyed_choice(a, **key)),
                    1e-8,  # a token is right or wrong: below one id in any vocabulary
                    lambda a, key=key: kernels.keyed_choice(a[:1], **key),
                    together=temperature > 0,  # its logarithms may round otherwise than MLX's
                )
            )
    return found


def confidence_cases(kernels: Kernels, vocab: int) -> list[Case]:
    """`draft_confidence` over the rows of a drafter's head, all numbers of slots."""
    return [
        Case(
            "draft_confidence",
            vocabulary_shape(vocab),
            "float32",
            rows,
            load("draft_confidence").digest,
            _logits(rows, vocab, mx.float32),
            lambda a: kernels.draft_confidence(a)[1][:, 1:],
            lambda a: read(a)[1],
            on_cpu(lambda a: reference.draft_confidence(a)[1][:, 1:]),
            1e-5,
        )
        for rows in PROBED_ROWS
    ]


def acceptance_cases(kernels: Kernels) -> list[Case]:
    """`accept_prefix`, all row counts, some prefix of the draft right."""
    none = mx.array([-1], mx.int32)

    def inputs(rows: int) -> Callable[[int], Arrays]:
        def make(variant: int) -> Arrays:
            choice = mx.random.randint(0, 9, (rows,), key=mx.random.key(variant)).astype(mx.int32)
            right = mx.arange(max(rows - 1, 1)) < (variant * rows) // 2
            draft = mx.where(right, choice[: max(rows - 1, 1)], 9).astype(mx.int32)
            return [draft, choice, mx.array([rows - 1 - variant % 2 * (rows > 1)], mx.int32)]

        return make

    return [
        Case(
            "accept_prefix",
            ANY_SHAPE,
            "int32",
            rows,
            load("accept_prefix").digest,
            inputs(rows),
            lambda d, c, n: mx.concatenate([*kernels.accept_prefix(d, c, n, none)]),
            lambda d, c, n: mx.concatenate([*reference.accept_prefix(d, c, n, none)]),
            on_cpu(lambda d, c, n: mx.concatenate([*reference.accept_prefix(d, c, n, none)])),
            1e-3,  # whole numbers below ten
        )
        for rows in PROBED_ROWS
    ]


def replay_cases(
    kernels: Kernels, key_heads: int, value_heads: int, value_dim: int, key_dim: int, dtype: mx.Dtype
) -> list[Case]:
    """`recurrent_replay` of one layer shape, all numbers of accepted rows."""

    def inputs(rows: int) -> Callable[[int], Arrays]:
        def make(variant: int) -> Arrays:
            keys = mx.random.split(mx.random.key(variant), 5)
            k = mx.random.normal((1, rows, key_heads, key_dim), key=keys[0])
            k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
            v = adversarial(mx.random.normal((1, rows, value_heads, value_dim), key=keys[1]), variant)
            g, beta = (mx.random.uniform(shape=(1, rows, value_heads), key=n) for n in keys[2:4])
            state = mx.random.normal((1, value_heads, value_dim, key_dim), key=keys[4])
            return [k.astype(dtype), v.astype(dtype), g, beta.astype(dtype), state]

        return make

    return [
        Case(
            "recurrent_replay",
            replay_shape(key_heads, value_heads, value_dim, key_dim),
            plain(dtype),
            rows,
            load("recurrent_replay").digest,
            inputs(rows),
            lambda k, v, g, b, s, rows=rows: kernels.recurrent_replay(k, v, g, b, s, rows),
            lambda k, v, g, b, s, rows=rows: reference.recurrent_replay(k, v, g, b, s, rows),
            on_cpu(lambda k, v, g, b, s, rows=rows: reference.recurrent_replay(k, v, g, b, s, rows)),
            TOLERANCE[mx.float32],  # the state is float32 whatever the activations are
        )
        for rows in PROBED_ROWS
    ]


def _logits(rows: int, vocab: int, dtype: mx.Dtype) -> Callable[[int], Arrays]:
    return lambda variant: [(mx.random.normal((rows, vocab), key=mx.random.key(variant)) * 4).astype(dtype)]
