"""The law of the committed tokens is the target's: enumerated exactly, for every kind of draft and depth rule.

A world has three or four tokens and three positions. Target and drafter are random distributions; the target's choices
at the three positions are enumerated with their exact probabilities, as are the draft's, so no sampling error is left.
The walk is the engine's own `accepted_prefix`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np
import pytest

from fake_drafters import FakeDrafter
from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.engine.sampling import Chooser
from macspec.engine.verify import accepted_prefix
from macspec.request import SamplingParams
from tiny_engine import ask, random_prompt, tiny_target

LENGTH = 3
Prefix = tuple[int, ...]


class World:
    """Random next-token distributions of a target and of a drafter that does not see its own earlier tokens."""

    def __init__(self, vocab: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.vocab = vocab
        self.target = {
            prefix: rng.dirichlet(np.ones(vocab))
            for length in range(LENGTH + 1)
            for prefix in itertools.product(range(vocab), repeat=length)
        }
        self.draft = [rng.dirichlet(np.ones(vocab)) for _ in range(LENGTH)]

    def law(self) -> np.ndarray:
        """Plain decoding: the probability of every three tokens."""
        law = np.zeros((self.vocab,) * LENGTH)
        for tokens in itertools.product(range(self.vocab), repeat=LENGTH):
            law[tokens] = np.prod([self.target[tokens[:k]][tokens[k]] for k in range(LENGTH)])
        return law


Depth = Callable[[World, Prefix], int]
#: Depth rules: how many draft tokens are verified, from anything known before the target's result.
DEPTHS: dict[str, Depth] = {
    "none": lambda world, draft: 0,
    "one": lambda world, draft: 1,
    "all": lambda world, draft: len(draft),
    "largest probability of the slots": lambda world, draft: sum(q.max() > 0.5 for q in world.draft[: len(draft)]),
    "probability of the drafted tokens": lambda world, draft: (
        0 if world.draft[0][draft[0]] < 0.35 else 2 if world.draft[0][draft[0]] * world.draft[1][draft[1]] > 0.17 else 1
    ),
    "the drafted tokens themselves": lambda world, draft: draft[0] % len(draft) + (draft[-1] == 0),
}


def choice_outcomes(world: World, draft: Prefix, depth: int) -> Iterator[tuple[Prefix, float]]:
    """The target's choices in rows 0..depth, each row after ``draft[:row]``, with their joint probability."""
    for choices in itertools.product(range(world.vocab), repeat=depth + 1):
        yield choices, float(np.prod([world.target[draft[:row]][choices[row]] for row in range(depth + 1)]))


def commit(world: World, law: np.ndarray, tokens: Prefix, weight: float) -> None:
    """Add the law of the first `LENGTH` tokens given those committed; the others follow by plain decoding."""
    tokens = tokens[:LENGTH]
    for rest in itertools.product(range(world.vocab), repeat=LENGTH - len(tokens)):
        full = tokens + rest
        law[full] += weight * np.prod([world.target[full[:k]][full[k]] for k in range(len(tokens), LENGTH)])


def compare_with_choices(world: World, drafts: list[tuple[Prefix, float]], depth_of: Depth) -> np.ndarray:
    """One round by equality with independent choices: argmax and sampled drafts."""
    law = np.zeros((world.vocab,) * LENGTH)
    for draft, weight in drafts:
        depth = min(depth_of(world, draft), len(draft))
        for choices, probability in choice_outcomes(world, draft, depth):
            kept = accepted_prefix(draft[:depth], choices)
            commit(world, law, choices[: kept + 1], weight * probability)
    return law


def argmax_drafts(world: World, block: int) -> list[tuple[Prefix, float]]:
    return [(tuple(int(q.argmax()) for q in world.draft[:block]), 1.0)]


def sampled_drafts(world: World, block: int) -> list[tuple[Prefix, float]]:
    return [
        (draft, float(np.prod([q[token] for q, token in zip(world.draft, draft, strict=False)])))
        for draft in itertools.product(range(world.vocab), repeat=block)
    ]


