"""Damaged, unsafe and mismatched checkpoints: each is refused with a sentence; nothing is allocated by its claims."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from macspec_models.checkpoints import check_target_folder, load_drafter, quantize_drafter, read_header
from macspec_models.errors import CheckpointError, ModelError, ModelMissingError
from tiny_drafters import TINY_TARGET, TinyTarget, write_dflash

#: Changes a good checkpoint in a folder into a bad one.
Spoil = Callable[[Path], None]


def weights(folder: Path) -> Path:
    return folder / "model.safetensors"


def with_header(change: Callable[[dict[str, Any]], Any]) -> Spoil:
    """Rewrite the safetensors header; the data stays."""

    def spoil(folder: Path) -> None:
        blob = weights(folder).read_bytes()
        (length,) = struct.unpack("<Q", blob[:8])
        header = json.loads(blob[8 : 8 + length])
        changed = change(header)
        text = changed if isinstance(changed, bytes) else json.dumps(header).encode()
        weights(folder).write_bytes(struct.pack("<Q", len(text)) + text + blob[8 + length :])

    return spoil


def with_bytes(change: Callable[[bytes], bytes]) -> Spoil:
    def spoil(folder: Path) -> None:
        weights(folder).write_bytes(change(weights(folder).read_bytes()))

    return spoil


def with_config(**fields: Any) -> Spoil:
    """Set fields, at the top or (a dict) inside ``dflash_config``; ``...`` removes one."""

    def spoil(folder: Path) -> None:
        raw = json.loads((folder / "config.json").read_text())
        for name, value in fields.items():
            if name == "dflash_config" and isinstance(value, dict):
                raw[name] = {**raw[name], **value}
            else:
                raw[name] = value
        raw = {name: value for name, value in raw.items() if value is not ...}
        raw["dflash_config"] = {n: v for n, v in raw.get("dflash_config", {}).items() if v is not ...}
        (folder / "config.json").write_text(json.dumps(raw))

    return spoil


def with_text(text: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / "config.json").write_text(text)

    return spoil


def with_tensors(change: Callable[[dict[str, mx.array]], Any]) -> Spoil:
    def spoil(folder: Path) -> None:
        arrays = dict(mx.load(str(weights(folder))))
        mx.eval(*arrays.values())
        change(arrays)
        mx.save_safetensors(str(weights(folder)), arrays)

    return spoil


def set_first(field: str, value: Any) -> Spoil:
    def change(header: dict[str, Any]) -> None:
        header["fc.weight"][field] = value

    return with_header(change)


def shift_offsets(by: int) -> Spoil:
    """Move the last tensor: an overlap with the one before it, or a gap."""

    def change(header: dict[str, Any]) -> None:
        last = max((name for name in header if name != "__metadata__"), key=lambda n: header[n]["data_offsets"][0])
        begin, end = header[last]["data_offsets"]
        header[last]["data_offsets"] = [begin + by, end + by]

    return with_header(change)


def poison(value: float) -> Spoil:
    def change(arrays: dict[str, mx.array]) -> None:
        values = np.array(arrays["norm.weight"])
        values[3] = value
        arrays["norm.weight"] = mx.array(values)

    return with_tensors(change)


def shards(folder: Path) -> None:
    """Split the weights in two, with an index."""
    arrays = dict(mx.load(str(weights(folder))))
    mx.eval(*arrays.values())
    names = sorted(arrays)
    place = {}
    for number, part in enumerate((names[:5], names[5:])):
        file = f"model-{number}.safetensors"
        mx.save_safetensors(str(folder / file), {name: arrays[name] for name in part})
        place |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    weights(folder).unlink()


def sharded(then: Spoil) -> Spoil:
    def spoil(folder: Path) -> None:
        shards(folder)
        then(folder)

    return spoil


def index_with(place: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))

    return spoil


def only_pickles(folder: Path) -> None:
    weights(folder).rename(folder / "pytorch_model.bin")


def duplicate_name(_: dict[str, Any]) -> bytes:
    return (
        b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    )


ten_terabytes = 10 * 2**40
HUGE = {"dtype": "F32", "shape": [ten_terabytes // 4], "data_offsets": [0, ten_terabytes]}

DSPARK: dict[str, Any] = {"architectures": ["DSparkDraftModel"]}

#: name: how to spoil, and what the sentence must say.
MALFORMED: dict[str, tuple[Spoil, str]] = {
    # The file
    "empty file": (with_bytes(lambda b: b""), "0 bytes"),
    "seven bytes": (with_bytes(lambda b: b[:7]), "7 bytes"),
    "cut in the header": (with_bytes(lambda b: b[:200]), "cut off"),
    "cut in the data": (with_bytes(lambda b: b[:-100]), "cut off"),
    "trailing bytes": (with_bytes(lambda b: b + b"x" * 9), "9 bytes behind its last tensor"),
    "header of 10 TB": (with_bytes(lambda b: struct.pack("<Q", ten_terabytes) + b[8:]), "claims a header of"),
    "Git LFS pointer": (
        with_bytes(lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
        "Git LFS pointer",
    ),
    "web page instead": (with_bytes(lambda b: b"<!DOCTYPE html><html>not found</html>"), "no safetensors file"),
    "only pickles": (only_pickles, "can run code"),
    # The header
    "header not JSON": (with_header(lambda h: b"{not json"), "damaged header"),
    "header not UTF-8": (with_header(lambda h: b'{"\xff": 1}'), "damaged header"),
    "header a list": (with_header(lambda h: b"[]"), "no object"),
    "header nested deep": (with_header(lambda h: b"[" * 100_000), "damaged header"),
    "no tensors": (with_bytes(lambda b: struct.pack("<Q", 2) + b"{}"), "holds no tensors"),
    "metadata of numbers": (with_header(lambda h: h.update(__metadata__={"a": 1})), "__metadata__"),
    "name twice": (with_header(duplicate_name), "twice"),
    "tensor of 10 TB": (with_header(lambda h: h.update({"fc.weight": HUGE})), "cut off"),
    "offsets overlap": (shift_offsets(-8), "overlaps"),
    "offsets leave a gap": (with_header(lambda h: h.pop("hidden_norm.weight") and None), "gap"),
    "negative shape": (set_first("shape", [-32, -96]), "not whole numbers"),
    "true as a shape": (set_first("shape", [True, 96]), "not whole numbers"),
    "shape and bytes disagree": (set_first("shape", [32, 95]), "does not fit"),
    "unknown type": (set_first("dtype", "F12"), "'F12'"),
    "offsets reversed": (set_first("data_offsets", [128, 0]), "outside the file"),
    "offsets missing": (with_header(lambda h: h["fc.weight"].pop("data_offsets") and None), "lacks dtype"),
    # Names, shapes, values
    "tensor missing": (with_tensors(lambda a: a.pop("layers.1.mlp.up_proj.weight")), "lacks tensor"),
    "tensor unexpected": (with_tensors(lambda a: a.update(extra=mx.zeros(3))), "holds tensor 'extra'"),
    "tensor of another shape": (with_tensors(lambda a: a.update({"norm.weight": mx.zeros(31)})), "shape [31]"),
    "not a number": (poison(float("nan")), "not numbers or infinite"),
    "infinite": (poison(float("inf")), "not numbers or infinite"),
    # Shards
    "shard missing": (sharded(lambda f: (f / "model-1.safetensors").unlink()), "1 of 2 shards"),
    "shard holds something else": (
        sharded(lambda f: (f / "model-0.safetensors").write_bytes((f / "model-1.safetensors").read_bytes())),
        "is in both",
    ),
    "index leaves the folder": (index_with({"fc.weight": "../model.safetensors"}), "no weight file beside it"),
    "index of nothing": (index_with({}), "no weight_map"),
    "index to a pickle": (index_with({"fc.weight": "model.bin"}), "no weight file beside it"),
    # The config
    "config not JSON": (with_text("{"), "not valid JSON"),
    "config a list": (with_text("[]"), "not a JSON object"),
    "no architecture": (with_config(architectures=...), "no architecture"),
    "a language model": (with_config(architectures=["Qwen3ForCausalLM"]), "no block drafter"),
    "Laguna": (with_config(architectures=["DFlashLagunaForCausalLM"]), "Laguna's backbone"),
    "Muse Glimmer": (with_config(architectures=["MuseGlimmerAssistantModel"]), "Muse Glimmer"),
    "latent attention": (with_config(dflash_config={"attention_mode": "mla"}), "attention_mode 'mla'"),
    "projector unknown": (with_config(dflash_config={"projector_type": "magic"}), "'magic'"),
    "option unknown": (with_config(dflash_config={"tree_width": 3}), "tree_width"),
    "runs its own code": (with_config(model_file="model.py"), "model_file"),
    "rope unknown": (with_config(rope_scaling={"rope_type": "longrope", "factor": 2}), "'longrope'"),
    "rope without factor": (with_config(rope_scaling={"rope_type": "yarn"}), "factor"),
    "block of one": (with_config(block_size=1), "block_size is 1"),
    "heads do not divide": (with_config(num_key_value_heads=3), "num_key_value_heads is 3"),
    "layer types too few": (with_config(layer_types=["full_attention"]), "layer_types"),
    "layer type unknown": (with_config(layer_types=["linear_attention"] * 3), "layer_types"),
    "sliding without window": (with_config(layer_types=["sliding_attention"] * 3), "sliding_window is missing"),
    "taps descend": (with_config(dflash_config={"target_layer_ids": [5, 4, 1]}), "ascending"),
    "taps missing": (with_config(dflash_config={"target_layer_ids": ...}), "target_layer_ids is missing"),
    "taps the embedding": (with_config(dflash_config={"target_layer_ids": [-1, 2, 5]}), "layer -1"),
    "mask outside the vocabulary": (with_config(dflash_config={"mask_token_id": 97}), "mask_token_id is 97"),
    "mask missing": (with_config(dflash_config={"mask_token_id": ...}), "mask_token_id is missing"),
    "width a word": (with_config(hidden_size="wide"), "hidden_size is 'wide'"),
    "layers true": (with_config(num_hidden_layers=True), "num_hidden_layers is True"),
    "activation": (with_config(hidden_act="gelu"), "hidden_act"),
    "temperature of zero": (with_config(**DSPARK, confidence_temperatures=[1, 1, 1, 1, 1, 0]), "above zero"),
    "temperatures too few": (with_config(**DSPARK, confidence_temperatures=[1]), "one number for each"),
    # The pairing
    "another width": (with_config(target_hidden_size=64), "hidden size 64"),
    "another depth": (with_config(num_target_layers=36), "layer count 36"),
    "another vocabulary": (with_config(vocab_size=200), "vocabulary 200"),
    "tap beyond the target": (
        with_config(num_target_layers=..., dflash_config={"target_layer_ids": [1, 4, 8]}),
        "reads target layer 8",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_checkpoint_is_refused(name: str, tmp_path: Path) -> None:
    write_dflash(tmp_path, TINY_TARGET)
    spoil, says = MALFORMED[name]
    spoil(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as caught:
            load_drafter(tmp_path, TinyTarget())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert says in caught.value.message
    assert str(tmp_path) in caught.value.message or "model-0" in caught.value.message
    assert caught.value.message.endswith((".", "it"))
    assert peak < 20_000_000


def test_there_are_enough_of_them() -> None:
    assert len(MALFORMED) >= 40


def test_missing_things_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelMissingError, match="not a folder"):
        load_drafter(tmp_path / "nowhere", TinyTarget())
    with pytest.raises(ModelMissingError, match=r"no config\.json"):
        load_drafter(tmp_path, TinyTarget())
    write_dflash(tmp_path, TINY_TARGET)
    weights(tmp_path).unlink()
    with pytest.raises(ModelMissingError, match="no safetensors"):
        load_drafter(tmp_path, TinyTarget())
    with pytest.raises(ModelMissingError, match="does not exist"):
        read_header(weights(tmp_path))


GOOD: dict[str, tuple[dict[str, Any], Spoil]] = {
    "shards": ({}, shards),
    "prefix model.": ({"prefix": "model."}, lambda f: None),
    "prefix draft_model.": ({"prefix": "draft_model."}, lambda f: None),
    "nested heads": ({"kind": "domino", "prefix": "logit_head."}, lambda f: None),
    "code for other libraries": ({}, with_config(auto_map={"AutoModel": "dflash.DFlashDraftModel"})),
    "options at the top": ({}, with_config(target_layer_ids=[1, 4, 5], dflash_config={"target_layer_ids": ...})),
    "options inside": ({}, with_config(block_size=..., dflash_config={"block_size": 6, "num_target_layers": 8})),
    "tables of the target": (
        {},
        with_tensors(
            lambda a: a.update({"embed_tokens.weight": mx.zeros((97, 32)), "lm_head.weight": mx.zeros((97, 32))})
        ),
    ),
    "projector names Domino": ({"kind": "domino"}, with_config(architectures=["DFlashDraftModel"])),
    "DSpark by its authors": ({"kind": "dspark"}, with_config(architectures=["Qwen3DSparkModel"])),
    "confidence without bias": ({"kind": "dspark"}, with_tensors(lambda a: a.pop("confidence_head.proj.bias"))),
    "mrope": ({}, with_config(rope_scaling={"type": "mrope", "mrope_section": [1, 2, 1]})),
}


@pytest.mark.parametrize("name", GOOD)
def test_published_spellings_load_and_draft_the_same(name: str, tmp_path: Path) -> None:
    options, change = GOOD[name]
    kind = {"kind": options["kind"]} if "kind" in options else {}
    write_dflash(tmp_path / "plain", TINY_TARGET, **kind)
    write_dflash(tmp_path / "spelled", TINY_TARGET, **options)
    change(tmp_path / "spelled")
    target = TinyTarget()
    drafts = []
    for folder in ("plain", "spelled"):
        drafter = load_drafter(tmp_path / folder, target)
        context = drafter.new_context()
        features = np.random.default_rng(0).normal(size=(9, 3 * 32)).astype(np.float32)
        drafter.extend(context, mx.array(features))
        drafts.append(drafter.draft(context, 4, [4]))
    assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()


def test_gemma_embeddings_are_scaled_as_the_target_scales_them(tmp_path: Path) -> None:
    write_dflash(tmp_path, TINY_TARGET)
    gemma, plain = TinyTarget({**TINY_TARGET, "model_type": "gemma3_text"}), TinyTarget()
    ids = mx.array([3, 4])
    assert mx.allclose(load_drafter(tmp_path, gemma).embed(ids), load_drafter(tmp_path, plain).embed(ids) * 32**0.5)


def test_a_float32_target_gets_a_float32_drafter(tmp_path: Path) -> None:
    write_dflash(tmp_path, TINY_TARGET, dtype="bfloat16")
    assert load_drafter(tmp_path, TinyTarget()).network.fc.weight.dtype == mx.float32
    assert load_drafter(tmp_path, TinyTarget(dtype=mx.bfloat16)).network.fc.weight.dtype == mx.bfloat16


WIDE = {"hidden_size": 64, "num_hidden_layers": 8, "vocab_size": 97}


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark", "domino"])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_drafters_load_and_stay_close(kind: str, bits: int, tmp_path: Path) -> None:
    write_dflash(tmp_path / "whole", WIDE, kind=kind, head_dim=32, conv_group_size=8 if kind == "dflash2" else None)
    quantize_drafter(tmp_path / "whole", tmp_path / "small", bits)
    target = TinyTarget(WIDE)
    features = mx.array(np.random.default_rng(0).normal(size=(9, 3 * 64)).astype(np.float32))
    hidden = []
    for folder in ("whole", "small"):
        drafter = load_drafter(tmp_path / folder, target)
        context = drafter.new_context()
        drafter.extend(context, features)
        drafter.draft(context, 4, [4])
        hidden.append(np.array(drafter.hidden(context, 4, 4)))
    error = np.abs(hidden[0] - hidden[1]).mean() / np.abs(hidden[0]).mean()
    # Random convolutions multiply errors; trained ones stay near the identity.
    assert error < (0.02 if bits == 8 else 0.3) * (3 if kind == "dflash2" else 1)
    assert error > 0
    sizes = [(tmp_path / folder / "model.safetensors").stat().st_size for folder in ("whole", "small")]
    assert sizes[1] < 0.7 * sizes[0]


def test_quantising_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    write_dflash(tmp_path / "a", WIDE, head_dim=32)
    with pytest.raises(CheckpointError, match="bits"):
        quantize_drafter(tmp_path / "a", tmp_path / "b", 5)
    quantize_drafter(tmp_path / "a", tmp_path / "b", 4)
    with pytest.raises(CheckpointError, match="already quantised"):
        quantize_drafter(tmp_path / "b", tmp_path / "c", 4)
    with pytest.raises(CheckpointError, match="exists"):
        quantize_drafter(tmp_path / "a", tmp_path / "b", 4)
    assert not (tmp_path / "c").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_quantised_weights_need_their_recipe(tmp_path: Path) -> None:
    write_dflash(tmp_path / "a", WIDE, head_dim=32)
    quantize_drafter(tmp_path / "a", tmp_path / "b", 4)
    with_config(quantization=..., quantization_config=...)(tmp_path / "b")
    with pytest.raises(CheckpointError, match="no quantization"):
        load_drafter(tmp_path / "b", TinyTarget(WIDE))


def own_tables(folder: Path, rows: np.ndarray, target: TinyTarget) -> None:
    """Give a drafter a head of some of the target's rows, with the map from its rows to token ids."""
    with_tensors(
        lambda a: a.update(
            {
                "lm_head.weight": mx.array(target.rows[rows]),
                "d2t": mx.array(rows - np.arange(len(rows)), dtype=mx.int64),
                "t2d": mx.zeros((97,), dtype=mx.bool_),
            }
        )
    )(folder)


