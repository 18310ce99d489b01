"""Loading drafters from their published checkpoints, and checking model folders before anything trusts them.

Whatever does not fit is refused with one sentence: which file, which tensor or field, what to do.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from macspec_models.checkpoint_files import Header, read_config, read_header, refuse_own_code, weight_headers
from macspec_models.drafters.block import DFlashDrafter
from macspec_models.drafters.config import parse_config
from macspec_models.drafters.dflash import DFlashConfig, DFlashNetwork
from macspec_models.drafters.dflash2 import DFlash2Drafter, DFlash2Network
from macspec_models.drafters.domino import DominoDrafter, DominoNetwork
from macspec_models.drafters.dspark import DSparkDrafter, DSparkNetwork
from macspec_models.drafters.head import DraftHead, gather_head, head_layer
from macspec_models.drafters.interface import Embed
from macspec_models.errors import CheckpointError
from macspec_models.vocabulary import check_vocabulary

__all__ = ["check_pairing", "check_target_folder", "load_drafter", "quantize_drafter", "read_header"]

#: Prefixes some trainers put before every tensor's name.
_PREFIXES = ("model.", "draft_model.", "module.")
#: Names some trainers nest their extra heads under.
_NESTED = "logit_head."
#: Copies of the target's frozen tables that some trainers save too.
_TABLES = ("embed_tokens.weight", "lm_head.weight")
#: Maps of a reduced vocabulary: token id of head row i is ``i + d2t[i]``; ``t2d`` says the same the other way round.
_MAPS = ("d2t", "t2d")


def load_drafter(
    folder: Path | str, target: Any, *, head_rows: NDArray[np.integer[Any]] | None = None
) -> DFlashDrafter:
    """Load a drafter for a target.

    Args:
        folder: a folder in the published layout: ``config.json`` and safetensors.
        target: the loaded ``Target`` it drafts for.
        head_rows: score only these token ids; None scores the whole vocabulary.

    Raises:
        ModelMissingError: nothing is there.
        CheckpointError: damaged, of an unknown kind, or made for another target.
    """
    folder = Path(folder)
    where = str(folder / "config.json")
    kind, config, raw = _configuration(folder)
    check_pairing(config, target, where)
    check_vocabulary(folder, raw, target)
    network = _network(folder, kind, config, raw)
    if target.dtype == mx.float32:
        # A float32 target runs where half precision is slow or unwanted (CPU, exactness tests).
        network.set_dtype(mx.float32)
    embed, head = _tables(_own_tables(folder, config, target), config, target, head_rows, where)
    drafter = _KINDS[kind][1](network, embed, head)
    drafter.folder = folder
    return drafter


def quantize_drafter(folder: Path | str, out: Path | str, bits: int, *, group_size: int = 64) -> None:
    """Write a quantised copy of a drafter, in the same layout; its linear layers become ``bits`` wide.

    Args:
        out: a folder that does not exist yet; it appears whole or not at all.

    Raises:
        CheckpointError: the drafter is damaged or quantised already, ``out`` exists, or ``bits`` is not offered.
    """
    folder, out = Path(folder), Path(out)
    if bits not in (4, 8):
        raise CheckpointError(f"Drafters are quantised to 4 or 8 bits, not {bits}.")
    if out.exists():
        raise CheckpointError(f"{out} exists; name a new folder.")
    kind, config, raw = _configuration(folder)
    if raw.get("quantization") or raw.get("quantization_config"):
        raise CheckpointError(f"{folder} is already quantised; start from the original.")
    network = _network(folder, kind, config, raw)

    def pays(path: str, module: Any) -> bool:
        if not isinstance(module, nn.Linear) or path.endswith((".kernel_projection", ".proj")):
            # The convolutions' kernels and the confidence are sensitive, and small.
            return False
        return bool(module.weight.shape[1] % group_size == 0)

    nn.quantize(network, group_size, bits, class_predicate=pays)
    raw["quantization"] = {"group_size": group_size, "bits": bits}
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        mx.save_safetensors(
            str(partial / "model.safetensors"),
            {**dict(tree_flatten(network.parameters())), **_tensors(folder, (*_TABLES, *_MAPS))},
            {"format": "mlx"},
        )
        (partial / "config.json").write_text(json.dumps(raw, indent=1), encoding="utf-8")
        partial.rename(out)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _configuration(folder: Path) -> tuple[str, DFlashConfig, dict[str, Any]]:
    """Kind, parsed and raw configuration of a drafter's folder."""
    where = str(folder / "config.json")
    raw = read_config(folder)
    # `auto_map` is common in these configs and names code for other libraries; none of it is ever run here.
    refuse_own_code({"model_file": raw.get("model_file")}, where)
    kind, config = parse_config(raw, where)
    return kind, config, raw