def distance(law: np.ndarray, other: np.ndarray) -> float:
    """Total variation."""
    return 0.5 * float(np.abs(law - other).sum())


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", [argmax_drafts, sampled_drafts])
@pytest.mark.parametrize(("vocab", "block"), [(2, 2), (3, 2), (4, 2), (3, 3), (4, 3)])
def test_drafts_compared_with_the_targets_choices(depth, kind, vocab, block):
    for seed in range(1 if vocab**block > 30 else 2):
        world = World(vocab, seed)
        law = compare_with_choices(world, kind(world, block), DEPTHS[depth])
        assert abs(law.sum() - 1) < 1e-12
        assert distance(law, world.law()) < 1e-12


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(("vocab", "block"), [(2, 2), (3, 2), (4, 2), (3, 3), (4, 3)])
def test_coupled_drafts(depth, vocab, block):
    """Draft and target share the noise of a position; any function of it may make the draft.

    Noise is a table: cell c of position k has weight w[c] and gives the target's choice for every prefix, and the
    draft token. The target's law is what the table says, so it is exact whatever the coupling.
    """
    for seed in range(2):
        rng, cells = np.random.default_rng(seed), 5
        weights = rng.dirichlet(np.ones(cells), size=LENGTH)
        prefixes = [p for n in range(LENGTH) for p in itertools.product(range(vocab), repeat=n)]
        choice = {(p, c): int(rng.integers(vocab)) for p in prefixes for c in range(cells)}
        drafted = rng.integers(vocab, size=(LENGTH, cells))
        world = World(vocab, seed)
        plain, round_law = np.zeros((vocab,) * LENGTH), np.zeros((vocab,) * LENGTH)
        for noise in itertools.product(range(cells), repeat=LENGTH):
            weight = float(np.prod([weights[k][noise[k]] for k in range(LENGTH)]))
            tokens: Prefix = ()
            for k in range(LENGTH):
                tokens += (choice[tokens, noise[k]],)
            plain[tokens] += weight
            draft = tuple(int(drafted[k][noise[k]]) for k in range(block))
            depth_now = min(DEPTHS[depth](world, draft), block)
            rows = [choice[draft[:row], noise[row]] for row in range(min(depth_now + 1, LENGTH))]
            got = tuple(rows[: accepted_prefix(draft[:depth_now], rows) + 1])
            for k in range(len(got), LENGTH):
                got += (choice[got, noise[k]],)
            round_law[got] += weight
        assert distance(plain, round_law) < 1e-12


def ratio_test(world: World, drafts: list[tuple[Prefix, float]], depth_of: Depth) -> np.ndarray:
    """The rule this project does not use: accept with ``min(1, p/q)``, on rejection draw from ``(p - q)+``."""
    law = np.zeros((world.vocab,) * LENGTH)
    for draft, weight in drafts:
        alive = weight
        for k in range(min(depth_of(world, draft), len(draft))):
            p, q = world.target[draft[:k]], world.draft[k]
            accept = min(1.0, p[draft[k]] / q[draft[k]])
            rest = np.maximum(p - q, 0.0)
            if rest.sum() > 0:
                for token in range(world.vocab):
                    commit(world, law, (*draft[:k], token), alive * (1 - accept) * rest[token] / rest.sum())
            alive *= accept
        else:
            kept = draft[: min(depth_of(world, draft), len(draft))]
            for token in range(world.vocab):
                commit(world, law, (*kept, token), alive * world.target[kept][token])
    return law


def test_the_enumeration_detects_the_biased_rules():
    """Sampled drafts with a ratio test and a depth from their own probability are biased, and so is argmax with it."""
    worlds = [World(3, seed) for seed in range(8)]
    exact = [distance(ratio_test(w, sampled_drafts(w, 2), DEPTHS["all"]), w.law()) for w in worlds]
    assert max(exact) < 1e-12
    by_slot = DEPTHS["largest probability of the slots"]
    assert max(distance(ratio_test(w, sampled_drafts(w, 2), by_slot), w.law()) for w in worlds) < 1e-12
    by_token = DEPTHS["probability of the drafted tokens"]
    biased = [distance(ratio_test(w, sampled_drafts(w, 2), by_token), w.law()) for w in worlds]
    assert max(biased) > 0.1
    argmax = [distance(ratio_test(w, argmax_drafts(w, 2), DEPTHS["all"]), w.law()) for w in worlds]
    assert max(argmax) > 0.2
    same_depth_by_equality = [
        distance(compare_with_choices(w, sampled_drafts(w, 2), by_token), w.law()) for w in worlds
    ]
    assert max(same_depth_by_equality) < 1e-12


