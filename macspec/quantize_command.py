"""``macspec models quantize-drafter``: a smaller copy of a drafter, and what that does to its acceptance."""

from __future__ import annotations

import argparse
from pathlib import Path

from macspec.errors import RequestError

#: What the comparison answers: short, of several kinds.
PROMPTS = (
    "Write a Python function that reverses a list.",
    "Explain why the sky is blue in a few sentences.",
    "Write a short story about a lighthouse keeper.",
    "List five healthy breakfasts.",
    "Correct the spelling: the meeting were moved too thursday becuase the projecter is broken.",
    "What is 17 times 24? Show the steps.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("name", help="registry name, or the drafter's folder or hub id")
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4, help="width of its linear layers (default 4)")
    parser.add_argument("--group-size", type=int, choices=(32, 64, 128), default=64, help="default 64")
    parser.add_argument("--out", type=Path, help="new folder (default: NAME-4bit or NAME-8bit here)")
    parser.add_argument("--model", help="the target to compare on (default: the pair's own, if it is here)")
    parser.add_argument("--tokens", type=int, default=64, help="length of the answers compared on (default 64)")
    parser.add_argument("--no-compare", action="store_true", help="do not measure acceptance")


def run(options: argparse.Namespace) -> int:
    """Quantise, compare, print; returns the exit code."""
    if options.tokens < 16:
        raise RequestError(f"--tokens is {options.tokens}; a comparison needs 16 or more.", param="tokens")
    from macspec_models import hub, registry

    folder = hub.resolve(options.name, part="drafter")
    target = _target(options)
    if target is None and not options.no_compare:
        reason = "name its target with --model" if registry.find(options.name) is None else "its target is not here"
        print(f"Acceptance is not compared: {reason}.")
    out = options.out or Path(f"{options.name.rstrip('/').rsplit('/', 1)[-1]}-{options.bits}bit")

    from macspec_models.checkpoints import quantize_drafter

    quantize_drafter(folder, out, options.bits, group_size=options.group_size)
    print(f"{out}: {_megabytes(out):.1f} MB instead of {_megabytes(folder):.1f} MB")
    if target is not None:
        _compare(target, folder, out, options)
    print(f"Use it with: --drafter {registry.folder_name(out)}")
    return 0


def _target(options: argparse.Namespace) -> Path | None:
    """The folder of the target to compare on."""
    from macspec_models import hub, registry

    if options.no_compare:
        return None
    if options.model is not None:
        return hub.resolve(options.model)
    if registry.find(options.name) is None or hub.absent(options.name) is not None:
        return None
    return hub.resolve(options.name)


def _compare(target_folder: Path, folder: Path, out: Path, options: argparse.Namespace) -> None:
    """Print acceptance and draft time of both, drafted at the same positions of the target's own greedy answers."""
    from macspec.progress import load_progress
    from macspec_models.acceptance import greedy_texts, measure
    from macspec_models.checkpoints import load_drafter
    from macspec_models.target import Target

    with load_progress() as progress:
        progress("loading the target", 0, 0)
        target = Target.load(target_folder)
        drafters = {"before": load_drafter(folder, target), "after": load_drafter(out, target)}
        progress("writing the answers to compare on", 0, 0)
        texts = greedy_texts(target, PROMPTS, options.tokens)
        found = measure(target, drafters, texts, report=lambda done, total: progress("drafting", done, total))
    for name, row in found.items():
        print(
            f"{name:<7} acceptance length {row.length:.3f} over {row.drafts} drafts, draft {row.draft_ms:.1f} ms, "
            f"weights {drafters[name].nbytes / 1e6:.1f} MB in memory"
        )
    change = found["after"].length / found["before"].length - 1
    print(f"acceptance length changes by {100 * change:+.1f} %")


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6
