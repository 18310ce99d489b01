"""The training recipe: same mathematics as the engine's drafter, resumable, and it learns."""

from __future__ import annotations

import dataclasses
import json

import mlx.core as mx
import numpy as np
import pytest

from macspec_models.drafters.block import DFlashDrafter
from macspec_models.drafters.dflash import DFlashConfig, DFlashNetwork
from macspec_models.training.card import write_card
from macspec_models.training.drafter import Recipe, Trainer, block_loss, denoise
from macspec_models.training.export import export_drafter
from macspec_models.training.responses import Example
from tiny_engine import tiny_target

CONFIG = DFlashConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=128,
    block_size=4,
    mask_token_id=126,
    target_layer_ids=(0, 2),
    num_target_layers=3,
    target_hidden_size=32,
)
RECIPE = Recipe(sequences=2, anchors=3, window=24, frequent_tokens=40, sampled_tokens=20, warmup=5)


@pytest.fixture
def examples():
    """Answers that repeat one phrase: easy to learn."""
    rng = np.random.default_rng(0)
    phrase = np.array([5, 9, 33, 70, 12, 41])
    rows = []
    for index in range(45):
        tokens = np.concatenate([rng.integers(0, 120, 4), np.tile(phrase, 4)]).astype(np.int32)
        rows.append(Example(index, index, "chat", tokens, 4, index % 15 == 0))
    return rows


def trainer(examples, folder):
    mx.random.seed(0)
    return Trainer(RECIPE, CONFIG, tiny_target("llama"), examples, folder)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_many_blocks_at_once_equal_one_block_at_a_time(window, causal):
    mx.random.seed(1)
    layers = ("full_attention" if window is None else "sliding_attention", "full_attention")
    config = dataclasses.replace(CONFIG, layer_types=layers, sliding_window=window, is_causal=causal)
    network = DFlashNetwork(config)
    drafter = DFlashDrafter(network, embed=None, head=None)
    rng = np.random.default_rng(1)
    features = mx.array(rng.normal(size=(2, 10, 64)).astype(np.float32))
    blocks = mx.array(rng.normal(size=(6, 4, 32)).astype(np.float32))
    anchors = np.array([3, 7, 1, 9, 4, 2])
    visible = np.arange(10)[None] < anchors[:, None]
    together = denoise(network, features, blocks, mx.array(anchors), mx.array(visible.reshape(2, 3, 10)))
    for number, anchor in enumerate(anchors.tolist()):
        context = drafter.new_context()
        drafter.extend(context, features[number // 3][:anchor])
        alone = network(blocks[number][None], context)
        np.testing.assert_allclose(np.array(together[number]), np.array(alone[0]), rtol=2e-4, atol=2e-5)


def test_it_learns(examples, tmp_path):
    model = trainer(examples, tmp_path)
    rows = []
    model.train(60, report=rows.append, report_every=0.0)
    assert rows[-1]["loss"] < 0.6 * rows[0]["loss"]
    assert rows[-1]["acceptance_length"] > rows[0]["acceptance_length"]


def test_resuming_restores_weights_and_optimiser(examples, tmp_path):
    first = trainer(examples, tmp_path)
    first.train(3, report=lambda row: None)
    again = trainer(examples, tmp_path)
    assert again.resume()
    assert again.step == 3
    batch = first.batches.draw(first.train_pool)
    for model in (first, again):
        mx.random.seed(5)  # Of the dropout.
        mx.eval(model._update(*batch), model._state)
    np.testing.assert_array_equal(
        np.array(first.network.fc.weight), np.array(again.network.fc.weight), err_msg="same batch, same next step"
    )


def test_labels_and_weights_stop_where_the_answer_does(examples, tmp_path):
    model = trainer(examples, tmp_path)
    for _ in range(5):
        batch = model.batches.draw(model.train_pool)
        loss, right = block_loss(model.network, *batch)
        assert np.isfinite(loss.item())
        assert right.shape == (6, 3)
        assert np.array(batch[5]).sum() > 0


def test_held_out_answers_are_not_trained_on(examples, tmp_path):
    model = trainer(examples, tmp_path)
    assert set(model.train_pool) & set(model.held_out_pool) == set()
    assert len(model.held_out_pool) == 3


def test_export_has_the_published_names(tmp_path):
    export_drafter(DFlashNetwork(CONFIG), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["dflash_config"] == {"target_layer_ids": [0, 2], "mask_token_id": 126}
    names = set(mx.load(str(tmp_path / "model.safetensors")))
    layer = {
        f"layers.{n}.{part}.weight"
        for n in range(2)
        for part in (
            "input_layernorm",
            "post_attention_layernorm",
            *(f"self_attn.{x}" for x in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
            *(f"mlp.{x}" for x in ("gate_proj", "up_proj", "down_proj")),
        )
    }
    assert names == layer | {"fc.weight", "hidden_norm.weight", "norm.weight"}


def test_the_card_tells_acceptance_on_held_out_answers(examples, tmp_path):
    model = trainer(examples, tmp_path / "work")
    export_drafter(model.network, tmp_path)
    write_card(model, tmp_path, "Three steps.")
    rows = json.loads((tmp_path / "acceptance.json").read_text())
    assert set(rows) == {"chat", "all"}
    assert rows["all"]["acceptance_length"] >= 1
    assert len(rows["all"]["slots"]) == 3
    card = (tmp_path / "README.md").read_text()
    assert "Three steps." in card
    assert f"{rows['all']['acceptance_length']:.2f}" in card