@pytest.mark.parametrize("quantised", [False, True])
def test_own_head_of_a_reduced_vocabulary(quantised: bool, tmp_path: Path) -> None:
    target, rows = TinyTarget(), np.arange(3, 97, 2)
    write_dflash(tmp_path / "plain", TINY_TARGET)
    write_dflash(tmp_path / "own", TINY_TARGET)
    own_tables(tmp_path / "own", rows, target)
    own = tmp_path / "own"
    if quantised:
        quantize_drafter(own, tmp_path / "small", 8, group_size=32)
        own = tmp_path / "small"
    features = mx.array(np.random.default_rng(0).normal(size=(9, 3 * 32)).astype(np.float32))
    drafts = []
    for drafter in (load_drafter(tmp_path / "plain", target, head_rows=rows), load_drafter(own, target)):
        context = drafter.new_context()
        drafter.extend(context, features)
        drafts.append(drafter.draft(context, 4, [4]))
    assert set(drafts[1].tokens.tolist()) <= set(rows.tolist())
    if not quantised:
        assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
    with pytest.raises(CheckpointError, match="reduced already"):
        load_drafter(own, target, head_rows=rows[:5])


def test_own_head_without_a_map_is_refused(tmp_path: Path) -> None:
    write_dflash(tmp_path, TINY_TARGET)
    with_tensors(lambda a: a.update({"lm_head.weight": mx.zeros((40, 32))}))(tmp_path)
    with pytest.raises(CheckpointError, match="d2t"):
        load_drafter(tmp_path, TinyTarget())
    with_tensors(lambda a: a.update({"d2t": mx.full((40,), 90, dtype=mx.int64)}))(tmp_path)
    with pytest.raises(CheckpointError, match="outside the vocabulary"):
        load_drafter(tmp_path, TinyTarget())