def _network(folder: Path, kind: str, config: DFlashConfig, raw: Mapping[str, Any]) -> DFlashNetwork:
    """The network with the folder's weights."""
    headers = weight_headers(folder)
    network = _KINDS[kind][0](_optional_parts(config, headers))
    _fill(network, headers, raw, str(folder / "config.json"))
    return network


def _optional_parts(config: DFlashConfig, headers: list[Header]) -> DFlashConfig:
    """The configuration with what only the file tells: whether the confidence head has a bias."""
    names = {plain_name(name) for header in headers for name in header.tensors}
    return replace(config, extra={**config.extra, "confidence_bias": "confidence_head.proj.bias" in names})


def check_pairing(config: DFlashConfig, target: Any, where: str) -> None:
    """Refuse a drafter that was made for another target.

    Raises:
        CheckpointError: width, layer count, vocabulary, taps or mask token do not fit.
    """
    facts = (
        ("hidden size", config.target_hidden_size, target.hidden_size),
        ("layer count", config.num_target_layers or target.layers, target.layers),
        ("vocabulary", config.vocab_size, target.vocab_size),
    )
    for name, wanted, there in facts:
        if wanted != there:
            raise CheckpointError(
                f"{where}: this drafter was made for a target with {name} {wanted:,}, but {target.name} has {there:,}. "
                "Choose the drafter made for this model."
            )
    if config.target_layer_ids[-1] >= target.layers:
        raise CheckpointError(
            f"{where}: this drafter reads target layer {config.target_layer_ids[-1]}, but {target.name} has "
            f"{target.layers} layers; it was made for another model."
        )


def check_target_folder(folder: Path | str) -> None:
    """Check a target's folder without loading it.

    Raises:
        ModelMissingError: no folder, config or weights there.
        CheckpointError: a file is damaged, or the model would run code of its own.
    """
    folder = Path(folder)
    raw = read_config(folder)
    refuse_own_code(raw, str(folder / "config.json"))
    weight_headers(folder)


def _tensors(folder: Path, wanted: tuple[str, ...]) -> dict[str, mx.array]:
    """Some of a folder's tensors by their published names; those it has not are left out."""
    found: dict[str, mx.array] = {}
    for header in weight_headers(folder):
        names = {name for name in header.tensors if plain_name(name) in wanted}
        if names:
            arrays = cast(dict[str, mx.array], mx.load(str(header.path)))
            found |= {plain_name(name): _checked(arrays[name], f"{header.path}: tensor {name!r}") for name in names}
    return found


def _own_tables(folder: Path, config: DFlashConfig, target: Any) -> dict[str, mx.array]:
    """Embedding, head and vocabulary map a drafter must bring because the target's do not fit.

    Trainers often save copies of the target's frozen tables. A table of the target's own shape is taken for such a copy
    and left alone: the target's is in memory already and may be quantised, which makes drafting cheaper.
    """
    shapes = {plain_name(n): i.shape for header in weight_headers(folder) for n, i in header.tensors.items()}
    copy = (target.vocab_size, target.hidden_size)
    needed = tuple(name for name in _TABLES if name in shapes and shapes[name] != copy)
    if config.hidden_size != target.hidden_size and set(needed) != set(_TABLES):
        raise CheckpointError(
            f"{folder}: this drafter is {config.hidden_size} wide and {target.name} {target.hidden_size}, and it has "
            "no embedding and head of its own; it was made for another model."
        )
    tables = _tensors(folder, (*needed, "d2t")) if needed else {}
    for name in needed:
        rows, width = tables[name].shape if tables[name].ndim == 2 else (0, 0)
        whole = rows == target.vocab_size or (name == "lm_head.weight" and 0 < rows < target.vocab_size)
        if not whole or width != config.hidden_size:
            raise CheckpointError(
                f"{folder}: tensor {name!r} has shape {list(tables[name].shape)}, which fits no vocabulary."
            )
    return tables


def _tables(
    own: Mapping[str, mx.array],
    config: DFlashConfig,
    target: Any,
    head_rows: NDArray[np.integer[Any]] | None,
    where: str,
) -> tuple[Any, DraftHead]:
    """The embedding and the head a drafter uses: the target's, unless it must bring its own."""
    embed, layer = _scaled_embedding(target), head_layer(target.model)
    if "embed_tokens.weight" in own:
        embed = nn.Embedding(1, 1)
        embed.weight = own["embed_tokens.weight"].astype(target.dtype)
    if "lm_head.weight" in own:
        layer = nn.Linear(1, 1, bias=False)
        layer.weight = own["lm_head.weight"].astype(target.dtype)
        if layer.weight.shape[0] < target.vocab_size:
            if head_rows is not None:
                raise CheckpointError(f"{where}: this drafter's head is reduced already; no rows can be chosen.")
            return embed, DraftHead(
                layer, _vocabulary_map(own, layer.weight.shape[0], target, where), layer.weight.nbytes
            )
        if head_rows is None:
            return embed, DraftHead(layer, None, layer.weight.nbytes)
    if head_rows is None:
        return embed, DraftHead(target.head)
    if layer is None:
        raise CheckpointError(f"{where}: {target.name} has no plain output layer to take rows of; use its whole head.")
    try:
        return embed, gather_head(layer, head_rows)
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}.") from error


