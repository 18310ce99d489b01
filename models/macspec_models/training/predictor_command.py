"""``macspec train predictor``: record drafts on known answers, train DScale's length predictor, store it."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from macspec_models.drafters.block import DFlashDrafter
from macspec_models.errors import CheckpointError
from macspec_models.target import Target
from macspec_models.training.predictor import FILE, FeatureMap, Predictor, Report, train
from macspec_models.training.responses import DATA, load_examples
from macspec_models.training.rounds import Known, RecordedRound, record

#: One answer of so many is a held-out one, which the drafter was not trained on either.
HELD_OUT = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this step that the others do not have."""
    parser.add_argument("--drafter", type=Path, help="predictor: the drafter's folder (default: the embedded one)")
    parser.add_argument("--answers", type=int, default=300, help="predictor: answers to record drafts on")
    parser.add_argument("--stride", type=int, default=4, help="predictor: draft at every so many-th token")
    parser.add_argument(
        "--trace", type=Path, help="predictor: write the rounds of held-out answers for macspec simulate too"
    )


def run(target: Target, options: argparse.Namespace, work: Path) -> int:
    """Record drafts, train, store the network beside the drafter; returns the exit code.

    Args:
        options: with ``model``, ``drafter``, ``answers``, ``stride``, ``trace``, ``seconds`` (most time to record) and
            ``out`` (file to write; None means the drafter's folder).
        work: where ``macspec train responses`` left the answers of a model that is not the embedded one.

    Raises:
        CheckpointError: the drafter is of another kind, there are no answers of the model, or too few rounds.
    """
    from macspec_models import embedded
    from macspec_models.checkpoints import load_drafter

    ours = options.model is None and options.drafter is None
    folder = Path(options.drafter or embedded.drafter_folder())
    stored = DATA / "responses.npz" if options.model is None else work / "responses.npz"
    if not stored.exists():
        raise CheckpointError(
            f"There are no answers of this model at {stored} to record drafts on; make them with: "
            f"macspec train responses --model {options.model}"
        )
    drafter = load_drafter(folder, target, head_rows=embedded.frequent_tokens(embedded.HEAD_ROWS) if ours else None)
    if type(drafter) is not DFlashDrafter:
        raise CheckpointError(f"{folder} is a {drafter.kind} drafter; the length predictor is built for dflash ones.")
    out = Path(options.out or folder / FILE)
    answers = chosen(known(target, stored), options.answers)
    rounds = collect(target, drafter, answers, feature_map(drafter, target), options)
    if options.trace:
        header = {"target": target.name, "drafter": folder.name, "every_position": options.stride == 1}
        write_trace(options.trace, (item for item in rounds if item.held_out), header)
    predictor, report = fit(rounds, drafter.max_depth)
    replace(predictor, target=target.name, drafter=fingerprint(folder)).save(out)
    print(json.dumps({"file": str(out), **asdict(report)}))
    return 0


def known(target: Target, stored: Path) -> list[Known]:
    """The target's answers in a file that ``macspec train responses`` wrote."""
    with np.load(stored) as arrays:
        warmth = dict(zip(arrays["prompt"].tolist(), arrays["temperature"].astype(float).tolist(), strict=True))
    return [
        Known(item.index, item.category, item.tokens, item.prompt_length, warmth[item.line], item.held_out)
        for item in load_examples(target.tokenizer, stored)
    ]


def chosen(answers: Sequence[Known], count: int) -> list[Known]:
    """Up to ``count`` answers, one of `HELD_OUT` a held-out one, mixed so that any beginning has its share of both."""
    held = [answer for answer in answers if answer.held_out][: max(1, count // HELD_OUT)]
    others = [answer for answer in answers if not answer.held_out][: max(0, count - len(held))]
    order = [((number + 0.5) / len(part), answer) for part in (held, others) for number, answer in enumerate(part)]
    return [answer for _, answer in sorted(order, key=lambda pair: pair[0])]


def fingerprint(folder: Path) -> str:
    """Names the drafter's weights, so that a network trained for others can be told."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def feature_map(drafter: DFlashDrafter, target: Target) -> FeatureMap:
    """The inputs of a predictor for this pair."""
    rows = None if drafter.head.rows is None else np.array(drafter.head.rows)
    return FeatureMap(drafter.max_depth, drafter.config.hidden_size, target.vocab_size, rows)


def collect(
    target: Target,
    drafter: DFlashDrafter,
    answers: Sequence[Known],
    features: FeatureMap,
    options: argparse.Namespace,
) -> list[RecordedRound]:
    """Rounds of answers, one answer after the other, until ``options.seconds`` are over."""
    begin = time.monotonic()
    rounds: list[RecordedRound] = []
    for number, answer in enumerate(answers, 1):
        rounds += record(target, drafter, answer, stride=options.stride, features=features)
        late = time.monotonic() - begin > options.seconds
        if late or number % 20 == 0 or number == len(answers):
            print(json.dumps({"answers": number, "rounds": len(rounds)}), flush=True)
        if late:
            break
    return rounds


def fit(rounds: Sequence[RecordedRound], slots: int) -> tuple[Predictor, Report]:
    """Train on the rounds of answers that are not held out."""

    def report(epoch: int, loss: float, r2: float) -> None:
        print(json.dumps({"epoch": epoch, "loss": round(loss, 4), "validation_r2": round(r2, 4)}), flush=True)

    return train(
        np.stack([item.features for item in rounds]),
        np.array([item.accepted for item in rounds]),
        np.array([item.text for item in rounds]),
        np.array([item.held_out for item in rounds]),
        slots,
        report=report,
    )


def write_trace(path: Path, rounds: Iterable[RecordedRound], header: dict[str, object]) -> None:
    """The rounds in the format of ``macspec simulate`` (schema 1), with the inputs its ``--predictor`` reads."""
    with path.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps({"kind": "macspec-trace", "schema": 1, **header}) + "\n")
        for item in rounds:
            line = {
                "text": item.text,
                "tag": item.category,
                "position": item.position,
                "context": item.context,
                "temperature": item.temperature,
                "confidence": [[round(float(x), 5) for x in slot] for slot in item.confidence],
                "depth": len(item.confidence),
                "accepted": item.accepted,
                "features": [round(float(x), 5) for x in item.features],
            }
            stream.write(json.dumps(line, separators=(",", ":")) + "\n")