def test_a_drafter_of_another_width_brings_its_own_tables(tmp_path: Path) -> None:
    """The features are the target's; everything after ``fc`` is the drafter's own width."""
    config = {**TINY_TARGET, "hidden_size": 16}
    write_dflash(tmp_path, config, target_hidden_size=32)
    with_tensors(lambda a: a.update({"fc.weight": mx.random.normal((16, 96), key=mx.random.key(0)) * 0.1}))(tmp_path)
    with pytest.raises(CheckpointError, match="16 wide"):
        load_drafter(tmp_path, TinyTarget())
    with_tensors(lambda a: a.update({"embed_tokens.weight": mx.ones((97, 16)), "lm_head.weight": mx.ones((97, 16))}))(
        tmp_path
    )
    drafter = load_drafter(tmp_path, TinyTarget())
    context = drafter.new_context()
    drafter.extend(context, mx.ones((4, 96)))
    assert drafter.draft(context, 3, [3]).tokens.shape == (5,)


def test_head_rows_must_be_token_ids(tmp_path: Path) -> None:
    write_dflash(tmp_path, TINY_TARGET)
    for rows, says in (([], "non-empty"), ([1, 1], "distinct"), ([97], r"0\.\.96"), ([-1], r"0\.\.96")):
        with pytest.raises(CheckpointError, match=says):
            load_drafter(tmp_path, TinyTarget(), head_rows=np.array(rows, np.int64))


def test_target_folders_are_checked(tmp_path: Path) -> None:
    write_dflash(tmp_path, TINY_TARGET)
    check_target_folder(tmp_path)
    for field in ("model_file", "auto_map"):
        with_config(**{field: {"AutoModel": "x.Y"}})(tmp_path)
        with pytest.raises(CheckpointError, match=field):
            check_target_folder(tmp_path)
        with_config(**{field: ...})(tmp_path)
    with_bytes(lambda b: b[:-1])(tmp_path)
    with pytest.raises(CheckpointError, match="cut off"):
        check_target_folder(tmp_path)