def _scaled_embedding(target: Any) -> Embed:
    """The target's embedding as its first layer sees it: Gemma models scale theirs, and their drafters learned that."""
    text = target.config.get("text_config") or target.config
    if not str(text.get("model_type", "")).startswith("gemma"):
        return cast(Embed, target.embed)
    scale = float(target.hidden_size) ** 0.5

    def embed(tokens: mx.array) -> mx.array:
        rows: mx.array = target.embed(tokens)
        return rows * mx.array(scale, dtype=rows.dtype)

    return embed


def _vocabulary_map(own: Mapping[str, mx.array], rows: int, target: Any, where: str) -> NDArray[np.integer[Any]]:
    """Token id of each row of a reduced head."""
    if "d2t" not in own or own["d2t"].shape != (rows,):
        raise CheckpointError(
            f"{where}: the head has {rows:,} rows, but there is no map to token ids (tensor d2t) for them."
        )
    ids = np.array(own["d2t"]).astype(np.int64) + np.arange(rows)
    if ids.min() < 0 or ids.max() >= target.vocab_size:
        raise CheckpointError(f"{where}: tensor d2t points outside the vocabulary of {target.vocab_size:,}.")
    return ids


def _fill(network: nn.Module, headers: list[Header], raw: Mapping[str, Any], where: str) -> None:
    """Load every tensor into the network, by name, after checking names, shapes and values."""
    names = {name: plain_name(name) for header in headers for name in header.tensors}
    shapes = {names[name]: info.shape for header in headers for name, info in header.tensors.items()}
    _quantise(network, set(shapes), raw, where)
    wanted = dict(tree_flatten(network.parameters()))
    folder = headers[0].path.parent
    missing = sorted(wanted.keys() - shapes.keys())
    if missing:
        raise CheckpointError(
            f"{folder} lacks tensor {missing[0]!r} ({len(missing)} in all), which its config.json asks for."
        )
    unexpected = sorted(shapes.keys() - wanted.keys() - {*_TABLES, *_MAPS})
    if unexpected:
        raise CheckpointError(
            f"{folder} holds tensor {unexpected[0]!r} ({len(unexpected)} in all), which a drafter of its config.json "
            "does not have; it is another kind or a newer version."
        )
    for name, array in wanted.items():
        if shapes[name] != array.shape:
            raise CheckpointError(
                f"{folder}: tensor {name!r} has shape {list(shapes[name])}, "
                f"but config.json asks for {list(array.shape)}."
            )
    loaded = {}
    for header in headers:
        for name, array in cast(dict[str, mx.array], mx.load(str(header.path))).items():
            if names[name] in wanted:
                loaded[names[name]] = _checked(array, f"{header.path}: tensor {name!r}")
    network.load_weights(list(loaded.items()))
    mx.eval(network.parameters())
    network.eval()


def plain_name(name: str) -> str:
    """A tensor's published name, without the prefixes some trainers add."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.removeprefix(_NESTED)


def _checked(array: mx.array, what: str) -> mx.array:
    """The array, all of whose values must be finite."""
    if mx.issubdtype(array.dtype, mx.floating) and not mx.isfinite(array).all().item():
        raise CheckpointError(f"{what} has values that are not numbers or infinite. Download it again.")
    return array


def _quantise(network: nn.Module, names: set[str], raw: Mapping[str, Any], where: str) -> None:
    """Turn layers whose scales are in the file into quantised ones, as ``config.json`` says."""
    quantised = {name.removesuffix(".scales") for name in names if name.endswith(".scales")}
    if not quantised:
        return
    how = raw.get("quantization") or raw.get("quantization_config")
    if (
        not isinstance(how, Mapping)
        or not isinstance(how.get("bits"), int)
        or not isinstance(how.get("group_size"), int)
    ):
        raise CheckpointError(
            f"{where}: the weights are quantised, but no quantization with bits and group_size is given."
        )
    try:
        nn.quantize(
            network,
            how["group_size"],
            how["bits"],
            mode=how.get("mode", "affine"),
            class_predicate=lambda path, module: path in quantised,
        )
    except ValueError as error:
        raise CheckpointError(f"{where}: its quantization cannot be used: {error}") from error


_KINDS: dict[str, tuple[type[DFlashNetwork], type[DFlashDrafter]]] = {
    "dflash": (DFlashNetwork, DFlashDrafter),
    "dflash2": (DFlash2Network, DFlash2Drafter),
    "dspark": (DSparkNetwork, DSparkDrafter),
    "domino": (DominoNetwork, DominoDrafter),
}