def truncated(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The documented law in float64: temperature, top-k, top-p, min-p."""
    p = np.exp((logits - logits.max()) / params.temperature)
    p /= p.sum()
    order = np.argsort(-p)
    keep = np.ones(len(p), dtype=bool)
    if params.top_k:
        keep[order[params.top_k :]] = False
    q = np.where(keep, p, 0) / p[keep].sum()
    before = np.cumsum(q[order]) - q[order]
    keep[order[before >= params.top_p]] = False
    keep &= q >= params.min_p * q.max()
    return np.where(keep, p, 0) / p[keep].sum()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=1.7),
        SamplingParams(temperature=1.0, top_p=0.8),
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=1.0, min_p=0.15),
        SamplingParams(temperature=0.8, top_k=9, top_p=0.7, min_p=0.05),
    ],
    ids=str,
)
def test_chi_square_of_the_choices(params):
    """Sixteen thousand positions of one row of logits against the documented law."""
    vocab, count, rows = 24, 16384, 256
    logits = np.random.default_rng(4).normal(size=vocab) * 1.5
    law = truncated(logits, params)
    chooser = Chooser(params, vocab, None, [], 12345, frozenset())
    block = mx.array(np.tile(logits.astype(np.float32), (rows, 1)))
    seen = np.zeros(vocab)
    for position in range(0, count, rows):
        seen += np.bincount(np.array(chooser.choose(block, position, [])), minlength=vocab)
    assert seen[law == 0].sum() == 0
    expected = count * law[law > 0]
    chi_square = float(((seen[law > 0] - expected) ** 2 / expected).sum())
    freedom = max(1, int((law > 0).sum()) - 1)
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


#: The only tokens that may be chosen, so that every pair of them is expected often enough.
FEW = (3, 40, 41, 77, 90, 118)


@pytest.fixture(scope="module")
def tiny():
    return tiny_target("llama", seed=11)


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 0.7, "top_k": 5, "min_p": 0.1},
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in ({}, {"top_p": 0.7}, {"top_k": 3}, {"min_p": 0.25})
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("coupled", [False, True])
def test_chi_square_of_a_tiny_model_with_speculation(tiny, options, coupled):
    """The first two tokens of 1,024 answers, drafted and verified by the engine, against the model's own law."""
    prompt = random_prompt(7, tiny.vocab_size, seed=2)

    def logits(tokens: Prefix) -> np.ndarray:
        rows = tiny.forward(mx.array([[*prompt, *tokens]]), tiny.make_cache())
        return np.array(rows[0, -1], dtype=np.float64)[list(FEW)]

    sampling = {"temperature": float(logits(()).std()), "allowed_tokens": FEW, "max_tokens": 2, **options}
    params = SamplingParams(**sampling)
    first = truncated(logits(()), params)
    law = np.stack([share * truncated(logits((token,)), params) for token, share in zip(FEW, first, strict=True)])
    drafts = np.random.default_rng(0)
    drafter = FakeDrafter(lambda history, count: drafts.choice(FEW, count).tolist())
    engine, seen, accepted = Engine(tiny, drafter), np.zeros((len(FEW), len(FEW))), 0
    for seed in range(16):
        request = ask(prompt, "full", seed=1000 * seed, n=64, **sampling)
        for answer in collect(engine.generate(dataclasses.replace(request, coupled=coupled))):
            seen[tuple(FEW.index(token) for token in answer.tokens)] += 1
            accepted += answer.stats.accepted
    assert accepted > 100
    assert seen[law < 1e-9].sum() == 0
    likely = law * seen.sum() >= 5
    expected = np.append(law[likely], law[~likely].sum()) * seen.sum()
    observed = np.append(seen[likely], seen[~likely].sum())
    keep = expected > 0.5
    chi_square = float(((observed[keep] - expected[keep]) ** 2 / expected[keep]).sum())
    freedom = int(keep.sum()) - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)
