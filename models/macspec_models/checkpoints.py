"""Loading drafters from their published checkpoints, and checking model folders before anything trusts them.

Whatever does not fit is refused with one sentence: which file, which tensor or field, what to do.
"""

from __future__ import annotations

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
from macspec_models.errors import CheckpointError

__all__ = ["check_target_folder", "load_drafter", "read_header"]

#: Prefixes some trainers put before every tensor's name.
_PREFIXES = ("model.", "draft_model.", "module.")
#: Names some trainers nest their extra heads under.
_NESTED = "logit_head."
#: Copies of the target's frozen tables that some trainers save too.
_TABLES = ("embed_tokens.weight", "lm_head.weight")


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
    raw = read_config(folder)
    where = str(folder / "config.json")
    # `auto_map` is common in these configs and names code for other libraries; none of it is ever run here.
    refuse_own_code({"model_file": raw.get("model_file")}, where)
    kind, config = parse_config(raw, where)
    check_pairing(config, target, where)
    headers = weight_headers(folder)
    network_class, drafter_class = _KINDS[kind]
    network = network_class(_optional_parts(config, headers))
    _fill(network, headers, raw, where, target.dtype)
    embed, head = _tables(config, target, head_rows, where)
    return drafter_class(network, embed, head)


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
    if config.hidden_size != target.hidden_size:
        raise CheckpointError(
            f"{where}: this drafter is {config.hidden_size} wide and {target.name} {target.hidden_size}; drafters of "
            "another width than their target are not supported."
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


def _tables(
    config: DFlashConfig, target: Any, head_rows: NDArray[np.integer[Any]] | None, where: str
) -> tuple[Any, DraftHead]:
    """The embedding and the head a drafter uses: the target's."""
    if head_rows is None:
        return target.embed, DraftHead(target.head)
    layer = head_layer(target.model)
    if layer is None:
        raise CheckpointError(f"{where}: {target.name} has no plain output layer to take rows of; use its whole head.")
    try:
        return target.embed, gather_head(layer, head_rows)
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}.") from error


def _fill(network: nn.Module, headers: list[Header], raw: Mapping[str, Any], where: str, dtype: mx.Dtype) -> None:
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
    unexpected = sorted(shapes.keys() - wanted.keys() - set(_TABLES))
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
    if dtype == mx.float32:
        # A float32 target runs where half precision is slow or unwanted (CPU, exactness tests).
        network.set_dtype(dtype)
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
