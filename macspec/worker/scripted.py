"""An engine client that answers from a script: for tests of everything that sits on `EngineClient`.

It keeps the promises of the real one (event order, rounds before their text, stop strings, token limit, cancel within
one round, context limit, one `Finished` per answer) and adds what a test wants to provoke: slow rounds, gates,
failures, and the death of the engine process at a chosen round.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from macspec.errors import ContextLengthError, EngineDiedError, MacspecError
from macspec.request import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    GenerationStats,
    PrefillProgress,
    Round,
    Started,
    Text,
    TokenInfo,
    ToolCall,
)
from macspec.worker.client import ClientState, ProgressCallback
from macspec.worker.protocol import EngineInfo, EngineOptions, EngineStats, LoadProgress

#: A word with its leading space, or a run of spaces: close enough to how tokenizers cut.
_PIECE = re.compile(r"\s?[^\s]+|\s+")


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted answer: thinking, then text, then tool calls, in rounds of ``per_round`` tokens.

    ``text`` may be a list of pieces to fix the token borders. ``delay`` seconds pass before each round. ``gate`` is
    awaited before the first round, ``gates[k]`` before round k (from 0). ``error`` is raised, and the engine dies if
    ``dies`` is set, before round ``fails_at``. ``prefill`` is the number of prefill chunks reported.
    """

    text: str | Sequence[str] = ""
    thinking: str = ""
    tool_calls: Sequence[tuple[str, str]] = ()
    reason: FinishReason = "stop"
    per_round: int = 3
    drafted: int = 7
    delay: float = 0.0
    prefill: int = 1
    cached_tokens: int = 0
    prompt_tokens: int | None = None
    gate: asyncio.Event | None = None
    prefill_gate: asyncio.Event | None = None
    gates: dict[int, asyncio.Event] | None = None
    error: MacspecError | None = None
    dies: bool = False
    fails_at: int = 0
    parked: bool = False


Script = Callable[[GenerationRequest], Reply]

DEFAULT_INFO = EngineInfo(
    model="scripted/model",
    revision="0123456789abcdef",
    drafter="scripted/drafter",
    kind="dflash",
    vocab=1000,
    max_context=4096,
    max_depth=15,
    thinking=True,
    tools=True,
    parameters_bytes=1_000_000,
    dtype="float32",
    device="script",
    ladder=(10.0, 10.5, 11.0, 12.0, 16.0),
    policy="rate",
)


def pieces(text: str) -> list[str]:
    """The scripted tokenizer: words with their leading space. Joined again they are the text."""
    return _PIECE.findall(text)


def prompt_text(request: GenerationRequest) -> str:
    """The text the scripted tokenizer counts: the prompt, or all message contents."""
    if request.messages is None:
        return request.prompt if request.prompt is not None else " ".join(map(str, request.tokens or ()))
    parts: list[str] = []
    for message in request.messages:
        content = message.get("content") or ""
        parts.append(content if isinstance(content, str) else json.dumps(content))
    return "\n".join(parts)


def echo(request: GenerationRequest) -> Reply:
    """The default script: repeat the last message or the prompt."""
    if request.messages is not None:
        content = request.messages[-1].get("content")
        return Reply(text=content if isinstance(content, str) else json.dumps(content))
    return Reply(text=prompt_text(request))


