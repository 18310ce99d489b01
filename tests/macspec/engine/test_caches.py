"""Transactions against an exact model: whatever happened before, the caches equal a fresh prefill, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from mlx_lm.models.cache import BatchKVCache, CacheList, KVCache, RotatingKVCache

from toy_model import KINDS, InjectedError, ToyModel

# isort: split
import mlx.core as mx

from macspec.engine.caches import CacheStateError, TargetCache, WindowCache, quantize_layers, supports_rollback
from macspec.errors import ModelLoadError, UnsupportedError

PROBE = [3, 1, 4]


def checksums(model: ToyModel, layers, tokens) -> np.ndarray:
    return np.array(model.forward(mx.array([tokens]), layers))


def fresh(model: ToyModel, tokens, probe=PROBE) -> np.ndarray:
    """Checksums of ``probe`` after one plain pass over everything with mlx-lm's own caches."""
    return checksums(model, model.make_cache(), [*tokens, *probe])[len(tokens) :]


def assert_fresh(model: ToyModel, cache: TargetCache, tokens) -> None:
    cache.check()
    assert cache.length == len(tokens)
    for probe in (PROBE, PROBE[:1]):
        np.testing.assert_array_equal(checksums(model, cache.fork().layers, probe), fresh(model, tokens, probe))
    cache.check()


def small_steps(cache: TargetCache) -> TargetCache:
    """Shrink the windows' spare room, so that a few rows use it up."""
    for layer in cache.layers:
        for part in layer.caches if isinstance(layer, CacheList) else [layer]:
            if isinstance(part, WindowCache):
                part.step = 3
    return cache


def new_cache(model: ToyModel) -> TargetCache:
    return small_steps(TargetCache(model.make_cache()))


def add(model: ToyModel, cache: TargetCache, tokens) -> None:
    with cache.append(len(tokens)):
        model.forward(mx.array([tokens]), cache.layers)


def verify(model: ToyModel, cache: TargetCache, rows, accepted: int) -> None:
    cache.begin(len(rows))
    mx.eval(model.forward(mx.array([rows]), cache.layers))
    cache.commit(accepted, lambda count: mx.eval(model.forward(mx.array([rows[:count]]), cache.layers)))


tokens_of = st.lists(st.integers(0, 126), min_size=1, max_size=9)


