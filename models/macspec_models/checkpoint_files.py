"""Looking at checkpoint files before trusting them: safetensors headers, index files, configs, what must not be there.

Nothing here allocates by what a file claims; only by what it holds.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from macspec_models.errors import CheckpointError, ModelMissingError

#: Bytes of one element, by safetensors type name.
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip

#: The format's own limit.
LARGEST_HEADER = 100_000_000
LARGEST_CONFIG = 16_000_000

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".msgpack", ".h5")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as a header describes it; offsets count from the start of the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """A safetensors file whose header has been checked against the file's size."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]


def read_header(path: Path) -> Header:
    """Read and check the header of a safetensors file.

    Every byte of the data must belong to exactly one tensor, and every tensor's size must follow from type and shape.

    Raises:
        CheckpointError: the file is no whole safetensors file; the message says what is wrong and what to do.
        ModelMissingError: there is no such file.
    """
    again = "Download it again."
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(64)
            if start.startswith(b"version https://git-lfs"):
                raise CheckpointError(
                    f"{path} is a Git LFS pointer, not the weights. Fetch the real file with `git lfs pull`."
                )
            if size < 8:
                raise CheckpointError(f"{path} has {size} bytes, too few for a safetensors file. {again}")
            (length,) = struct.unpack("<Q", start[:8])
            if length > min(size - 8, LARGEST_HEADER):
                raise CheckpointError(
                    f"{path} claims a header of {length:,} bytes and has {size:,} in all; it is cut off or no "
                    f"safetensors file. {again}"
                )
            file.seek(8)
            text = file.read(length)
    except FileNotFoundError as error:
        raise ModelMissingError(f"{path} does not exist.") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    return _parse_header(path, text, size - 8 - length)


def _parse_header(path: Path, text: bytes, data: int) -> Header:
    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise CheckpointError(f"{path} names a tensor or field twice in its header; it is not safe to load.")
        return found

    try:
        raw = json.loads(text.decode("utf-8"), object_pairs_hook=distinct)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} has a damaged header. Download it again.") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} has a header that is no object. Download it again.")
    # MLX writes null when it is given none.
    metadata = raw.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path} has a header whose __metadata__ is not a map of strings.")
    tensors = {name: _tensor(path, name, entry, data) for name, entry in raw.items()}
    if not tensors:
        raise CheckpointError(f"{path} holds no tensors.")
    reached = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin != reached:
            what = "overlaps the tensor before it" if info.begin < reached else "leaves a gap before it"
            raise CheckpointError(f"{path}: tensor {name!r} {what}; the file is damaged. Download it again.")
        reached = info.end
    if reached != data:
        raise CheckpointError(
            f"{path} has {data - reached:,} bytes behind its last tensor; it is damaged. Download it again."
        )
    return Header(path, tensors, metadata)


def _tensor(path: Path, name: str, entry: Any, data: int) -> TensorInfo:
    where = f"{path}: tensor {name!r}"
    if not name or "\0" in name:
        raise CheckpointError(f"{path} has a tensor without a proper name.")
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise CheckpointError(f"{where} lacks dtype, shape or data_offsets.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in ITEM_BYTES:
        raise CheckpointError(f"{where} has type {dtype!r}, which is not one of {', '.join(ITEM_BYTES)}.")

    def whole(values: Any) -> bool:
        return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**62 for v in values)

    if not whole(shape) or not whole(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{where} has a shape or offsets that are not whole numbers.")
    begin, end = offsets
    if not begin <= end <= data:
        raise CheckpointError(f"{where} lies outside the file, which is cut off. Download it again.")
    if end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise CheckpointError(f"{where} has {end - begin:,} bytes, which does not fit shape {shape} of {dtype}.")
    return TensorInfo(dtype, tuple(shape), begin, end)


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's ``config.json``.

    Raises:
        ModelMissingError: no such folder, or no ``config.json`` in it.
        CheckpointError: it is not a JSON object.
    """
    if not folder.is_dir():
        raise ModelMissingError(f"{folder} is not a folder.")
    return read_json(folder / "config.json")


def read_json(path: Path, *, largest: int = LARGEST_CONFIG) -> dict[str, Any]:
    """A JSON object from a file of at most ``largest`` bytes; see ``read_config``."""
    try:
        if path.stat().st_size > largest:
            raise CheckpointError(f"{path} is larger than any such file should be.")
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelMissingError(f"{path.parent} has no {path.name}, so it is no model folder.") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON. Download it again.") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} is not a JSON object.")
    return raw


def weight_headers(folder: Path) -> list[Header]:
    """Checked headers of all weight files of a folder, in name order, each tensor in exactly one file.

    With an index (``model.safetensors.index.json``) the shards it names must be there and hold what it says.

    Raises:
        ModelMissingError: there are no safetensors files.
        CheckpointError: one is damaged, a shard is missing, a tensor appears twice, or there are only pickles.
    """
    files = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("."))
    index_path = folder / "model.safetensors.index.json"
    index = read_json(index_path) if index_path.exists() else None
    if not files:
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
        if pickles:
            raise CheckpointError(
                f"{folder} has its weights only as {pickles[0]}, a format that can run code when opened. "
                "Ask for a safetensors version."
            )
        raise ModelMissingError(f"{folder} has no safetensors files.")
    place = _shard_map(index_path, index) if index is not None else None
    if place is not None:
        wanted = sorted(set(place.values()))
        missing = [name for name in wanted if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{folder} lacks {missing[0]} ({len(missing)} of {len(wanted)} shards are missing). Download them."
            )
        files = [folder / name for name in wanted]
    headers = [read_header(path) for path in files]
    owner: dict[str, str] = {}
    for header in headers:
        for name in header.tensors:
            if name in owner:
                raise CheckpointError(f"{folder}: tensor {name!r} is in both {owner[name]} and {header.path.name}.")
            owner[name] = header.path.name
    if place is not None:
        for name, shard in place.items():
            if owner.get(name) != shard:
                raise CheckpointError(f"{index_path} puts tensor {name!r} into {shard}, which does not hold it.")
    return headers


def _shard_map(path: Path, index: Mapping[str, Any]) -> dict[str, str]:
    place = index.get("weight_map")
    if not isinstance(place, dict) or not place or not all(isinstance(name, str) for name in place.values()):
        raise CheckpointError(f"{path} has no weight_map from tensor names to files.")
    for name in place.values():
        if Path(name).name != name or "\0" in name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{path} names {name!r}, which is no weight file beside it.")
    return place


def refuse_own_code(raw: Mapping[str, Any], where: str) -> None:
    """Refuse a config that asks for code of its own to be run.

    Raises:
        CheckpointError: ``model_file`` or ``auto_map`` is there.
    """
    for field in ("model_file", "auto_map"):
        if raw.get(field):
            raise CheckpointError(
                f"{where} asks to run code that came with the model ({field}); macspec never does. "
                "Choose a version of this model that mlx-lm supports by itself."
            )
