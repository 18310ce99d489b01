"""Arms that run in this process: the engine at some depth, and stock mlx-lm on the same weights."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from macspec.bench.samples import Prompt, RoundSample, Sample, Settings
from macspec.engine.loop import Engine
from macspec.request import Finished, GenerationRequest, Round, SamplingParams, Started, Text


class EngineArm:
    """macspec's engine at one depth or with one policy."""

    def __init__(
        self, engine: Engine, name: str, *, depth: str, policy: str = "rate", exact: bool | None = None
    ) -> None:
        self.engine, self.name, self.depth, self.policy, self.exact = engine, name, depth, policy, exact

    def request(self, prompt: Prompt, settings: Settings) -> GenerationRequest:
        """The request for a prompt; nothing is reused from earlier ones."""
        return GenerationRequest(
            messages=({"role": "user", "content": prompt.text},),
            sampling=SamplingParams(
                temperature=settings.temperature, seed=settings.seed, max_tokens=settings.max_tokens
            ),
            thinking=settings.thinking,
            depth=self.depth,
            policy=self.policy,
            use_cache=False,
            exact=self.exact,
        )

    def run(self, prompt: Prompt, settings: Settings) -> Sample:
        """Answer a prompt and keep its rounds."""
        request = self.request(prompt, settings)
        mx.reset_peak_memory()
        rounds: list[RoundSample] = []
        tokens: list[int] = []
        text: list[str] = []
        prompt_tokens = 0
        first_commit = 0.0
        finished: Finished | None = None
        begun = time.perf_counter()
        for event in self.engine.generate(request):
            if isinstance(event, Round):
                if not rounds:
                    first_commit = time.perf_counter() - begun
                rounds.append(_round(event))
            elif isinstance(event, Text):
                text.append(event.text)
                tokens.extend(token.id for token in event.tokens)
            elif isinstance(event, Started):
                prompt_tokens = event.prompt_tokens
            elif isinstance(event, Finished):
                finished = event
        ended = time.perf_counter() - begun
        return Sample(
            arm=self.name,
            prompt=prompt.id,
            category=prompt.category,
            prompt_tokens=prompt_tokens,
            generation_tokens=len(tokens),
            first_round_tokens=rounds[0].committed if rounds else 0,
            first_commit_s=first_commit,
            end_s=ended,
            tokens=tuple(tokens),
            text="".join(text),
            finish_reason=finished.reason if finished else "cancelled",
            rounds=tuple(rounds),
            peak_memory=mx.get_peak_memory(),
        )

    def gap(self, prompt: Prompt, prefix: tuple[int, ...], first: int, second: int) -> float | None:
        """Logit gap between two candidates after ``prefix``, by a plain step of the target."""
        known = [*self.engine.tokenize(self.request(prompt, Settings())), *prefix]
        cache = self.engine.target.make_cache()
        chunk = self.engine.prefill_chunk
        for begin in range(0, len(known) - 1, chunk):
            rows = known[begin : min(begin + chunk, len(known) - 1)]
            self.engine.target.forward(mx.array([rows]), cache)
            mx.eval([layer.state for layer in cache])
        logits = self.engine.target.forward(mx.array([known[-1:]]), cache)[0, -1].astype(mx.float32)
        values = np.array(logits)
        return float(values[first] - values[second])


def _round(event: Round) -> RoundSample:
    return RoundSample(
        drafted=event.drafted,
        verified=event.verified,
        accepted=event.accepted,
        committed=event.committed,
        draft_ms=event.draft_ms,
        verify_ms=event.verify_ms,
        other_ms=event.other_ms,
        redecided=event.redecided,
        redecide_ms=event.redecide_ms,
        reason=event.reason,
    )


class MlxLmArm:
    """Stock mlx-lm on the very weights the engine runs, with its draft-model speculation when a model is given.

    The generators of ``mlx_lm.generate.stream_generate`` are driven without its ``set_wired_limit``, which is the
    reported trigger of kernel panics on macOS; everything else is as there, detokenising included.
    """

    def __init__(self, engine: Engine, name: str = "mlx_lm", *, draft_model: Any = None, draft_tokens: int = 3) -> None:
        self.engine, self.name = engine, name
        self.draft_model, self.draft_tokens = draft_model, draft_tokens

    def run(self, prompt: Prompt, settings: Settings) -> Sample:
        """Answer a prompt; the engine's taps are taken off meanwhile so that stock is really stock."""
        from mlx_lm.sample_utils import make_sampler

        engine, tokenizer = self.engine, self.engine.target.tokenizer
        request = EngineArm(engine, self.name, depth="0").request(prompt, settings)
        ids = engine.tokenize(request)
        mx.random.seed(settings.seed)
        sampler = make_sampler(temp=settings.temperature)
        with engine.target.bare():
            mx.reset_peak_memory()
            detokenizer = tokenizer.detokenizer
            tokens: list[int] = []
            first_commit = 0.0
            begun = time.perf_counter()
            for token in self._generate(mx.array(ids), settings.max_tokens, sampler):
                if not tokens:
                    first_commit = time.perf_counter() - begun
                tokens.append(token)
                if token in engine.target.eos:
                    break
                detokenizer.add_token(token)
                _ = detokenizer.last_segment
                if len(tokens) == settings.max_tokens:
                    break
            ended = time.perf_counter() - begun
            detokenizer.finalize()
        return Sample(
            arm=self.name,
            prompt=prompt.id,
            category=prompt.category,
            prompt_tokens=len(ids),
            generation_tokens=len(tokens),
            first_round_tokens=1,
            first_commit_s=first_commit,
            end_s=ended,
            tokens=tuple(tokens),
            text=detokenizer.text,
            finish_reason="stop" if tokens and tokens[-1] in engine.target.eos else "length",
            peak_memory=mx.get_peak_memory(),
        )

    def _generate(self, ids: mx.array, limit: int, sampler: Any) -> Any:
        from mlx_lm.generate import generate_step, speculative_generate_step

        model = self.engine.target.model
        if self.draft_model is None:
            for token, _ in generate_step(ids, model, max_tokens=limit, sampler=sampler):
                yield int(token)
        else:
            steps = speculative_generate_step(
                ids,
                model,
                self.draft_model,
                max_tokens=limit,
                sampler=sampler,
                num_draft_tokens=self.draft_tokens,
            )
            for token, _, _ in steps:
                yield int(token)

    def gap(self, prompt: Prompt, prefix: tuple[int, ...], first: int, second: int) -> float | None:
        """As the engine sees it: the weights are the same."""
        return EngineArm(self.engine, self.name, depth="0").gap(prompt, prefix, first, second)


def load_draft_model(folder: Path) -> Any:
    """A small model for mlx-lm's own speculation."""
    from macspec_models.target import Target

    return Target.load(folder).model


class Canary:
    """One fixed piece of work, a few milliseconds, whose time reveals throttling that no counter shows."""

    def __init__(self) -> None:
        self._matrix = mx.random.normal((1024, 2048), key=mx.random.key(0))
        self._vector = mx.random.normal((2048, 8), key=mx.random.key(1))
        mx.eval(self._matrix, self._vector)

    def __call__(self) -> float:
        """Milliseconds; the best of three, so that only a lasting slow-down shows."""
        best = float("inf")
        for _ in range(3):
            begun = time.perf_counter()
            result = self._vector
            for _ in range(4):
                result = self._matrix.T @ (self._matrix @ result) * 1e-3
            mx.eval(result)
            best = min(best, (time.perf_counter() - begun) * 1000)
        return best
