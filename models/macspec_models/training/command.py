"""``macspec train``: make the training data, train a drafter, export it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import platformdirs

from macspec_models.training import predictor_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "what", choices=["responses", "drafter", "export", "dspark", "predictor"], help="the step of the recipe to run"
    )
    parser.add_argument("--work", type=Path, help="folder for checkpoints and features (default: the user's cache)")
    parser.add_argument("--model", help="target: a folder in mlx-lm's layout (default: the embedded model)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=3600,
        help="responses, dspark, predictor: begin no further batch or answer after this long",
    )
    parser.add_argument("--steps", type=int, default=1000, help="drafter, dspark: steps to run now")
    parser.add_argument("--decay", type=int, default=0, metavar="STEPS", help="drafter: let the last STEPS decay")
    parser.add_argument("--anchors", type=int, help="drafter: anchors per sequence and step")
    parser.add_argument("--layers", type=int, default=3, help="drafter: decoder layers")
    parser.add_argument(
        "--out",
        type=Path,
        help="export, dspark: folder to write (default: drafter); predictor: file (default: beside the drafter)",
    )
    parser.add_argument("--history", metavar="TEXT", help="export: what the card says of the training")
    predictor_command.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run one step of the recipe."""
    from macspec_models import embedded
    from macspec_models.errors import ModelMissingError
    from macspec_models.target import Target

    work = options.work or Path(platformdirs.user_cache_dir("macspec")) / "training"
    if options.what == "export" and not (work / "checkpoint" / "counters.json").exists():
        raise ModelMissingError(f"{work} holds no checkpoint to export; train one with: macspec train drafter")
    work.mkdir(parents=True, exist_ok=True)
    target = Target.load(Path(options.model) if options.model else embedded.target_folder())
    if options.what == "responses":
        from macspec_models.training.regenerate import pack, regenerate

        regenerate(target.model, target.tokenizer, work / "responses.jsonl", seconds=options.seconds)
        print(f"{pack(work / 'responses.jsonl', work / 'responses.npz')} answers in {work / 'responses.npz'}")
        return 0
    if options.what == "predictor":
        return predictor_command.run(target, options, work)
    if options.what == "dspark":
        return _train_dspark(options, target)
    return _train(options, target, work)


def _train(options: argparse.Namespace, target: Any, work: Path) -> int:
    import dataclasses

    from macspec_models.training.card import write_card
    from macspec_models.training.drafter import Recipe, Trainer, drafter_config
    from macspec_models.training.export import export_drafter
    from macspec_models.training.responses import load_examples

    recipe = Recipe()
    if options.anchors:
        recipe = dataclasses.replace(recipe, anchors=options.anchors)
    own = work / "responses.npz"
    examples = list(load_examples(target.tokenizer, own) if own.exists() else load_examples(target.tokenizer))
    trainer = Trainer(recipe, drafter_config(target, layers=options.layers), target, examples, work)
    trainer.resume()
    if options.what == "export":
        out = options.out or Path("drafter")
        export_drafter(trainer.network, out, target.tokenizer.get_vocab())
        history = options.history or f"{trainer.step:,} steps in {trainer.seconds / 3600:.1f} hours on this machine."
        write_card(trainer, out, history)
        print(f"step {trainer.step}: written to {out}, with its card")
        return 0
    trainer.train(options.steps, decay_steps=options.decay, report=lambda row: print(json.dumps(row), flush=True))
    return 0


def _train_dspark(options: argparse.Namespace, target: Any) -> int:
    """Heads over the DFlash drafter of ``--drafter``, the embedded one by default."""
    from macspec_models import embedded, registry
    from macspec_models.checkpoints import load_drafter
    from macspec_models.training.dspark import HeadRecipe, calibrated, collect_slots, train_heads
    from macspec_models.training.export import export_drafter
    from macspec_models.training.responses import load_examples

    own = options.drafter is None and options.model is None
    folder = embedded.drafter_folder() if options.drafter is None else Path(options.drafter)
    rows = embedded.frequent_tokens(embedded.HEAD_ROWS) if own else None
    drafter, recipe = load_drafter(folder, target, head_rows=rows), HeadRecipe()
    examples = list(load_examples(target.tokenizer))
    parts = [[e for e in examples if e.held_out is held] for held in (False, True)]
    seen, unseen = (
        collect_slots(drafter, target, part, anchors=recipe.anchors, seconds=seconds, seed=recipe.seed)
        for part, seconds in zip(parts, (0.8 * options.seconds, 0.2 * options.seconds), strict=True)
    )
    print(json.dumps({"blocks": len(seen.labels), "held out": len(unseen.labels)}), flush=True)
    heads = train_heads(drafter, seen, recipe, options.steps, lambda row: print(json.dumps(row), flush=True))
    trained, figures = calibrated(drafter, heads, unseen)
    out = options.out or Path("drafter")
    export_drafter(trained.network, out, target.tokenizer.get_vocab())
    print(json.dumps(figures))
    print(f"written to {out}; use it with: --drafter {registry.folder_name(out)}+lookup")
    return 0
