"""DSpark's heads over a frozen DFlash drafter: they learn what follows what, and the result loads and says the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from macspec_models.checkpoints import load_drafter
from macspec_models.drafters.dspark import DSparkDrafter
from macspec_models.training.dspark import HeadRecipe, accepted, assemble, calibrated, collect_slots, train_heads
from macspec_models.training.export import export_drafter
from macspec_models.training.responses import Example
from tiny_drafters import write_dflash
from tiny_engine import tiny_target

RECIPE = HeadRecipe(rank=8, anchors=6, batch=64, learning_rate=2e-2)


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_target("qwen3", seed=4, num_hidden_layers=6)


@pytest.fixture
def drafter(target: Any, tmp_path: Path) -> Any:
    folder = tmp_path / "dflash"
    folder.mkdir()
    write_dflash(folder, target.config, target_layer_ids=[1, 2, 4])
    return load_drafter(folder, target)


def examples(count: int = 12) -> list[Example]:
    """Answers in which every token but the first follows from the one before: all that a Markov head can learn."""
    rng = np.random.default_rng(0)
    rows = []
    for index in range(count):
        answer = [int(rng.integers(1, 100))]
        while len(answer) < 40:
            answer.append((answer[-1] * 7 + 3) % 101)
        rows.append(Example(index, index, "chat", np.array([5, 9, *answer], np.int32), 2, index % 4 == 0))
    return rows


def test_slots_are_what_the_drafter_sees(target: Any, drafter: Any) -> None:
    """The hidden states collected in one go are those the drafter computes at that place, block by block."""
    example = examples(1)
    slots = collect_slots(drafter, target, example, anchors=3, seconds=60, seed=0)
    tokens = example[0].tokens
    target.forward(mx.array(tokens[None]), target.make_cache())
    features = target.features()
    for hidden, before, labels in zip(slots.hidden, slots.before, slots.labels, strict=True):
        place = next(p for p in range(2, 36) if tokens[p : p + 6].tolist() == [*before, labels[-1]])
        context = drafter.new_context()
        drafter.extend(context, features[:place])
        wanted = np.array(drafter.hidden(context, int(before[0]), len(labels)))
        assert np.allclose(hidden, wanted, atol=1e-4)


def test_heads_start_as_the_drafter_itself_and_learn(target: Any, drafter: Any) -> None:
    seen = [e for e in examples() if not e.held_out]
    slots = collect_slots(drafter, target, seen, anchors=RECIPE.anchors, seconds=60, seed=0)
    plain, _ = accepted(drafter, slots)
    untrained = assemble(drafter, train_heads(drafter, slots, RECIPE, 0, lambda row: None))
    assert accepted(untrained, slots)[0].tolist() == plain.tolist()
    losses: list[float] = []
    heads = train_heads(drafter, slots, RECIPE, 300, lambda row: losses.append(row["loss"]))
    assert losses[-1] < losses[0]
    unseen = collect_slots(drafter, target, [e for e in examples() if e.held_out], anchors=6, seconds=60, seed=1)
    trained, figures = calibrated(drafter, heads, unseen)
    assert figures["dspark"] > figures["dflash"] + 2
    # The confidence head knows when there is nothing to be sure of: here every label comes from another place.
    noise = replace(slots, labels=np.random.default_rng(2).permutation(slots.labels.reshape(-1)).reshape(-1, 5))
    unsure = assemble(drafter, train_heads(drafter, noise, RECIPE, 300, lambda row: None))
    assert accepted(trained, unseen)[1].mean() > accepted(unsure, unseen)[1].mean() + 0.25


def test_what_is_exported_loads_as_dspark(target: Any, drafter: Any, tmp_path: Path) -> None:
    slots = collect_slots(drafter, target, examples(4), anchors=4, seconds=60, seed=0)
    heads = train_heads(drafter, slots, RECIPE, 20, lambda row: None)
    trained = assemble(drafter, heads, (1.5, 1.0, 0.5, 1.0, 2.0))
    export_drafter(trained.network, tmp_path / "out")
    nested = json.loads((tmp_path / "out" / "config.json").read_text())["dflash_config"]
    assert (nested["projector_type"], nested["markov_rank"], nested["sample_from_anchor"]) == ("dspark", 8, False)
    loaded = load_drafter(tmp_path / "out", target)
    assert isinstance(loaded, DSparkDrafter)
    assert (loaded.max_depth, list(loaded.temperatures)) == (5, [1.5, 1.0, 0.5, 1.0, 2.0])
    written = dict(tree_flatten(trained.network.parameters()))
    for name, value in tree_flatten(loaded.network.parameters()):
        assert np.allclose(np.array(value), np.array(written[name]), atol=0.02, rtol=0.01), name


def test_texts_shorter_than_a_block_are_refused(target: Any, drafter: Any) -> None:
    short = Example(0, 0, "chat", np.arange(5, dtype=np.int32), 2, False)
    with pytest.raises(ValueError, match="as long as a block"):
        collect_slots(drafter, target, [short], anchors=2, seconds=1, seed=0)