class ScriptedClient:
    """`EngineClient` that plays a script.

    ``script`` is one `Reply` for every request, several for consecutive ones (the last repeats), or a function of the
    request. Inspect ``requests`` (all submitted), ``cancelled`` (ids ended early), ``active`` (running now),
    ``most_active``, ``rounds_run`` (per request id), ``loads`` and ``deaths`` afterwards.
    """

    def __init__(
        self,
        script: Reply | Sequence[Reply] | Script = echo,
        *,
        info: EngineInfo = DEFAULT_INFO,
        load_error: MacspecError | None = None,
        load_gate: asyncio.Event | None = None,
        load_steps: Sequence[LoadProgress] = (LoadProgress("weights", 0, 2), LoadProgress("weights", 2, 2)),
    ) -> None:
        self._script = script
        self._info = info
        self._state: ClientState = "stopped"
        self._cancelled_now: set[str] = set()
        self._born = 0.0
        self._totals = EngineStats(pid=1)
        self.load_error = load_error
        self.load_gate = load_gate
        self.load_steps = load_steps
        self.requests: list[GenerationRequest] = []
        self.cancelled: list[str] = []
        self.active = 0
        self.most_active = 0
        self.rounds_run: dict[str, int] = {}
        self.loads: list[EngineOptions] = []
        self.deaths = 0
        self.stuck_for = 0.0

    @property
    def state(self) -> ClientState:
        """See `EngineClient.state`."""
        return self._state

    @property
    def info(self) -> EngineInfo | None:
        """See `EngineClient.info`."""
        return self._info if self.loads and self._state != "stopped" else None

    @property
    def step_seconds(self) -> float:
        """See `EngineClient.step_seconds`; set it to simulate a stuck device."""
        return self.stuck_for

    async def start(self, progress: ProgressCallback | None = None) -> EngineInfo:
        """See `EngineClient.start`."""
        self._born = asyncio.get_running_loop().time()
        return await self._load(EngineOptions(), progress)

    async def load(
        self, model: str | None = None, drafter: str | None = None, progress: ProgressCallback | None = None
    ) -> EngineInfo:
        """See `EngineClient.load`; the scripted engine accepts every name."""
        info = await self._load(EngineOptions(model=model, drafter=drafter), progress)
        self._info = replace(info, model=model or info.model, drafter=drafter or info.drafter)
        return self._info

    async def _load(self, options: EngineOptions, progress: ProgressCallback | None) -> EngineInfo:
        self._state = "loading"
        for step in self.load_steps:
            if progress is not None:
                progress(step)
            await asyncio.sleep(0)
        if self.load_gate is not None:
            await self.load_gate.wait()
        if self.load_error is not None:
            self._state = "failed"
            raise self.load_error
        self.loads.append(options)
        self._state = "ready"
        return self._info

    async def restart(self, progress: ProgressCallback | None = None) -> EngineInfo:
        """See `EngineClient.restart`."""
        self._totals = replace(self._totals, restarts=self._totals.restarts + 1)
        return await self._load(EngineOptions(), progress)

    async def close(self) -> None:
        """See `EngineClient.close`."""
        self._state = "stopped"

    async def cancel(self, request_id: str) -> None:
        """See `EngineClient.cancel`."""
        self._cancelled_now.add(request_id)

    async def stats(self) -> EngineStats:
        """See `EngineClient.stats`."""
        uptime = asyncio.get_running_loop().time() - self._born
        return replace(self._totals, uptime=uptime, active=self.active, requests=len(self.requests))

    async def count_tokens(self, request: GenerationRequest) -> int:
        """See `EngineClient.count_tokens`."""
        request.check()
        return len(pieces(prompt_text(request)))

    async def tokenize(self, request: GenerationRequest) -> tuple[int, ...]:
        """See `EngineClient.tokenize`."""
        request.check()
        return tuple(self._token(piece).id for piece in pieces(prompt_text(request)))

    async def submit(self, request: GenerationRequest) -> AsyncIterator[Event]:
        """See `EngineClient.submit`."""
        request.check()
        self.requests.append(request)
        if self._state != "ready":
            raise EngineDiedError("The engine is not running. Start it, then send the request again.")
        reply = self._reply(request)
        prompt = reply.prompt_tokens if reply.prompt_tokens is not None else await self.count_tokens(request)
        limit = self._info.max_context
        if prompt >= limit:
            raise ContextLengthError(
                f"The prompt has {prompt:,} tokens and the model's context is {limit:,}. Shorten the prompt.",
                param="messages" if request.messages is not None else "prompt",
            )
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        ended = False
        try:
            async for event in self._play(request, reply, prompt):
                yield event
            ended = True
        except MacspecError:
            ended = True
            raise
        finally:
            self.active -= 1
            if not ended or request.id in self._cancelled_now:
                self.cancelled.append(request.id)
            self._cancelled_now.discard(request.id)

    def _reply(self, request: GenerationRequest) -> Reply:
        if isinstance(self._script, Reply):
            return self._script
        if callable(self._script):
            return self._script(request)
        return self._script[min(len(self.requests), len(self._script)) - 1]

    async def _play(self, request: GenerationRequest, reply: Reply, prompt: int) -> AsyncIterator[Event]:
        seed = request.sampling.seed if request.sampling.seed is not None else 1234
        yield Started(prompt_tokens=prompt, cached_tokens=reply.cached_tokens, seed=seed)
        for chunk in range(reply.prefill):
            if reply.prefill_gate is not None and chunk:
                await reply.prefill_gate.wait()
            await asyncio.sleep(reply.delay)
            if request.id in self._cancelled_now:
                break
            yield PrefillProgress(done=prompt * (chunk + 1) // reply.prefill, total=prompt)
        if reply.gate is not None:
            await reply.gate.wait()
        for index in range(request.sampling.n):
            async for event in self._answer(request, reply, prompt, index):
                yield event

    async def _answer(self, request: GenerationRequest, reply: Reply, prompt: int, index: int) -> AsyncIterator[Event]:
        thinking = pieces(reply.thinking) if request.thinking is not False else []
        answer = pieces(reply.text) if isinstance(reply.text, str) else list(reply.text)
        limit = request.sampling.max_tokens
        room = self._info.max_context - prompt
        limit = room if limit is None else min(limit, room)
        todo = [("thinking", piece) for piece in thinking] + [("answer", piece) for piece in answer]
        cut = todo[:limit]
        reason: FinishReason = "length" if len(cut) < len(todo) else reply.reason
        matched, sent, emitted, rounds, position = None, "", 0, 0, 0
        while position < len(cut) or rounds < reply.fails_at:
            await self._before_round(request, reply, rounds)
            if request.id in self._cancelled_now:
                reason = "cancelled"
                break
            section = cut[position][0] if position < len(cut) else "answer"
            group = [p for s, p in cut[position : position + reply.per_round] if s == section]
            position += len(group)
            rounds += 1
            self.rounds_run[request.id] = self.rounds_run.get(request.id, 0) + 1
            text = "".join(group)
            if section == "answer":
                keep, matched = _stop(sent, text, request.sampling.stop)
                sent, text = sent + keep, keep
            yield self._round(reply, len(group), index)
            tokens = tuple(self._token(piece, request.sampling.logprobs) for piece in group)
            emitted += len(tokens)
            yield Text(index=index, text=text, section="thinking" if section == "thinking" else "answer", tokens=tokens)
            if matched is not None:
                reason = "stop"
                break
        else:
            await self._before_round(request, reply, rounds)
            if request.id in self._cancelled_now:
                reason = "cancelled"
            elif reason == "stop":
                for number, (name, arguments) in enumerate(reply.tool_calls):
                    yield ToolCall(index=index, call_id=f"call_{index}_{number}", name=name, arguments=arguments)
        stats = self._finish(reply, reason, prompt, emitted, min(len(thinking), emitted), rounds)
        yield Finished(index=index, reason=reason, matched_stop=matched, stats=stats)

    async def _before_round(self, request: GenerationRequest, reply: Reply, number: int) -> None:
        await asyncio.sleep(reply.delay)
        if reply.gates and number in reply.gates:
            await reply.gates[number].wait()
        if number != reply.fails_at or request.id in self._cancelled_now:
            return
        if reply.dies:
            self.deaths += 1
            self._totals = replace(self._totals, restarts=self._totals.restarts + 1)
            raise EngineDiedError("The engine process was killed by SIGKILL while answering. Send the request again.")
        if reply.error is not None:
            raise reply.error

    def _round(self, reply: Reply, committed: int, index: int) -> Round:
        accepted = 0 if reply.parked else max(0, committed - 1)
        return Round(
            index=index,
            drafted=0 if reply.parked else reply.drafted,
            verified=0 if reply.parked else max(accepted, min(reply.drafted, 4)),
            accepted=accepted,
            committed=committed,
            reason="parked" if reply.parked else "rate",
            draft_ms=0.0 if reply.parked else 2.0,
            verify_ms=10.0,
            other_ms=0.5,
        )

    def _finish(
        self, reply: Reply, reason: FinishReason, prompt: int, emitted: int, thinking: int, rounds: int
    ) -> GenerationStats:
        drafting = 0 if reply.parked else 1
        stats = GenerationStats(
            prompt_tokens=prompt,
            cached_tokens=reply.cached_tokens,
            generation_tokens=emitted,
            thinking_tokens=thinking,
            prompt_tps=1000.0,
            generation_tps=80.0 * (emitted / rounds if rounds else 0.0),
            rounds=rounds,
            drafted=drafting * rounds * reply.drafted,
            verified=drafting * rounds * min(reply.drafted, 4),
            accepted=drafting * (emitted - rounds),
            acceptance_length=emitted / rounds if rounds else 0.0,
            parked_rounds=rounds if reply.parked else 0,
            draft_ms=2.0 * drafting * rounds,
            verify_ms=10.0 * rounds,
            other_ms=0.5 * rounds,
            peak_memory=1 << 20,
        )
        totals = self._totals
        self._totals = replace(
            totals,
            completed=totals.completed + (reason != "cancelled"),
            cancelled=totals.cancelled + (reason == "cancelled"),
            prompt_tokens=totals.prompt_tokens + prompt,
            cached_tokens=totals.cached_tokens + reply.cached_tokens,
            generation_tokens=totals.generation_tokens + emitted,
            rounds=totals.rounds + rounds,
            parked_rounds=totals.parked_rounds + stats.parked_rounds,
            drafted=totals.drafted + stats.drafted,
            verified=totals.verified + stats.verified,
            accepted=totals.accepted + stats.accepted,
        )
        return stats

    def _token(self, piece: str, logprobs: int | None = None) -> TokenInfo:
        number = sum(piece.encode()) % self._info.vocab
        if logprobs is None:
            return TokenInfo(id=number, text=piece, raw=piece.encode())
        others: Iterable[Any] = range(1, logprobs)
        top = [TokenInfo(id=number, text=piece, raw=piece.encode(), logprob=-0.5)] if logprobs else []
        top += [TokenInfo(id=k, text=f"~{k}", raw=f"~{k}".encode(), logprob=-0.5 - k) for k in others]
        return TokenInfo(id=number, text=piece, raw=piece.encode(), logprob=-0.5, top=tuple(top))


def _stop(before: str, text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The part of ``text`` before the first stop string in ``before + text``, and that stop string.

    Unlike the engine's watcher this does not hold back a possible beginning, so a stop string that straddles two rounds
    is found but its first half was already sent.
    """
    both = before + text
    found = [(at, stop) for stop in stops if (at := both.find(stop, max(0, len(before) - len(stop) + 1))) >= 0]
    if not found:
        return text, None
    at, stop = min(found)
    return text[: max(0, at - len(before))], stop
