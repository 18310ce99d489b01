"""Count the tokens of the training answers: which rows of the head a drafter needs most.

Run as ``python -m macspec_models.training.token_counts``; writes the counts that ship with the embedded pair.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from macspec_models.drafters.frequency import EMBEDDED_COUNTS
from macspec_models.training.responses import DATA, HELD_OUT


def count_answers(path: Path, vocab: int, shortest: int = 12) -> NDArray[np.int64]:
    """Counts ``[vocab]`` over the stored answers that are trained on; held-out ones are left out as in training."""
    with np.load(path) as stored:
        offsets, tokens = stored["offset"].astype(np.int64), stored["tokens"].astype(np.int64)
    counts, kept = np.zeros(vocab, np.int64), 0
    for begin, end in zip(offsets[:-1], offsets[1:], strict=True):
        if end - begin < shortest:
            continue
        if kept % HELD_OUT:
            counts += np.bincount(tokens[begin:end], minlength=vocab)
        kept += 1
    return counts


def main() -> None:
    """Write the counts and say what share of the text the commonest tokens make up."""
    parser = argparse.ArgumentParser(description="Count the tokens of the training answers.")
    parser.add_argument("--answers", type=Path, default=DATA / "responses.npz")
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--out", type=Path, default=EMBEDDED_COUNTS)
    options = parser.parse_args()
    counts = count_answers(options.answers, options.vocab)
    partial = options.out.with_suffix(".partial.npz")
    np.savez_compressed(partial, counts=counts.astype(np.uint32))
    partial.replace(options.out)
    ordered = np.sort(counts)[::-1]
    for size in (1024, 2048, 4096, 8192, 16384):
        print(f"{size:>6} commonest tokens: {ordered[:size].sum() / counts.sum():.2%} of {counts.sum():,}")


if __name__ == "__main__":
    main()
