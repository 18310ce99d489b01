"""Bytes, arithmetic and modelled times of verification passes. Pure computation: nothing here was measured on a Mac.

Floor: one read of the weights and of the keys and values at the chip's published bandwidth, or the arithmetic at its
peak, whichever is longer. The stock model adds what MLX's source says of its kernels (`stock_passes`) and two constants
fitted to one published measurement series; how far it is off on the other series is part of every output.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
#: Share of the published bandwidth that long reads reach; measurements say 0.7 to 0.9.
BANDWIDTH_SHARE = 0.8
#: Rows of MLX's wide row kernel per read of the weights, and rows of its matrix kernel.
STOCK_TILE, MATRIX_ROWS = 5, 32


def read(name: str, key: str) -> list[dict[str, Any]]:
    """The list ``key`` of ``benchmarks/data/<name>.json``."""
    entries: list[dict[str, Any]] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))[key]
    return entries


@dataclass(frozen=True)
class Matrix:
    """A quantised matrix and how many of its kind a pass multiplies by."""

    columns: int
    width: int
    count: float = 1.0
    bits: int = 4
    group: int = 64
    #: A routed expert's: ``count`` is the expected number of distinct experts, and few rows share one.
    routed: bool = False

    @property
    def single(self) -> Matrix:
        """One of its kind."""
        return replace(self, count=1.0)

    @property
    def weights(self) -> float:
        """Quantised values."""
        return self.columns * self.width * self.count

    @property
    def nbytes(self) -> float:
        """Packed values, and a 16-bit scale and bias per group."""
        return self.weights * (self.bits / 8 + 4 / self.group)


def matrices(model: dict[str, Any], rows: int) -> list[Matrix]:
    """Every quantised matrix a pass of ``rows`` rows reads; experts by the expected number of distinct ones.

    ``model`` may say its ``bits``; 4 otherwise.
    """
    h, d, layers = model["hidden"], model["head_dim"], model["layers"]
    every = model.get("attention_every", 1)
    attention, linear = layers // every, layers - layers // every
    q = model["heads"] * d * (2 if model.get("gated") else 1)
    found = [
        Matrix(q, h, attention),
        Matrix(model["kv_heads"] * d, h, 2 * attention),
        Matrix(h, model["heads"] * d, attention),
        Matrix(model["vocab"], h),
    ]
    if linear:
        values, keys = (
            model["linear_value_heads"] * model["linear_dim"],
            model["linear_key_heads"] * model["linear_dim"],
        )
        found += [Matrix(2 * keys + 2 * values, h, linear), Matrix(h, values, linear)]
    experts = model.get("experts", 0)
    if experts:
        distinct = experts * (1 - (1 - model["experts_per_token"] / experts) ** rows)
        found += [
            Matrix(model["intermediate"], h, 2 * layers * distinct, routed=True),
            Matrix(h, model["intermediate"], layers * distinct, routed=True),
        ]
        found += [
            Matrix(model["shared"], h, 2 * layers),
            Matrix(h, model["shared"], layers),
            Matrix(experts, h, layers),
        ]
    else:
        found += [Matrix(model["intermediate"], h, 2 * layers), Matrix(h, model["intermediate"], layers)]
    return [replace(matrix, bits=model.get("bits", 4)) for matrix in found]


def cache_bytes(model: dict[str, Any], context: int) -> float:
    """16-bit keys and values of the attention layers, and one read and write of float32 recurrent states."""
    layers, every = model["layers"], model.get("attention_every", 1)
    keys_values = 2 * 2 * model["kv_heads"] * model["head_dim"] * context * (layers // every)
    states = 2 * 4 * model.get("linear_value_heads", 0) * model.get("linear_dim", 0) ** 2 * (layers - layers // every)
    return float(keys_values + states)


def pass_flops(model: dict[str, Any], rows: int, context: int) -> float:
    """Multiplications and additions of a pass; an expert works for its own rows only."""
    per_row = sum(m.weights for m in matrices(model, 1))
    attention = 2 * model["heads"] * model["head_dim"] * context * (model["layers"] // model.get("attention_every", 1))
    return float(2 * rows * (per_row + attention))


def fp32_tflops(chip: dict[str, Any]) -> float:
    """Peak of the shader cores."""
    return float(chip["gpu_cores"] * 256 * chip["clock_ghz"] / 1000)


def floor_ms(model: dict[str, Any], chip: dict[str, Any], rows: int, context: int) -> float:
    """No pass can be faster: every byte once at the published bandwidth, all arithmetic at the peak."""
    nbytes = sum(m.nbytes for m in matrices(model, rows)) + cache_bytes(model, context)
    peak = max(fp32_tflops(chip), chip.get("matrix_tflops", 0))
    return float(max(nbytes / chip["bandwidth_gb_s"] / 1e6, pass_flops(model, rows, context) / peak / 1e9))


def row_limit(chip: dict[str, Any], width: int, columns: int) -> int:
    """Rows from which MLX >= 0.32.1 uses its matrix kernel (``get_qmv_batch_limit`` in its quantized.cpp)."""
    size = 0 if max(width, columns) <= 2048 else 1 if max(width, columns) <= 4096 else 2
    if chip["tier"] == "ultra":
        return (32, 18, 12)[size]
    return {13: (14, 10, 6), 14: (14, 10, 6), 15: (13, 15, 13), 16: (13, 15, 13)}.get(chip["generation"], (33, 25, 13))[
        size
    ]


@dataclass(frozen=True)
class Constants:
    """What source code does not say.

    unpack: lane operations to unpack a weight, in units of one row's work on it. row_share, matrix_share: share of the
    multiply-add peak the row kernel and the matrix kernel reach.
    """

    unpack: float
    row_share: float
    matrix_share: float


def one_pass_ms(matrix: Matrix, chip: dict[str, Any], rows: float, constants: Constants) -> float:
    """One read of a matrix by a row kernel: limited by bandwidth, or by unpacking and multiply-adds."""
    read_ms = matrix.nbytes / (BANDWIDTH_SHARE * chip["bandwidth_gb_s"]) / 1e6
    return float(max(read_ms, matrix.weights * (constants.unpack + rows) / (_lanes_per_ms(chip) * constants.row_share)))


def matrix_pass_ms(matrix: Matrix, chip: dict[str, Any], constants: Constants) -> float:
    """One read of a matrix by MLX's 32-row matrix kernel, which always computes 32 rows."""
    read_ms = matrix.nbytes / (BANDWIDTH_SHARE * chip["bandwidth_gb_s"]) / 1e6
    return float(max(read_ms, matrix.weights * MATRIX_ROWS / (_lanes_per_ms(chip) * constants.matrix_share)))


