"""The drafter's context: chunks, sliding windows, trimming, forking; drafting must never change it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macspec_models.checkpoints import load_drafter
from macspec_models.drafters.context import BlockContext, LayerBuffer
from tiny_drafters import TINY_TARGET, TinyTarget, write_dflash

WIDTH = 3


def rows(begin: int, end: int) -> tuple[mx.array, mx.array]:
    """Keys and values that say which position they belong to."""
    keys = mx.broadcast_to(mx.arange(begin, end, dtype=mx.float32)[None, None, :, None], (1, 2, end - begin, WIDTH))
    return keys, -keys


def positions(buffer: LayerBuffer, block: int = 2) -> list[int]:
    """Positions a block would attend to, its own rows last."""
    keys, values = buffer.with_block(*rows(buffer.length, buffer.length + block))
    assert mx.array_equal(keys, -values)
    return [int(value) for value in np.array(keys)[0, 0, :, 0]]


def test_full_buffer_grows_in_chunks() -> None:
    buffer = LayerBuffer(None, chunk=4)
    for step in range(11):
        buffer.append(*rows(step, step + 1))
        assert positions(buffer) == list(range(step + 3))
    assert buffer.keys is not None and buffer.keys.shape[2] % 4 == 0
    assert buffer.keys.shape[2] <= 16


def test_drafting_commits_nothing() -> None:
    buffer = LayerBuffer(None, chunk=4)
    buffer.append(*rows(0, 3))
    assert positions(buffer, block=6) == list(range(9))
    assert positions(buffer, block=1) == [0, 1, 2, 3]
    assert buffer.length == 3


@pytest.mark.parametrize("piece", [1, 3, 5, 17])
def test_sliding_buffer_keeps_what_can_be_seen_and_little_more(piece: int) -> None:
    buffer = LayerBuffer(6, chunk=4)
    for begin in range(0, 85, piece):
        buffer.append(*rows(begin, begin + piece))
        length = begin + piece
        assert positions(buffer) == list(range(max(0, length - 5), length + 2))
        assert buffer.keys is not None and buffer.keys.shape[2] <= 6 + 4 + piece + 2 + 4


def test_trimming_a_sliding_buffer_below_what_it_kept_leaves_less_context() -> None:
    buffer = LayerBuffer(4, chunk=4)
    buffer.append(*rows(0, 40))
    buffer.trim(38)
    assert positions(buffer) == [35, 36, 37, 38, 39]
    buffer.trim(10)
    assert positions(buffer) == [10, 11]
    buffer.append(*rows(10, 12))
    assert positions(buffer) == [10, 11, 12, 13]


def test_forks_do_not_see_each_other() -> None:
    first = BlockContext([None, 5], chunk=4)
    first.append([rows(0, 6), rows(0, 6)])
    second = first.fork()
    first.append([rows(6, 7), rows(6, 7)])
    keys, values = rows(100, 101)
    second.append([(keys, values), (keys, values)])
    assert positions(first.layers[0], 1) == [*range(7), 7]
    assert positions(second.layers[0], 1)[-2:] == [100, 7]
    assert positions(first.layers[0], 1) == [*range(7), 7]
    second.trim(2)
    assert (first.length, second.length) == (7, 2)


def test_skipped_positions_count_but_are_not_seen() -> None:
    context = BlockContext([None, 5])
    context.append([rows(0, 6), rows(0, 6)])
    context.skip(10)
    assert context.length == 16
    assert positions(context.layers[0]) == [16, 17]
    context.append([rows(16, 18), rows(16, 18)])
    assert positions(context.layers[1]) == [16, 17, 18, 19]


def test_export_and_fill_restore_a_context() -> None:
    first = BlockContext([None, 5, 5], chunk=4)
    first.append([rows(0, 40), rows(0, 40), rows(0, 40)])
    first.trim(38)
    second = BlockContext([None, 5, 5], chunk=4)
    second.fill(first.export(), 38)
    assert second.length == 38
    for one, two in zip(first.layers, second.layers, strict=True):
        assert positions(one) == positions(two)
    skipped = BlockContext([None, 5])
    skipped.skip(9)
    third = BlockContext([None, 5])
    third.fill(skipped.export(), 9)
    assert third.length == 9 and positions(third.layers[0]) == [9, 10]


def test_fill_refuses_what_is_no_such_context() -> None:
    context = BlockContext([None, 5])
    context.append([rows(0, 6), rows(0, 6)])
    parts = context.export()
    for wrong, length in ((parts[:3], 6), (parts, 7), ([9, *parts[1:]], 6), ([None, *parts[1:]], 6)):
        with pytest.raises(ValueError, match="layer|layers"):
            BlockContext([None, 5]).fill(wrong, length)


@pytest.mark.parametrize("length", [-1, 7])
def test_trim_refuses_what_it_does_not_have(length: int) -> None:
    context = BlockContext([None])
    context.append([rows(0, 6)])
    with pytest.raises(ValueError, match="cannot trim a context of 6 positions"):
        context.trim(length)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("drafter")
    layers = ["sliding_attention", "full_attention"]
    write_dflash(folder, TINY_TARGET, num_hidden_layers=2, layer_types=layers, sliding_window=300, is_causal=False)
    return load_drafter(folder, TinyTarget())


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("extend"), st.integers(1, 60)),
            st.tuples(st.just("draft"), st.integers(0, 6)),
            st.tuples(st.just("trim"), st.integers(1, 30)),
            st.tuples(st.just("fork"), st.just(0)),
        ),
        min_size=1,
        max_size=14,
    )
)
def test_any_history_equals_a_fresh_context(drafter: Any, steps: list[tuple[str, int]]) -> None:
    """After extends, drafts, trims and forks a draft is what a fresh context of the same positions gives."""
    width = len(drafter.taps) * TINY_TARGET["hidden_size"]
    features = np.random.default_rng(3).normal(size=(900, width)).astype(np.float32)
    context = drafter.new_context()
    for what, amount in steps:
        if what == "extend":
            drafter.extend(context, mx.array(features[context.length : context.length + amount]))
        elif what == "draft":
            drafter.draft(context, 5, [5], limit=amount)
        elif what == "trim":
            context.trim(max(0, context.length - amount))
        else:
            context = context.fork()
    fresh = drafter.new_context()
    drafter.extend(fresh, mx.array(features[: context.length]))
    assert context.length == fresh.length
    one, two = drafter.draft(context, 5, [5]), drafter.draft(fresh, 5, [5])
    assert np.allclose(np.array(one.confidence), np.array(two.confidence), rtol=1e-3, atol=1e-4)


def test_long_contexts_pass_the_sliding_window(tmp_path: Path) -> None:
    """Contexts far beyond the window work and stay small: a peer's rotating cache broke there."""
    write_dflash(tmp_path, TINY_TARGET, layer_types=["sliding_attention"] * 3, sliding_window=16)
    drafter = load_drafter(tmp_path, TinyTarget())
    context = drafter.new_context()
    features = np.random.default_rng(0).normal(size=(3000, 3 * 32)).astype(np.float32)
    for begin in range(0, 3000, 100):
        drafter.extend(context, mx.array(features[begin : begin + 100]))
        drafter.draft(context, 1, [1])
    assert context.length == 3000
    recent = drafter.new_context()
    recent.skip(2980)
    drafter.extend(recent, mx.array(features[2980:]))
    one, two = drafter.draft(context, 1, [1]), drafter.draft(recent, 1, [1])
    assert np.allclose(np.array(one.confidence), np.array(two.confidence), rtol=1e-3, atol=1e-4)
    assert context.nbytes <= 2 * 3 * 2 * 8 * 4 * 512
    assert all(isinstance(array, mx.array) for array in context.arrays())


def test_drafting_and_committing_copy_no_context() -> None:
    buffer = LayerBuffer(None)
    buffer.append(*rows(0, 20_000))
    mx.eval(buffer.keys, buffer.values)
    assert buffer.keys is not None
    whole = buffer.keys.nbytes
    for step in range(3):
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        keys, values = buffer.with_block(*rows(buffer.length, buffer.length + 4))
        mx.eval(keys.sum(), values.sum())
        del keys, values
        buffer.append(*rows(20_000 + step, 20_001 + step))
        mx.eval(buffer.keys, buffer.values)
        assert mx.get_peak_memory() - before < whole / 4


def test_nothing_wanted_gives_nothing(drafter: Any) -> None:
    block = drafter.draft(drafter.new_context(), 1, [1], limit=0)
    assert block.tokens.shape == (0,) and block.confidence.shape == (0, 3)


def test_an_empty_context_can_draft(drafter: Any) -> None:
    assert drafter.draft(drafter.new_context(), 1, [1]).tokens.shape == (drafter.max_depth,)
    context = drafter.new_context()
    drafter.extend(context, mx.zeros((0, len(drafter.taps) * TINY_TARGET["hidden_size"])))
    assert context.length == 0
