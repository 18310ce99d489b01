"""Penalties on tokens that are there already, row by row along a draft."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from macspec.request import SamplingParams


class Penalties:
    """Repetition penalty over prompt and answer, presence and frequency penalties over the answer.

    Repetition divides a positive logit and multiplies a negative one (Keskar et al. 1909.05858); afterwards frequency
    is taken off once per occurrence and presence once per token. Only the columns of tokens that occur are touched.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int]) -> None:
        self._repetition = params.repetition_penalty
        self._presence, self._frequency = params.presence_penalty, params.frequency_penalty
        window = params.penalty_window
        self._all = _Counts(prompt, window) if self._repetition != 1.0 else None
        self._own = _Counts((), window) if self._presence or self._frequency else None

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        """Whether any penalty is on."""
        return params.repetition_penalty != 1.0 or bool(params.presence_penalty or params.frequency_penalty)

    def apply(self, scores: mx.array, draft: Sequence[int]) -> mx.array:
        """Penalised ``scores [rows, vocab]``; row k counts the committed tokens and ``draft[:k]``."""
        rows = scores.shape[0]
        if self._all is not None:
            columns, counts = self._all.rows(draft, rows)
            if columns.size:
                values = mx.take_along_axis(scores, columns, axis=-1)
                repelled = mx.where(values > 0, values / self._repetition, values * self._repetition)
                scores = mx.put_along_axis(scores, columns, mx.where(counts > 0, repelled, values), axis=-1)
        if self._own is not None:
            columns, counts = self._own.rows(draft, rows)
            if columns.size:
                values = mx.take_along_axis(scores, columns, axis=-1)
                values = values - self._frequency * counts - self._presence * (counts > 0).astype(mx.float32)
                scores = mx.put_along_axis(scores, columns, values, axis=-1)
        return scores

    def commit(self, tokens: Sequence[int]) -> None:
        """Count tokens of the answer."""
        for counts in (self._all, self._own):
            if counts is not None:
                counts.extend(tokens)


class _Counts:
    """How often each token is among the last ``window`` tokens (all of them when 0)."""

    def __init__(self, tokens: Sequence[int], window: int) -> None:
        self._window = window
        self._history: list[int] = []
        self._column: dict[int, int] = {}
        self._counts: NDArray[np.int32] = np.zeros(64, dtype=np.int32)
        self.extend(tokens[-window:] if window else tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            column = self._column_of(token)
            self._counts[column] += 1
            if (gone := self._leaving(len(self._history), ())) is not None:
                self._counts[self._column[gone]] -= 1
            self._history.append(token)

    def rows(self, draft: Sequence[int], rows: int) -> tuple[mx.array, mx.array]:
        """Token ids uint32 ``[rows, n]`` and their counts float32 ``[rows, n]``, in the state after ``draft[:row]``."""
        draft = draft[: rows - 1]
        columns = [self._column_of(token) for token in draft]
        counts = np.repeat(self._counts[None, : len(self._column)], rows, axis=0)
        for number, column in enumerate(columns):
            counts[number + 1 :, column] += 1
            if (gone := self._leaving(len(self._history) + number, draft)) is not None:
                counts[number + 1 :, self._column[gone]] -= 1
        tokens = np.fromiter(self._column, dtype=np.uint32, count=len(self._column))
        return mx.array(np.repeat(tokens[None], rows, axis=0)), mx.array(counts.astype(np.float32))

    def _leaving(self, length: int, draft: Sequence[int]) -> int | None:
        """The token that drops out of the window when one is added to ``length`` tokens of history and draft."""
        if not self._window or length < self._window:
            return None
        index = length - self._window
        return self._history[index] if index < len(self._history) else draft[index - len(self._history)]

    def _column_of(self, token: int) -> int:
        column = self._column.setdefault(token, len(self._column))
        if column >= len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        return column