def _lanes_per_ms(chip: dict[str, Any]) -> float:
    return float(chip["gpu_cores"] * 128 * chip["clock_ghz"] * 1e6)


def stock_ms(matrix: Matrix, chip: dict[str, Any], rows: int, constants: Constants, limit: int | None = None) -> float:
    """MLX's own kernels: one pass per row (M1, M2), per five rows (M3 and later), or the 32-row matrix kernel."""
    limit = row_limit(chip, matrix.width, matrix.columns) if limit is None else limit
    if rows >= limit:
        return math.ceil(rows / MATRIX_ROWS) * matrix_pass_ms(matrix, chip, constants)
    tile = STOCK_TILE if chip["generation"] >= 15 else 1
    full, rest = divmod(rows, tile)
    time = full * one_pass_ms(matrix, chip, tile, constants)
    return time + (one_pass_ms(matrix, chip, rest, constants) if rest else 0.0)


def predictions(entry: dict[str, Any], chips: dict[str, Any], constants: Constants) -> list[tuple[int, float, float]]:
    """(rows, published, modelled) of one series: ms where the series states them, else relative to one row."""
    chip, matrix = chips[entry["chip"]], Matrix(entry["columns"], entry["width"], 1, entry["bits"], entry["group"])
    limit, one = entry["row_limit"], entry.get("one_row_ms")
    unit = 1.0 if one else stock_ms(matrix, chip, 1, constants, limit)
    rows = (
        {1: 1.0, **{int(r): ratio for r, ratio in entry["relative_to_one_row"].items()}}
        if one
        else {int(r): ratio for r, ratio in entry["relative_to_one_row"].items()}
    )
    return [(r, ratio * (one or 1.0), stock_ms(matrix, chip, r, constants, limit) / unit) for r, ratio in rows.items()]


def errors(entry: dict[str, Any], chips: dict[str, Any], constants: Constants) -> list[float]:
    """Relative errors of the model on one series."""
    return [modelled / published - 1 for _, published, modelled in predictions(entry, chips, constants)]


def fit(measurements: list[dict[str, Any]], chips: dict[str, Any]) -> Constants:
    """The constants with the least squared logarithmic error on the series marked ``fit``."""
    series = [entry for entry in measurements if entry["use"] == "fit"]

    def cost(constants: Constants) -> float:
        pairs = (pair for entry in series for pair in predictions(entry, chips, constants))
        return sum(math.log(modelled / published) ** 2 for _, published, modelled in pairs)

    best = Constants(1.0, 0.5, 0.5)
    for name, values in (
        ("matrix_share", range(20, 101)),
        *[("row_share", range(10, 101)), ("unpack", range(0, 1001, 5))] * 6,
    ):
        best = min((replace(best, **{name: v / 100}) for v in values), key=cost)
    return best
