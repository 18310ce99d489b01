"""The command: collect, examine, print."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from macspec.bench.report import wrap
from macspec.doctor.facts import Facts, Sources, collect
from macspec.doctor.rules import Finding, examine

MARKS = {"ok": "✓", "note": "·", "problem": "!", "broken": "✗"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--model", metavar="NAME", help="look at this model (default: the embedded one)")
    parser.add_argument("--drafter", metavar="NAME", help="look at this drafter")
    parser.add_argument("--kernels", action="store_true", help="list every kernel case that was tried here")
    parser.add_argument(
        "--first-run", action="store_true", help="also load the model, try every kernel, measure, and keep it in a file"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(options: argparse.Namespace, sources: Sources | None = None) -> int:
    """Print the findings; 1 when something is broken."""
    facts = collect(sources or Sources(), options.model, options.drafter)
    findings = examine(facts)
    broken = any(finding.level == "broken" for finding in findings)
    if options.first_run and not broken:
        return _first_run(options, sources or Sources(), findings)
    if options.json:
        print(json.dumps(values(facts, findings), ensure_ascii=False, indent=1))
    else:
        sys.stdout.write(text(findings))
        if options.kernels:
            sys.stdout.write(kernel_table(facts))
    return 1 if broken else 0


def _first_run(options: argparse.Namespace, sources: Sources, findings: Sequence[Finding]) -> int:
    """Nothing is broken: go on to what needs a model."""
    from macspec.doctor.first_run import default_file, first_run

    def again() -> dict[str, Any]:
        facts = collect(sources, options.model, options.drafter)
        return values(facts, examine(facts))

    pair = {name: getattr(options, name) for name in ("model", "drafter") if getattr(options, name) is not None}
    if options.json:
        result = first_run(pair, again, lambda text: None, default_file())
        print(json.dumps(result, ensure_ascii=False, indent=1))
    else:
        sys.stdout.write(text(findings) + "\n")
        result = first_run(pair, again, print, default_file())
    return 1 if result["failures"] or result["doctor"]["broken"] else 0


def text(findings: Sequence[Finding]) -> str:
    """Findings for a terminal of 80 columns, what to do indented under each."""
    lines: list[str] = []
    for finding in findings:
        first, *rest = wrap(f"{finding.area}: {finding.message}", 76)
        lines.append(f"{MARKS[finding.level]} {first}")
        lines += [f"  {line}" for line in rest]
        if finding.remedy:
            lines += [f"    {line}" for line in wrap(f"→ {finding.remedy}", 74)]
    counts = {level: sum(f.level == level for f in findings) for level in ("broken", "problem")}
    if counts["broken"]:
        lines.append(f"{counts['broken']} broken: macspec cannot work fully until that is mended.")
    elif counts["problem"]:
        lines.append(
            f"It works; {counts['problem']} {'thing costs' if counts['problem'] == 1 else 'things cost'} speed."
        )
    else:
        lines.append("All is well.")
    return "\n".join(lines) + "\n"


def kernel_table(facts: Facts) -> str:
    """Every kernel case with its verdict."""
    if not facts.kernels:
        return "No kernel was tried on this machine.\n"
    lines = [f"{'case':<48} {'outcome':<12} {'× stock':>8}  reason"]
    for case, row in sorted(facts.kernels.items()):
        ratio = row.get("ratio")
        shown = f"{ratio:.2f}" if isinstance(ratio, (int, float)) else ""
        lines.append(f"{case[:48]:<48} {str(row.get('outcome', '?')):<12} {shown:>8}  {row.get('reason', '')}")
    return "\n".join(lines) + "\n"


def values(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """Facts and findings as JSON values."""
    mlx = facts.mlx
    return {
        "findings": [finding.to_wire() for finding in findings],
        "broken": any(finding.level == "broken" for finding in findings),
        "machine": facts.machine.to_wire(),
        "state": facts.state.to_wire(),
        "packages": facts.packages,
        "mlx_wheel": facts.wheel_tag,
        "mlx": None
        if mlx is None
        else {
            "metal": mlx.metal,
            "blas": mlx.blas,
            "gflops": round(mlx.gflops, 1),
            "architecture": mlx.architecture,
            "working_set": mlx.working_set,
            "max_buffer": mlx.max_buffer,
        },
        "free_bytes": facts.free_bytes,
        "stored_bytes": facts.stored,
        "profiles": [
            {"path": p.path, "target": p.target, "drafter": p.drafter, "age_s": p.age_s, "error": p.error}
            for p in facts.profiles
        ],
        "kernels": facts.kernels,
        "row_noise": list(facts.row_noise),
    }