class Transactions(RuleBasedStateMachine):
    """Any sequence of operations on several forks; each must always equal a fresh prefill of its tokens."""

    kinds: tuple[str, ...] = tuple(KINDS)

    @initialize()
    def start(self) -> None:
        self.model = ToyModel(self.kinds)
        self.cache, self.tokens = new_cache(self.model), []
        self.others: list[tuple[TargetCache, list[int]]] = []
        self.marks: list = []

    @rule(chunk=tokens_of)
    def append(self, chunk) -> None:
        add(self.model, self.cache, chunk)
        self.tokens = self.tokens + chunk

    @rule(rows=tokens_of, data=st.data())
    def verify(self, rows, data) -> None:
        accepted = data.draw(st.integers(0, len(rows)))
        before = self.cache.replayed_rows
        verify(self.model, self.cache, rows, accepted)
        replayed = self.cache.replayed_rows - before
        assert replayed == (accepted if self.cache.recurrent and accepted < len(rows) else 0)
        self.tokens = self.tokens + rows[:accepted]

    @rule(rows=tokens_of)
    def roll_back(self, rows) -> None:
        self.cache.begin(len(rows))
        self.model.forward(mx.array([rows]), self.cache.layers)
        self.cache.rollback()

    @rule(rows=tokens_of, layer=st.integers(0, len(KINDS)), how=st.sampled_from(["append", "verify", "replay"]))
    def fail(self, rows, layer, how) -> None:
        """The pass ends with an exception after some layers took their rows in."""
        layer = min(layer, len(self.kinds))

        def failing(count: int) -> None:
            self.model.fail_at = layer
            self.model.forward(mx.array([rows[:count]]), self.cache.layers)

        try:
            if how == "append":
                with self.cache.append(len(rows)):
                    failing(len(rows))
            elif how == "verify":
                self.cache.begin(len(rows))
                failing(len(rows))
            else:
                self.cache.begin(len(rows))
                self.model.forward(mx.array([rows]), self.cache.layers)
                self.cache.commit(len(rows) // 2, failing)
                self.tokens = self.tokens + rows[: len(rows) // 2]
        except InjectedError:
            self.cache.rollback()
        self.model.fail_at = None

    @rule()
    def fork(self) -> None:
        self.others = [*self.others[-2:], (self.cache.fork(), self.tokens)]

    @precondition(lambda self: self.others)
    @rule(data=st.data())
    def switch(self, data) -> None:
        index = data.draw(st.integers(0, len(self.others) - 1))
        other = self.others[index]
        self.others[index] = (self.cache, self.tokens)
        self.cache, self.tokens = other

    @rule()
    def reset(self) -> None:
        self.cache, self.tokens = new_cache(self.model), []

    @rule()
    def mark(self) -> None:
        self.marks = [*self.marks[-2:], (self.cache.checkpoint(), self.tokens)]

    @rule(data=st.data())
    def restore(self, data) -> None:
        usable = [mark for mark in self.marks if mark[1] == self.tokens[: mark[0].length]]
        if usable:
            mark, tokens = data.draw(st.sampled_from(usable))
            self.cache = self.cache.fork()
            self.cache.restore(mark)
            small_steps(self.cache)
            self.tokens = tokens

    @rule(data=st.data())
    def trim(self, data) -> None:
        length = data.draw(st.integers(0, len(self.tokens)))
        if self.cache.can_trim(length):
            self.cache.trim(length)
            self.tokens = self.tokens[:length]
        else:
            with pytest.raises(CacheStateError):
                self.cache.trim(length)

    @rule()
    def export(self) -> None:
        copy = new_cache(self.model)
        copy.fill(self.cache.export(), self.cache.length)
        self.cache = copy

    @invariant()
    def equals_a_fresh_prefill(self) -> None:
        for cache, tokens in [(self.cache, self.tokens), *self.others]:
            assert_fresh(self.model, cache, tokens)

    def teardown(self) -> None:
        mx.clear_cache()


class PositionalTransactions(Transactions):
    """Without recurrent layers, so that trims and partial commits take the other path."""

    kinds = ("full", "quantized", "window", "chunked", "concatenated", "windowed list")


_fast = settings(
    max_examples=14, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestTransactions = Transactions.TestCase
TestTransactions.settings = _fast
TestPositionalTransactions = PositionalTransactions.TestCase
TestPositionalTransactions.settings = _fast


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_rows_can_be_rolled_back_at_every_position(kind: str) -> None:
    """Windows of 6 and chunks of 5 wrap several times on the way to position 26."""
    model = ToyModel([kind])
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 127, 40).tolist()
    walked = new_cache(model)
    for start in range(27):
        for rows in (1, 2, 7):
            for accepted in range(rows + 1):
                cache = walked.fork()
                small_steps(cache)
                verify(model, cache, tokens[start : start + accepted] + [99] * (rows - accepted), accepted)
                assert_fresh(model, cache, tokens[: start + accepted])
        verify(model, walked, [tokens[start]], 1)


def test_a_window_keeps_its_memory_bounded() -> None:
    model = ToyModel(["window"])
    cache = TargetCache(model.make_cache())
    add(model, cache, [1] * 300)
    for _ in range(200):
        verify(model, cache, [1, 2, 3], 2)
    window = cache.layers[0]
    assert window.keys.shape[2] <= window.max_size - 1 + window.step + 3


def test_the_window_is_not_copied_in_most_rounds() -> None:
    model = ToyModel(["window"])
    cache = TargetCache(model.make_cache())
    add(model, cache, [1] * 20)
    starts = []
    for _ in range(60):
        verify(model, cache, [1, 2, 3, 4], 2)
        starts.append(cache.layers[0]._idx)
    assert sum(later < earlier for earlier, later in zip(starts, starts[1:], strict=False)) <= 1


def test_taking_over_a_ring_that_has_wrapped() -> None:
    model = ToyModel(["window"])
    tokens = list(range(1, 17))
    layers = model.make_cache()
    model.forward(mx.array([tokens[:4]]), layers)
    for token in tokens[4:]:
        model.forward(mx.array([[token]]), layers)
    assert layers[0]._idx != layers[0].keys.shape[2], "the ring's newest row should lie in its middle"
    assert_fresh(model, TargetCache(layers), tokens)


def test_a_fork_costs_no_memory_until_it_is_written_to() -> None:
    model = ToyModel(["full"])
    cache = new_cache(model)
    add(model, cache, [1] * 2000)
    mx.eval(cache.arrays())
    before = mx.get_active_memory()
    fork = cache.fork()
    mx.eval(fork.arrays())
    assert mx.get_active_memory() - before < 4096


def test_trimming_most_of_a_long_cache_frees_its_memory() -> None:
    model = ToyModel(["full"])
    cache = new_cache(model)
    add(model, cache, [1] * 5000)
    before = cache.nbytes
    cache.trim(100)
    mx.eval(cache.arrays())
    assert cache.nbytes < before / 10
    assert_fresh(model, cache, [1] * 100)


def test_a_checkpoint_does_not_hold_the_pass_it_was_taken_from() -> None:
    """The state of a convolution is often a view of the whole pass."""
    model = ToyModel(["recurrent"])
    cache = new_cache(model)
    wide = mx.zeros((1, 4096, 256))
    cache.begin(1)
    cache.layers[0][0], cache.layers[0][1] = wide[:, -3:], wide[:, -1:]
    cache.commit(1)
    mark = cache.checkpoint()
    mx.eval(mark.arrays())
    before = mx.get_active_memory()
    cache.layers[0].cache = [None, None]
    del wide
    assert mx.get_active_memory() < before - 3_000_000
    assert mark.nbytes == 4 * 256 * 4


def test_a_failed_pass_and_misuse_are_named() -> None:
    model = ToyModel(["full", "window"])
    cache = new_cache(model)
    add(model, cache, [1, 2, 3])
    with pytest.raises(CacheStateError, match="no open transaction"):
        cache.commit(1)
    cache.begin(2)
    with pytest.raises(CacheStateError, match="open already"):
        cache.begin(2)
    with pytest.raises(CacheStateError, match="a transaction is open"):
        cache.check()
    with pytest.raises(ValueError, match="3 of 2"):
        cache.commit(3)
    with pytest.raises(CacheStateError, match=r"cache 0 \(KVCache\) is at position 3"):
        cache.commit(2)
    assert_fresh(model, cache, [1, 2, 3])
    cache.layers[1].offset += 1
    with pytest.raises(CacheStateError, match=r"cache 1 \(WindowCache\) counts 4"):
        cache.check()
    with pytest.raises(ValueError, match="at least one row"):
        cache.begin(0)


def test_caches_declared_lost_are_refused() -> None:
    cache = new_cache(ToyModel(["full"]))
    cache.abandon()
    with pytest.raises(CacheStateError, match="lost"):
        cache.begin(1)
    with pytest.raises(CacheStateError, match="lost"):
        cache.fork()


def test_a_recurrent_model_needs_the_number_of_appended_rows() -> None:
    model = ToyModel(["recurrent"])
    cache = new_cache(model)
    with pytest.raises(ValueError, match="number of rows"), cache.append():
        model.forward(mx.array([[1]]), cache.layers)
    assert_fresh(model, cache, [])
    with pytest.raises(ValueError, match="needs replay"):
        cache.begin(2)
        model.forward(mx.array([[1, 2]]), cache.layers)
        cache.commit(1)
    assert_fresh(model, cache, [])


class StrangeCache(KVCache):
    """A subclass may keep what nobody knows how to take back."""


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (StrangeCache(), "StrangeCache"),
        (BatchKVCache([0]), "BatchKVCache"),
        (RotatingKVCache(8, keep=4), "pins its first 4 rows"),
        (CacheList(KVCache(), StrangeCache()), "StrangeCache"),
    ],
)
def test_what_cannot_be_rolled_back_is_refused_by_name(layer, name: str) -> None:
    reason = supports_rollback([KVCache(), layer])
    assert reason is not None and name in reason and "layer 1" in reason
    with pytest.raises(ModelLoadError, match=name):
        TargetCache([KVCache(), layer])


