"""Whatever stops a request, and wherever, the next one is right and keeps the prefix that was already read."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable

import mlx.core as mx
import pytest

from fake_drafters import oracle_drafter
from macspec.api import collect
from macspec.engine.caches import CacheStateError, TargetCache
from macspec.engine.loop import Engine
from macspec.request import Finished, PrefillProgress, Round, Started
from tiny_engine import ask, random_prompt, tiny_target

VOCAB = 128
PROMPT = random_prompt(30, VOCAB, 1)
OPTIONS = {"max_tokens": 24, "ignore_eos": True, "seed": 1}
FAMILIES = ("llama", "gemma3_text", "falcon_h1")


class StoppedError(Exception):
    """What the tests make a stage raise."""


@pytest.fixture(scope="module", params=FAMILIES)
def target(request):
    return tiny_target(request.param)


@pytest.fixture(scope="module")
def plain(target) -> list[int]:
    return list(collect(Engine(target, None, prefill_chunk=8).generate(ask(PROMPT, "0", **OPTIONS)))[0].tokens)


def engine_for(target, plain) -> Engine:
    return Engine(target, oracle_drafter(plain, len(PROMPT), wrong_every=3), prefill_chunk=8)


def assert_next_is_right(engine: Engine, plain: list[int], *, least_cached: int = 0) -> None:
    for prefix in engine.prefixes._entries:
        prefix.cache.check()
    answers = collect(engine.generate(ask(PROMPT, "full", **OPTIONS)))
    assert list(answers[0].tokens) == plain
    assert answers[0].stats.cached_tokens >= least_cached


def fail_on_call(monkeypatch, owner: object, name: str, number: int, error: Exception) -> Callable[[], int]:
    """Make the ``number``-th call of a method raise before it does anything; returns a counter of calls."""
    real, calls = getattr(owner, name), []

    def failing(*arguments, **options):
        calls.append(name)
        if len(calls) == number:
            raise error
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, failing)
    return lambda: len(calls)


@pytest.mark.parametrize("number", (1, 2, 4, 5, 6, 9))
def test_a_pass_that_fails(monkeypatch, target, plain, number: int) -> None:
    """Passes 1 to 4 read the prompt, later ones verify or replay."""
    engine = engine_for(target, plain)
    with monkeypatch.context() as patch:
        fail_on_call(patch, target, "forward", number, StoppedError())
        with pytest.raises(StoppedError):
            collect(engine.generate(ask(PROMPT, "full", **OPTIONS)))
    assert_next_is_right(engine, plain, least_cached=8 * min(number - 1, 3))


@pytest.mark.parametrize("number", [1, 5, 9])
def test_a_pass_that_fails_half_way_through_its_layers(monkeypatch, target, plain, number: int) -> None:
    engine = engine_for(target, plain)
    layer = type(target._inner.layers[1])
    real, calls = layer.__call__, []
    last = target._inner.layers[-1]

    def failing(self, *arguments, **options):
        if self is last:
            calls.append(1)
            if len(calls) == number:
                raise StoppedError
        return real(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(layer, "__call__", failing)
        with pytest.raises(StoppedError):
            collect(engine.generate(ask(PROMPT, "full", **OPTIONS)))
    assert_next_is_right(engine, plain)


@pytest.mark.parametrize(("name", "number"), [("extend", 1), ("extend", 3), ("draft", 1), ("draft", 4)])
def test_a_drafter_that_fails(monkeypatch, target, plain, name: str, number: int) -> None:
    engine = engine_for(target, plain)
    with monkeypatch.context() as patch:
        fail_on_call(patch, engine.drafter, name, number, StoppedError())
        with pytest.raises(StoppedError):
            collect(engine.generate(ask(PROMPT, "full", **OPTIONS)))
    assert_next_is_right(engine, plain)


@pytest.mark.parametrize("name", ["scores", "pick", "commit", "must_stop"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_choice_that_fails(monkeypatch, target, plain, name: str, number: int) -> None:
    from macspec.engine.sampling import Chooser

    engine = engine_for(target, plain)
    with monkeypatch.context() as patch:
        fail_on_call(patch, Chooser, name, number, StoppedError())
        with pytest.raises(StoppedError):
            collect(engine.generate(ask(PROMPT, "full", **OPTIONS)))
    assert_next_is_right(engine, plain, least_cached=24)


@pytest.mark.parametrize("name", ["begin", "commit", "checkpoint"])
@pytest.mark.parametrize("number", [1, 4])
def test_a_transaction_that_fails(monkeypatch, target, plain, name: str, number: int) -> None:
    engine = engine_for(target, plain)
    with monkeypatch.context() as patch:
        count = fail_on_call(patch, TargetCache, name, number, StoppedError())
        try:
            collect(engine.generate(ask(PROMPT, "full", **OPTIONS)))
        except StoppedError:
            assert count() == number
    assert_next_is_right(engine, plain)


@pytest.mark.parametrize("after", (1, 2, 5, 6, 9, 12))
def test_the_caller_walks_away(target, plain, after: int) -> None:
    engine = engine_for(target, plain)
    events = engine.generate(ask(PROMPT, "full", **OPTIONS))
    for _ in range(after):
        next(events)
    events.close()
    assert_next_is_right(engine, plain)


@pytest.mark.parametrize("after", [0, 1, 3, 4, 6])
def test_cancel_takes_effect_within_one_chunk_or_round(target, plain, after: int) -> None:
    engine = engine_for(target, plain)
    asked = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > after

    events = list(engine.generate(ask(PROMPT, "full", **OPTIONS), cancelled))
    chunks = sum(isinstance(event, PrefillProgress) for event in events)
    rounds = sum(isinstance(event, Round) for event in events)
    assert isinstance(events[0], Started) and isinstance(events[-1], Finished)
    assert events[-1].reason == "cancelled" and chunks + rounds <= after
    assert_next_is_right(engine, plain, least_cached=min(8 * chunks, 29))


def test_a_device_failure_loses_this_requests_caches_only(monkeypatch, target, plain) -> None:
    """After an error on the device, arrays since the last wait are undefined: they must not be kept."""
    engine = engine_for(target, plain)
    other = random_prompt(20, VOCAB, 7)
    collect(engine.generate(ask(other, "full", max_tokens=2, ignore_eos=True)))
    error = RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIO…OutOfMemory)")
    with monkeypatch.context() as patch:
        fail_on_call(patch, target, "forward", 7, error)
        with pytest.raises(Exception, match="memory|Memory"):
            collect(engine.generate(ask(PROMPT, "full", **OPTIONS)))
    kept = [len(entry.tokens) for entry in engine.prefixes._entries]
    assert kept == [21], "only what was complete before the failure may be kept"
    assert_next_is_right(engine, plain)


def test_the_first_error_is_the_one_that_is_raised(monkeypatch, target, plain, caplog) -> None:
    """The caches of a failed answer cannot be given back either: that costs the prefix and one line."""
    engine = engine_for(target, plain)
    with monkeypatch.context() as patch:
        fail_on_call(patch, target, "forward", 6, StoppedError("first"))
        fail_on_call(patch, engine.prefixes, "put", 1, ValueError("second"))
        with pytest.raises(StoppedError, match="first"):
            collect(engine.generate(ask(PROMPT, "full", **OPTIONS)))
    assert [record.getMessage() for record in caplog.records] == ["the prefix of a failed request is not kept: second"]
    assert_next_is_right(engine, plain)


def test_a_complete_answer_whose_caches_cannot_be_given_back_is_an_error(monkeypatch, target, plain) -> None:
    engine = engine_for(target, plain)
    with monkeypatch.context() as patch:
        fail_on_call(patch, engine.prefixes, "put", 1, ValueError("defect"))
        with pytest.raises(ValueError, match="defect"):
            collect(engine.generate(ask(PROMPT, "full", **OPTIONS)))
    assert_next_is_right(engine, plain)


def test_a_request_without_the_cache_leaves_nothing_in_it(target, plain) -> None:
    engine = engine_for(target, plain)
    request = dataclasses.replace(ask(PROMPT, "full", **OPTIONS), use_cache=False)
    for _ in range(2):
        answer = collect(engine.generate(request))[0]
        assert list(answer.tokens) == plain and answer.stats.cached_tokens == 0
        assert len(engine.prefixes) == 0


def test_caches_that_were_lost_are_not_kept(target) -> None:
    engine = Engine(target, None)
    cache = TargetCache(target.make_cache())
    with cache.append(3):
        target.forward(mx.array([[1, 2, 3]]), cache.layers)
    cache.abandon()
    engine.prefixes.put([1, 2, 3], cache)
    assert len(engine.prefixes) == 0
    with pytest.raises(CacheStateError):
        cache.check()


def test_cancelled_requests_leave_no_memory_behind(target) -> None:
    engine = Engine(target, None, prefill_chunk=8, prefix_cache_bytes=200_000)
    held = []
    for number in range(60):
        prompt = random_prompt(30, VOCAB, number)
        events = engine.generate(ask(prompt, "0", max_tokens=3, ignore_eos=True))
        for _ in range(number % 6 + 1):
            next(events)
        events.close()
        if number % 20 == 19:
            gc.collect()
            held.append(mx.get_active_memory() - engine.prefixes.nbytes)
    assert max(held) - min(held) < 100_000
