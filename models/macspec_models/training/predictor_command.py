"""``macspec train predictor``: record drafts on known answers, train DScale's length predictor, store it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from macspec_models.drafters.block import DFlashDrafter
from macspec_models.errors import CheckpointError
from macspec_models.target import Target
from macspec_models.training.predictor import FILE, FeatureMap, Predictor, Report, train
from macspec_models.training.responses import DATA, load_examples
from macspec_models.training.rounds import Known, RecordedRound, record

#: Every so many-th answer is held out.
HELD_OUT = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this step that the others do not have."""
    parser.add_argument("--drafter", type=Path, help="predictor: the drafter's folder (default: the embedded one)")
    parser.add_argument("--answers", type=int, default=300, help="predictor: answers to record drafts on")
    parser.add_argument("--stride", type=int, default=5, help="predictor: draft at every so many-th token")
    parser.add_argument("--trace", type=Path, help="predictor: write the rounds for macspec simulate too")


def run(target: Target, options: argparse.Namespace) -> int:
    """Record drafts, train, store the network beside the drafter; returns the exit code.

    Args:
        options: with ``drafter``, ``answers``, ``stride``, ``trace``, ``seconds`` (most time to record) and ``out``
            (file to write; None means the drafter's folder).
    """
    from macspec_models import embedded
    from macspec_models.checkpoints import load_drafter

    folder = Path(options.drafter or embedded.drafter_folder())
    drafter = load_drafter(folder, target)
    if type(drafter) is not DFlashDrafter:
        raise CheckpointError(f"{folder} is a {drafter.kind} drafter; the length predictor is built for dflash ones.")
    out = Path(options.out or folder / FILE)
    warmth = temperatures()
    answers = (
        Known(item.index, item.category, item.tokens, item.prompt_length, warmth[item.line])
        for item in load_examples(target.tokenizer)
    )
    rounds = collect(target, drafter, answers, feature_map(drafter, target), options)
    if options.trace:
        header = {"target": target.name, "drafter": folder.name, "every_position": options.stride == 1}
        write_trace(options.trace, rounds, header)
    predictor, report = fit(rounds, drafter.max_depth)
    replace(predictor, target=target.name, drafter=drafter.kind).save(out)
    print(json.dumps({"file": str(out), **asdict(report)}))
    return 0


def temperatures(path: Path = DATA / "responses.npz") -> dict[int, float]:
    """Temperature each answer was sampled at, by its prompt's line."""
    with np.load(path) as stored:
        return dict(zip(stored["prompt"].tolist(), stored["temperature"].astype(float).tolist(), strict=True))


def feature_map(drafter: DFlashDrafter, target: Target) -> FeatureMap:
    """The inputs of a predictor for this pair."""
    rows = drafter.head.rows
    return FeatureMap(drafter.max_depth, drafter.config.hidden_size, target.vocab_size if rows is None else rows.size)


def collect(
    target: Target,
    drafter: DFlashDrafter,
    answers: Iterable[Known],
    features: FeatureMap,
    options: argparse.Namespace,
) -> list[RecordedRound]:
    """Rounds of up to ``options.answers`` answers, in text order, within ``options.seconds``."""
    begin = time.monotonic()
    rounds: list[RecordedRound] = []
    for number, answer in enumerate(answers):
        if number >= options.answers or time.monotonic() - begin > options.seconds:
            break
        rounds += reversed(list(record(target, drafter, answer, stride=options.stride, features=features)))
        if number % 20 == 19:
            print(json.dumps({"answers": number + 1, "rounds": len(rounds)}), flush=True)
    return rounds


def fit(rounds: list[RecordedRound], slots: int) -> tuple[Predictor, Report]:
    """Train on four answers of five, hold out the fifth."""
    inputs = np.stack([item.features for item in rounds])
    accepted = np.array([item.accepted for item in rounds])
    texts = {text: number for number, text in enumerate(dict.fromkeys(item.text for item in rounds))}
    held_out = np.array([texts[item.text] % HELD_OUT == 0 for item in rounds])

    def report(epoch: int, loss: float, r2: float) -> None:
        print(json.dumps({"epoch": epoch, "loss": round(loss, 4), "held_out_r2": round(r2, 4)}), flush=True)

    return train(inputs, accepted, held_out, slots, report=report)


def write_trace(path: Path, rounds: Iterable[RecordedRound], header: dict[str, object]) -> None:
    """The rounds in the format of ``macspec simulate`` (schema 1), features left out."""
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
            }
            stream.write(json.dumps(line, separators=(",", ":")) + "\n")