def test_every_listed_kind_is_supported() -> None:
    assert supports_rollback(ToyModel(KINDS).make_cache()) is None


def test_quantising_refuses_what_it_cannot_do() -> None:
    layers = quantize_layers([KVCache(), RotatingKVCache(4)], 8)
    assert [type(layer).__name__ for layer in layers] == ["QuantizedKVCache", "RotatingKVCache"]
    with pytest.raises(UnsupportedError, match="4 or 8 bits, not 3"):
        quantize_layers([KVCache()], 3)
    with pytest.raises(UnsupportedError, match="RotatingKVCache"):
        quantize_layers([RotatingKVCache(4)], 4)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("recurrent", "list")])
def test_a_cache_trims_exactly_to_the_lengths_it_promises(kind: str) -> None:
    model = ToyModel([kind])
    tokens = np.random.default_rng(1).integers(0, 127, 30).tolist()
    walked = new_cache(model)
    for end in range(1, 24):
        verify(model, walked, [*tokens[end - 1 : end], 99], 1)
        assert walked.can_trim(end) and not walked.can_trim(end + 1) and not walked.can_trim(-1)
        for length in range(end):
            cache = walked.fork()
            if cache.can_trim(length):
                cache.trim(length)
                assert_fresh(model, small_steps(cache), tokens[:length])


def test_a_window_narrower_than_its_cache_masks_single_rows() -> None:
    """Compare with mlx-lm's rule for several rows, of which a single one is the last."""
    for narrow in (2, 4, 6):
        window = WindowCache(6)
        for length in range(15):
            alone = window.make_mask(1, window_size=narrow)
            among = window.make_mask(2, window_size=narrow, return_array=True)
            seen = min(length, 5) + 1
            expected = np.array(among)[0, :seen]
            np.testing.assert_array_equal(np.ones(seen, bool) if alone is None else np.array(alone), expected)
            window.update_and_fetch(mx.zeros((1, 1, 1, 2)), mx.zeros((1, 1, 1, 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_comes_back_from_any_later_length(kind: str) -> None:
    model = ToyModel([kind])
    tokens = np.random.default_rng(2).integers(0, 127, 40).tolist()
    for length in (0, 1, 4, 5, 6, 7, 13, 20):
        cache = new_cache(model)
        if length:
            add(model, cache, tokens[:length])
        mark = cache.checkpoint()
        for _ in range(9):
            verify(model, cache, [99, 98], 1)
            restored = cache.fork()
            restored.restore(mark)
            assert_fresh(model, small_steps(restored), tokens[:length])
