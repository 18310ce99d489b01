"""Every kind of drafter against the float64 reference, for every config variant; wrong ones must be told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from reference import Reference

from macspec_models.checkpoints import load_drafter
from tiny_drafters import TINY_TARGET, TinyTarget, write_dflash

#: Relative to the largest value of the reference.
TOLERANCE = 1e-4
#: What a wrong reading of a config changes at least.
DETECTED = 1e-2
ANCHOR = 11

SLIDING = ["sliding_attention", "sliding_attention", "full_attention"]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one layer": {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
    "no layer types": {"layer_types": None},
    "block of two": {"block_size": 2},
    "one head per query": {"num_key_value_heads": 4},
    "one head for all": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 24},
    "one tap": {"target_layer_ids": [4]},
    "sliding, flag absent": {"layer_types": SLIDING, "sliding_window": 9},
    "sliding, not causal": {"layer_types": SLIDING, "sliding_window": 9, "is_causal": False},
    "sliding, causal": {"layer_types": SLIDING, "sliding_window": 9, "is_causal": True},
    "narrow window": {"layer_types": SLIDING, "sliding_window": 3, "is_causal": False},
    "wide window": {"layer_types": SLIDING, "sliding_window": 400},
    "full, causal": {"is_causal": True},
    "full, causal by another name": {"causal": True},
    "linear rope": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "yarn": {"rope_scaling": YARN},
    "yarn without truncation": {"rope_scaling": {**YARN, "truncate": False, "beta_fast": 8, "beta_slow": 2}},
    "yarn with factor": {"rope_scaling": {**YARN, "attention_factor": 0.8}},
    "yarn over the whole context": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
    "yarn parameters": {"rope_theta": None, "rope_parameters": {**YARN, "rope_theta": 5000.0}},
    "llama 3 rope": {"rope_scaling": LLAMA3},
    "partial rope": {"head_dim": 16, "partial_rotary_factor": 0.25},
    "output multiplier": {"output_multiplier": 0.37},
    "soft cap": {"final_logit_softcapping": 3.0},
    "input scale": {"input_embedding_scale": 5.6},
    "all scales": {"output_multiplier": 2.5, "final_logit_softcapping": 4.0, "input_embedding_scale": 0.3},
    "bias": {"attention_bias": True},
    "anchor predicts": {"sample_from_anchor": True},
    "another epsilon": {"rms_norm_eps": 1e-2},
}


class Case:
    """A checkpoint on disk, its loaded drafter, a context and the reference for both."""

    def __init__(self, folder: Path, *, positions: int = 23, **variants: Any) -> None:
        self.folder, self.target = folder, TinyTarget()
        self.raw = write_dflash(folder, TINY_TARGET, **variants)
        self.outputs = self.target.layer_outputs(positions)
        tensors = {name: np.array(a) for name, a in mx.load(str(folder / "model.safetensors")).items()}
        self.reference = Reference(self.raw, tensors, self.target.table, self.target.rows)
        self.features = self.tapped(self.raw["dflash_config"]["target_layer_ids"])

    def tapped(self, layers: Any) -> np.ndarray:
        return np.concatenate([self.outputs[layer] for layer in layers], axis=-1)

    def load(self, head_rows: Any = None) -> Any:
        return load_drafter(self.folder, self.target, head_rows=head_rows)

    def context(self, drafter: Any, pieces: int = 3) -> Any:
        """The drafter's context, given in uneven pieces as prefill chunks and rounds are."""
        context, features = drafter.new_context(), self.tapped(drafter.taps)
        for part in np.array_split(features, pieces):
            drafter.extend(context, mx.array(part))
        return context

    def logits(self, drafter: Any, count: int) -> np.ndarray:
        return np.array(drafter.scores(drafter.hidden(self.context(drafter), ANCHOR, count)))


