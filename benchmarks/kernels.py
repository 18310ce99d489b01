"""Verification kernels: computed rooflines everywhere, a race against MLX's own ops on a Mac.

    python -m benchmarks.kernels                      tables for all chips and models
    python -m benchmarks.kernels --chip "M4 Pro" --context 16384 --json out.json
    python -m benchmarks.kernels --race               on a Mac: probe and race the kernels on a model's shapes

Without ``--race`` nothing is measured. The floor follows from bytes, arithmetic and published peaks; "stock" and
"one read" are models (see `benchmarks.roofline`) and the table above them says how far the model is off.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

from benchmarks.roofline import (
    BANDWIDTH_SHARE,
    Constants,
    cache_bytes,
    errors,
    fit,
    floor_ms,
    fp32_tflops,
    matrices,
    one_pass_ms,
    predictions,
    read,
    stock_ms,
)

ROWS = (1, 2, 4, 5, 6, 8, 11, 16)
#: Those printed; the JSON holds all.
SHOWN = (1, 4, 8, 16)


def model_errors(measurements: list[dict[str, Any]], chips: dict[str, Any], constants: Constants) -> dict[str, Any]:
    """How the stock model compares with published measurements, series by series and over those not fitted."""
    series = []
    for entry in measurements:
        found = errors(entry, chips, constants)
        series.append(
            {
                "chip": entry["chip"],
                "shape": f"{entry['width']}->{entry['columns']} {entry['bits']}-bit",
                "use": entry["use"],
                "source": entry["source"],
                "unit": "ms" if "one_row_ms" in entry else "relative to one row",
                "points": [
                    {"rows": r, "published": round(p, 3), "modelled": round(m, 3)}
                    for r, p, m in predictions(entry, chips, constants)
                ],
                "median_error": statistics.median(map(abs, found)),
                "largest_error": max(map(abs, found)),
            }
        )
    unseen = [abs(e) for entry in measurements if entry["use"] != "fit" for e in errors(entry, chips, constants)]
    return {
        "constants": {
            "unpack": constants.unpack,
            "row_share": constants.row_share,
            "matrix_share": constants.matrix_share,
        },
        "series": series,
        "median_error_unseen": statistics.median(unseen),
        "largest_error_unseen": max(unseen),
    }


def pass_times(model: dict[str, Any], chip: dict[str, Any], rows: int, context: int, k: Constants) -> dict[str, float]:
    """Floor, modelled stock pass and modelled pass that reads every matrix once, in ms; all read the cache once."""
    cache = cache_bytes(model, context) / (BANDWIDTH_SHARE * chip["bandwidth_gb_s"]) / 1e6
    stock, ours = cache, cache
    for m in matrices(model, 1):
        # MLX reads an expert once per row that chose it.
        stock += m.count * (rows * one_pass_ms(m.single, chip, 1, k) if m.routed else stock_ms(m.single, chip, rows, k))
    for m, alone in zip(matrices(model, rows), matrices(model, 1), strict=True):
        sharing = rows * alone.count / m.count if m.routed else rows  # rows per read
        ours += m.count * one_pass_ms(m.single, chip, sharing, k)
    return {"floor_ms": floor_ms(model, chip, rows, context), "stock_ms": stock, "one_read_ms": ours}


def whole_passes(chips: dict[str, Any], constants: Constants) -> list[dict[str, Any]]:
    """Published times of whole passes beside the modelled stock pass and the floor, none of them fitted."""
    shapes = {m["name"]: m for m in [*read("model_shapes", "models"), *read("published_passes", "models")]}
    found = []
    for entry in read("published_passes", "passes"):
        model, chip = shapes[entry["model"]] | {"bits": entry["bits"]}, chips[entry["chip"]]
        times = pass_times(model, chip, entry["rows"], entry["context"], constants)
        error = times["stock_ms"] / entry["ms"] - 1
        found.append({**entry, "modelled_ms": times["stock_ms"], "floor_ms": times["floor_ms"], "error": error})
    return found


def tables(context: int, chip_names: list[str] | None = None) -> dict[str, Any]:
    """Everything the command prints, as JSON values."""
    chips = {c["name"]: c for c in read("chips", "chips")}
    measurements = read("stock_qmm", "measurements")
    constants = fit(measurements, chips)
    rows = []
    for model in read("model_shapes", "models"):
        for chip in chips.values():
            if chip_names is None or chip["name"] in chip_names:
                passes = {str(r): pass_times(model, chip, r, context, constants) for r in ROWS}
                rows.append({"model": model["name"], "chip": chip["name"], "passes": passes})
    return {
        "kind": "computed; nothing here was measured",
        "context": context,
        "stock_model": model_errors(measurements, chips, constants),
        "published_passes": whole_passes(chips, constants),
        "chips": [
            {"name": c["name"], "gb_s": c["bandwidth_gb_s"], "fp32_tflops": fp32_tflops(c)} for c in chips.values()
        ],
        "passes": rows,
    }


def show(values: dict[str, Any]) -> None:
    """Print the tables."""
    model = values["stock_model"]
    print("COMPUTED, NOT MEASURED. Model of MLX's own quantised matmul against published measurements:\n")
    print(f"{'chip':9} {'matrix':22} {'use':5} {'median':>7} {'largest':>8}  source")
    for s in model["series"]:
        start = f"{s['chip']:9} {s['shape']:22} {s['use']:5}"
        print(f"{start} {s['median_error']:7.0%} {s['largest_error']:8.0%}  {s['source']}")
    print(
        f"\nOn the series it was not fitted to, the model is off by {model['median_error_unseen']:.0%} in the median "
        f"and {model['largest_error_unseen']:.0%} at worst.\n"
        "Those series are of single matrices on M4 Pro and M3 Max.\n"
    )
    show_passes(values["published_passes"])
    print(f"Milliseconds per pass at {values['context']} tokens of context, 4-bit weights in groups of 64:")
    print("floor (published peak) / modelled stock MLX / modelled single read of the weights\n")
    print(f"{'model':16} {'chip':10}" + "".join(f"{f'{r} rows':>24}" for r in SHOWN))
    for row in values["passes"]:
        cells = (row["passes"][str(r)] for r in SHOWN)
        text = (f"{c['floor_ms']:.1f} / {c['stock_ms']:.1f} / {c['one_read_ms']:.1f}" for c in cells)
        print(f"{row['model']:16} {row['chip']:10}" + "".join(f"{t:>24}" for t in text))


def show_passes(passes: list[dict[str, Any]]) -> None:
    """Print published whole passes beside the model, and how far it is off by kind of pass."""
    print("Whole passes that somebody published, beside the modelled stock pass and the floor, in ms:\n")
    heads = ("model", "chip", "bits", "rows", "published", "model", "error", "floor")
    print("{:16} {:10} {:>4} {:>4} {:>9} {:>6} {:>6} {:>6}  source".format(*heads))
    for p in passes:
        numbers = f"{p['ms']:9.1f} {p['modelled_ms']:6.1f} {p['error']:6.0%} {p['floor_ms']:6.1f}"
        print(f"{p['model']:16} {p['chip']:10} {p['bits']:4} {p['rows']:4} {numbers}  {p['source']}")
    kinds = {
        "dense models, one row": [p["error"] for p in passes if p["rows"] == 1 and "A3B" not in p["model"]],
        "experts, one row": [p["error"] for p in passes if p["rows"] == 1 and "A3B" in p["model"]],
        "several rows": [p["error"] for p in passes if p["rows"] > 1],
    }
    print()
    for kind, errors_ in kinds.items():
        print(f"{kind}: off by {min(errors_):+.0%} to {max(errors_):+.0%}")
    print("The model knows nothing of launches, which decide where little is read, nor of M5's tensor units.\n")


def race(model_name: str) -> int:
    """On a Mac: probe and race every quantised matrix and the attention of a model's shapes; exit code."""
    import mlx.core as mx

    import macspec  # noqa: F401  loads the fast BLAS before MLX
    from macspec.kernels.cases import Format, attention_cases, qmm_cases
    from macspec.kernels.library import KernelLibrary, kernels_here
    from macspec.kernels.probe import Case
    from macspec.kernels.round_cases import choice_cases, confidence_cases, replay_cases

    kernels = kernels_here()
    if kernels is None:
        print("There is no Metal GPU here, so there is nothing to race.", file=sys.stderr)
        return 2
    model = next((m for m in read("model_shapes", "models") if m["name"] == model_name), None)
    if model is None:
        print(f"No shapes of '{model_name}' in benchmarks/data/model_shapes.json.", file=sys.stderr)
        return 2
    dtype = mx.bfloat16
    wanted: dict[str, Case] = {}
    for m in matrices(model, 1):
        if m.width % 64 == 0 and not m.routed:
            wanted |= {c.name: c for c in qmm_cases(kernels, m.columns, m.width, Format(m.group, m.bits), dtype)}
    wanted |= {c.name: c for c in attention_cases(kernels, model["heads"], model["kv_heads"], model["head_dim"], dtype)}
    wanted |= {c.name: c for c in choice_cases(kernels, model["vocab"], dtype)}
    wanted |= {c.name: c for c in confidence_cases(kernels, model["vocab"])}
    if "linear_dim" in model:
        heads = (model["linear_key_heads"], model["linear_value_heads"])
        wanted |= {c.name: c for c in replay_cases(kernels, *heads, model["linear_dim"], model["linear_dim"], dtype)}
    library = KernelLibrary("probe", kernels, budget_s=float("inf"))
    library.prepare(wanted.values(), lambda name, n, of: print(f"\r{n}/{of} {name[:70]:70}", end="", file=sys.stderr))
    print(file=sys.stderr)
    for row in library.table():
        ratio = "" if row["ratio"] is None else f"{row['ratio']:5.2f}x"
        print(f"{row['case']:70} {row['outcome']:20} {ratio:7} {row['reason']}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__.split("\n")[0])
    parser.add_argument("--context", type=int, default=4096, help="tokens in the key-value cache (default 4096)")
    parser.add_argument("--chip", action="append", help="only this chip; may be given several times")
    parser.add_argument("--json", metavar="FILE", help="also write everything as JSON")
    parser.add_argument("--race", metavar="MODEL", nargs="?", const="Qwen3-4B", help="on a Mac: race the kernels")
    options = parser.parse_args(arguments)
    if options.race:
        return race(options.race)
    known = [c["name"] for c in read("chips", "chips")]
    unknown = [name for name in options.chip or [] if name not in known]
    if unknown or options.context < 1:
        parser.error(
            f"unknown chip {unknown[0]!r}; known: {', '.join(known)}" if unknown else "--context must be positive"
        )
    values = tables(options.context, options.chip)
    show(values)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as stream:
            json.dump(values, stream, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