def relative(got: Any, wanted: np.ndarray) -> float:
    """Largest difference over the largest value."""
    return float(np.abs(np.asarray(got, np.float64) - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("name", VARIANTS)
def test_dflash_equals_reference(name: str, tmp_path: Path) -> None:
    case = Case(tmp_path, **VARIANTS[name])
    drafter = case.load()
    depth = drafter.max_depth
    assert depth == case.raw["block_size"] - (0 if VARIANTS[name].get("sample_from_anchor") else 1)
    wanted = case.reference.dflash(case.features, ANCHOR, depth)
    assert relative(case.logits(drafter, depth), wanted) < TOLERANCE
    block = drafter.draft(case.context(drafter), ANCHOR, [ANCHOR])
    assert block.tokens.tolist() == wanted.argmax(-1).tolist()
    assert relative(block.confidence, confidence_of(wanted)) < 1e-3


def confidence_of(logits: np.ndarray) -> np.ndarray:
    """Probability, gap and entropy by their definitions."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    ordered = np.sort(logits, -1)
    return np.stack([p.max(-1), ordered[:, -1] - ordered[:, -2], -(p * np.log(p)).sum(-1)], -1)


def flip_causal(case: Case) -> None:
    rewrite(case, is_causal=True)


def forget_causal_default(case: Case) -> None:
    rewrite(case, is_causal=False)


def shift_taps(case: Case) -> None:
    nested = dict(case.raw["dflash_config"])
    nested["target_layer_ids"] = [layer + 1 for layer in nested["target_layer_ids"]]
    rewrite(case, dflash_config=nested)


def drop(field: str) -> Callable[[Case], None]:
    def change(case: Case) -> None:
        raw = {name: value for name, value in case.raw.items() if name != field}
        raw["dflash_config"] = {name: value for name, value in raw["dflash_config"].items() if name != field}
        (case.folder / "config.json").write_text(json.dumps(raw))

    return change


def rewrite(case: Case, **fields: Any) -> None:
    (case.folder / "config.json").write_text(json.dumps({**case.raw, **fields}))


WRONG: dict[str, tuple[dict[str, Any], Callable[[Case], None]]] = {
    "causal flag flipped": ({}, flip_causal),
    "causal default of sliding layers forgotten": (VARIANTS["sliding, flag absent"], forget_causal_default),
    "tap shifted by one": ({}, shift_taps),
    "output multiplier missing": (VARIANTS["output multiplier"], drop("output_multiplier")),
    "soft cap missing": (VARIANTS["soft cap"], drop("final_logit_softcapping")),
    "input scale missing": (VARIANTS["input scale"], drop("input_embedding_scale")),
    "rope scaling missing": (VARIANTS["yarn"], drop("rope_scaling")),
    "window missing": (VARIANTS["sliding, not causal"], lambda case: rewrite(case, layer_types=["full_attention"] * 3)),
    "another base": ({}, lambda case: rewrite(case, rope_theta=500.0)),
    "another epsilon": (VARIANTS["another epsilon"], lambda case: rewrite(case, rms_norm_eps=1e-6)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_reading_is_detected(name: str, tmp_path: Path) -> None:
    variants, change = WRONG[name]
    case = Case(tmp_path, **variants)
    wanted = case.reference.dflash(case.features, ANCHOR, 5)
    change(case)
    assert relative(case.logits(case.load(), 5), wanted) > DETECTED


def test_mask_in_the_anchor_slot_is_detected(tmp_path: Path) -> None:
    case = Case(tmp_path)
    drafter = case.load()
    wanted = case.reference.dflash(case.features, ANCHOR, 5)
    hidden = drafter.hidden(case.context(drafter), drafter.config.mask_token_id, 5)
    assert relative(drafter.scores(hidden), wanted) > DETECTED


def test_relative_positions_alone_are_not_enough(tmp_path: Path) -> None:
    """A context whose positions start too early must give another answer: YaRN and the block's place both matter."""
    case = Case(tmp_path)
    drafter = case.load()
    context = drafter.new_context()
    drafter.extend(context, mx.array(case.features))
    wanted = np.array(drafter.scores(drafter.hidden(context, ANCHOR, 5)))
    context._length += 3  # the block moves away from its context
    assert relative(drafter.scores(drafter.hidden(context, ANCHOR, 5)), wanted) > DETECTED


@pytest.mark.parametrize("count", [1, 2, 4])
def test_fewer_slots_are_a_smaller_block(count: int, tmp_path: Path) -> None:
    case = Case(tmp_path)
    drafter = case.load()
    wanted = case.reference.dflash(case.features, ANCHOR, count)
    block = drafter.draft(case.context(drafter), ANCHOR, [ANCHOR], limit=count)
    assert block.tokens.tolist() == wanted.argmax(-1).tolist()
    assert relative(block.confidence, confidence_of(wanted)) < 1e-3


@pytest.mark.parametrize("variants", [{}, {"layer_types": ["sliding_attention"] * 3, "sliding_window": 7}])
def test_dflash2_equals_reference(variants: dict[str, Any], tmp_path: Path) -> None:
    case = Case(tmp_path, kind="dflash2", **variants)
    drafter = case.load()
    tokens, scores, candidates = case.reference.dflash2(case.features, ANCHOR, 5)
    assert relative(case.logits(drafter, 5), case.reference.dflash(case.features, ANCHOR, 5)) < TOLERANCE
    block = drafter.draft(case.context(drafter), ANCHOR, [ANCHOR])
    assert block.tokens.tolist() == tokens
    assert relative(block.confidence, confidence_of(scores)) < 1e-3
    # The path must not be what the logits alone would give, or the selector is not tested.
    assert tokens != candidates[:, 0].tolist()


@pytest.mark.parametrize(
    "field", ["base_kernel", "kernel_projection.weight", "predecessor_codebook", "hidden_projection"]
)
def test_dflash2_parts_all_matter(field: str, tmp_path: Path) -> None:
    case = Case(tmp_path, kind="dflash2")
    drafter = case.load()
    _, scores, _ = case.reference.dflash2(case.features, ANCHOR, 5)
    for name in list(case.reference.w):
        if field in name:
            case.reference.w[name] = case.reference.w[name] * 0.8
    _, other, _ = case.reference.dflash2(case.features, ANCHOR, 5)
    assert relative(other, scores) > DETECTED
    assert drafter.kind == "dflash2"


DSPARK: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "gated": {"markov_head_type": "gated"},
    "rnn": {"markov_head_type": "rnn"},
    "no confidence head": {"enable_confidence_head": False},
    "confidence without Markov": {"confidence_head_with_markov": False},
    "no Markov head": {"markov_rank": 0, "confidence_head_with_markov": False},
    "anchor predicts nothing": {"sample_from_anchor": False},
}


@pytest.mark.parametrize("name", DSPARK)
def test_dspark_equals_reference(name: str, tmp_path: Path) -> None:
    case = Case(tmp_path, kind="dspark", **DSPARK[name])
    drafter = case.load()
    depth = drafter.max_depth
    assert depth == case.raw["block_size"] - (0 if DSPARK[name].get("sample_from_anchor", True) else 1)
    tokens, logits, sure = case.reference.dspark(case.features, ANCHOR, depth)
    block = drafter.draft(case.context(drafter), ANCHOR, [ANCHOR])
    assert block.tokens.tolist() == tokens
    wanted = confidence_of(logits)
    if sure is not None:
        wanted[:, 0] = sure
    assert relative(np.array(block.confidence)[:, 0], wanted[:, 0]) < TOLERANCE
    assert relative(block.confidence, wanted) < 1e-3
    plain = case.reference.dflash(case.features, ANCHOR, depth)
    if name != "no Markov head":
        assert relative(logits, plain) > DETECTED


def test_dspark_temperatures_rescale_the_confidence_head(tmp_path: Path) -> None:
    case = Case(tmp_path, kind="dspark", confidence_temperatures=[2, 1, 0.5, 1, 1, 1])
    drafter = case.load()
    _, _, sure = case.reference.dspark(case.features, ANCHOR, 6)
    assert sure is not None
    logit = np.log(sure / (1 - sure)) / np.array(drafter.temperatures)
    block = drafter.draft(case.context(drafter), ANCHOR, [ANCHOR])
    assert relative(np.array(block.confidence)[:, 0], 1 / (1 + np.exp(-logit))) < TOLERANCE


@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("pure", [0, 1, 3])
def test_domino_equals_reference(shifted: bool, pure: int, tmp_path: Path) -> None:
    case = Case(tmp_path, kind="domino", shift_label=shifted, pure_draft_prefix_len=pure)
    drafter = case.load()
    depth = drafter.max_depth
    assert depth == (6 if shifted else 5)
    tokens, logits = case.reference.domino(case.features, ANCHOR, depth)
    block = drafter.draft(case.context(drafter), ANCHOR, [ANCHOR])
    assert block.tokens.tolist() == tokens
    assert relative(block.confidence, confidence_of(logits)) < 1e-3


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark", "domino"])
def test_half_precision_stays_close(kind: str, tmp_path: Path) -> None:
    """Published weights are bfloat16; float16 ones must survive values that float16 cannot hold."""
    case = Case(tmp_path, kind=kind)
    case.target = TinyTarget(dtype=mx.float16)
    drafter = case.load()
    drafter.network.set_dtype(mx.float16)
    scale = 3e5  # features beyond float16's largest value, 65504
    context = drafter.new_context()
    drafter.extend(context, mx.array(case.features) * scale)
    hidden = drafter.hidden(context, ANCHOR, 5)
    count = 4 if drafter.config.sample_from_anchor else 5
    block = case.reference.block(ANCHOR, count)
    wanted = case.reference.hidden(case.features * scale, block)[-5:]
    assert mx.isfinite(hidden).all().item()
    assert relative(hidden.astype(mx.float32), wanted) < 0.02


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark", "domino"])
def test_reduced_head_scores_its_rows_as_the_whole_head_does(kind: str, tmp_path: Path) -> None:
    case = Case(tmp_path, kind=kind)
    whole = case.load()
    rows = np.arange(97)[::-1].copy()
    reduced = case.load(head_rows=rows)
    first = whole.draft(case.context(whole), ANCHOR, [ANCHOR])
    second = reduced.draft(case.context(reduced), ANCHOR, [ANCHOR])
    assert first.tokens.tolist() == second.tokens.tolist()
    assert relative(second.confidence, np.array(first.confidence)) < TOLERANCE
    some = np.array(sorted(set(range(0, 97, 3)) - set(first.tokens.tolist())))
    third = case.load(head_rows=some).draft(case.context(whole), ANCHOR, [ANCHOR])
    assert set(third.tokens.tolist()) <= set(some.tolist())


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark", "domino"])
def test_coupled_drafts_follow_the_noise(kind: str, tmp_path: Path) -> None:
    """Noise is asked for the positions of the draft tokens; overwhelming noise decides, none changes nothing."""
    case = Case(tmp_path, kind=kind)
    drafter = case.load()
    context = case.context(drafter)
    asked: list[tuple[int, int]] = []
    wanted = [3, 50, 9, 77, 21]

    def loud(position: int, rows: int) -> mx.array:
        asked.append((position, rows))
        return 1e4 * (mx.arange(97)[None] == mx.array(wanted)[:, None]).astype(mx.float32)

    block = drafter.draft(context, ANCHOR, [ANCHOR], limit=5, noise=loud)
    assert asked == [(24, 5)]
    if kind == "dflash2":
        # Only candidates can be chosen.
        plain = drafter.draft(context, ANCHOR, [ANCHOR], limit=5)
        silent = drafter.draft(context, ANCHOR, [ANCHOR], limit=5, noise=lambda _, rows: mx.zeros((rows, 97)))
        assert silent.tokens.tolist() == plain.tokens.tolist()
    else:
        assert block.tokens.tolist() == wanted


def test_configs_are_not_shared_between_drafters(tmp_path: Path) -> None:
    case = Case(tmp_path)
    first, second = case.load(), case.load()
    first.network.config = replace(first.network.config, is_causal=True)
    wanted = case.reference.dflash(case.features, ANCHOR, 5)
    assert relative(case.logits(second, 5), wanted) < TOLERANCE
