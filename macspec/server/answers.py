"""From a plan to events: waiting for the model and for a turn, and reading tool calls out of constrained answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, cast

from macspec import __version__
from macspec.errors import ContextLengthError, EngineDiedError, MacspecError, ModelNotFoundError
from macspec.request import (
    Event,
    Finished,
    GenerationRequest,
    GenerationStats,
    Started,
    Text,
    TokenInfo,
    ToolCall,
)
from macspec.server.admission import Admission
from macspec.server.config import ServerConfig
from macspec.server.convert import PARAM_NAMES, Plan
from macspec.server.errors import LoadingError, rename
from macspec.server.metrics import Metrics
from macspec.server.tools import ToolPlan
from macspec.worker.client import EngineClient
from macspec.worker.protocol import EngineInfo


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return prefix + secrets.token_hex(12)


class Service:
    """Everything endpoints share: the engine, the waiting line, the counters."""

    def __init__(self, client: EngineClient, config: ServerConfig) -> None:
        self.client = client
        self.config = config
        self.admission = Admission(config.parallel, config.max_queue)
        self.metrics = Metrics()

    async def info(self) -> EngineInfo:
        """What is loaded; waits for a model that is being loaded."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.config.loading_timeout
        while self.client.state == "loading":
            if clock() >= deadline:
                raise LoadingError("The model is still being loaded; try again in a moment.", retry_after=2)
            await asyncio.sleep(0.02)
        if self.client.info is None:
            raise EngineDiedError("No model is loaded. Look at the server's messages for the reason.")
        return self.client.info

    async def check_model(self, name: str | None) -> EngineInfo:
        """Refuse a name that is not served. It is only compared: never a path, never looked up anywhere."""
        info = await self.info()
        if name is not None and name not in self.names(info):
            shown = name[:80].encode("unicode_escape").decode()
            raise ModelNotFoundError(f"The model '{shown}' is not served here; '{info.model}' is.", param="model")
        return info

    def names(self, info: EngineInfo) -> tuple[str, ...]:
        """Names under which the loaded model may be asked for."""
        return (info.model, *self.config.aliases)

    def fingerprint(self, info: EngineInfo) -> str:
        """Changes when the same seed might give another text."""
        parts = (__version__, info.model, info.revision, info.dtype, info.device)
        return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]

    async def events(
        self, plans: Sequence[Plan], who: str, names: dict[str, str] | None = None
    ) -> AsyncIterator[Event]:
        """Events of several prompts after one another, their answers numbered through. Errors use ``names``."""
        clock = asyncio.get_running_loop().time
        began, waiting_for_text = clock(), True
        try:
            if not self.admission.free:
                # Refuse what cannot be answered before it waits: afterwards the status line is gone.
                for plan in plans:
                    await self._check_length(plan.request)
            async with self.admission.slot(who):
                offset = 0
                for plan in plans:
                    async with aclosing(cast(Any, self.client.submit(plan.request))) as stream:
                        async for event in _read_tools(stream, plan.tools):
                            if waiting_for_text and isinstance(event, Text):
                                waiting_for_text = False
                                self.metrics.first_token.add(clock() - began)
                            if isinstance(event, Finished):
                                self.metrics.last = event.stats
                            yield replace(event, index=event.index + offset) if offset else event
                    offset += plan.request.sampling.n
        except MacspecError as error:
            known = PARAM_NAMES if names is None else names
            if any(plan.tools.forced for plan in plans):
                # The constraint was made of the tools.
                known = {**known, "grammar": "tools"}
            raise rename(error, known) from error.__cause__
        finally:
            self.metrics.duration.add(clock() - began)

    async def _check_length(self, request: GenerationRequest) -> None:
        info = await self.info()
        count = await self.client.count_tokens(request)
        if info.max_context and count >= info.max_context:
            raise ContextLengthError(
                f"The prompt has {count} tokens and the context holds {info.max_context}; shorten the prompt.",
                param="messages" if request.messages is not None else "prompt",
            )


async def _read_tools(events: AsyncIterator[Event], plan: ToolPlan) -> AsyncIterator[Event]:
    """Turn a constrained answer into its tool call, and drop calls beyond the first where only one is wanted."""
    texts: dict[int, list[str]] = {}
    called: set[int] = set()
    async for event in events:
        if plan.forced and isinstance(event, Text) and event.section == "answer":
            texts.setdefault(event.index, []).append(event.text)
        elif plan.forced and isinstance(event, Finished):
            call = _forced_call("".join(texts.get(event.index, ())), plan, event)
            if call is not None:
                yield call
            yield event
        elif isinstance(event, ToolCall) and plan.single and event.index in called:
            continue
        else:
            if isinstance(event, ToolCall):
                called.add(event.index)
            yield event


def _forced_call(text: str, plan: ToolPlan, end: Finished) -> ToolCall | None:
    """The call in a constrained answer; None when the answer was cut off."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    name = plan.forced[0]
    if len(plan.forced) > 1:
        if not isinstance(value, dict) or value.get("name") not in plan.forced:
            return None
        name, value = value["name"], value.get("arguments", {})
    return ToolCall(index=end.index, call_id=new_id("call_"), name=name, arguments=json.dumps(value))


@dataclass
class Choice:
    """One complete answer."""

    text: str = ""
    thinking: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    tokens: list[TokenInfo] = field(default_factory=list)
    reason: str = "stop"
    matched_stop: str | None = None
    stats: GenerationStats = field(default_factory=GenerationStats)

    @property
    def finish_reason(self) -> str:
        """OpenAI's word."""
        return finish_reason(self.reason, bool(self.calls))


def finish_reason(reason: str, called: bool) -> str:
    """OpenAI's word for why an answer ended."""
    if reason == "length":
        return "length"
    return "tool_calls" if called else "stop"


@dataclass
class Outcome:
    """All answers of a request, gathered."""

    choices: dict[int, Choice] = field(default_factory=dict)
    prompts: list[Started] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    def add(self, event: Event, per_prompt: int = 1) -> None:
        """Take in one event; ``per_prompt`` answers share a prompt."""
        choice = self.choices.setdefault(event.index, Choice())
        if isinstance(event, Started):
            prompt = event.index // per_prompt
            # The answers of one prompt each report it, and a replayed request reports it again.
            if prompt not in self._seen:
                self._seen.add(prompt)
                self.prompts.append(event)
        elif isinstance(event, Text):
            if event.section == "thinking":
                choice.thinking += event.text
            else:
                choice.text += event.text
                choice.tokens += event.tokens
        elif isinstance(event, ToolCall):
            choice.calls.append(event)
        elif isinstance(event, Finished):
            choice.reason, choice.matched_stop, choice.stats = event.reason, event.matched_stop, event.stats

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(prompt.prompt_tokens for prompt in self.prompts)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that needed no work."""
        return sum(prompt.cached_tokens for prompt in self.prompts)

    def total(self, name: str) -> int:
        """Sum of a statistic over the answers."""
        return sum(int(getattr(choice.stats, name)) for choice in self.choices.values())

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object of chat and plain completions."""
        prompt, generated = self.prompt_tokens, self.total("generation_tokens")
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": self.total("thinking_tokens"),
                "accepted_prediction_tokens": self.total("accepted"),
                "rejected_prediction_tokens": self.total("verified") - self.total("accepted"),
                "audio_tokens": 0,
            },
        }

    def timings(self) -> dict[str, Any]:
        """How fast it was and what drafting did, under llama.cpp's names where it has them."""
        rounds, generated = self.total("rounds"), self.total("generation_tokens")
        first = next((choice.stats for choice in self.choices.values()), GenerationStats())
        seconds = sum(
            choice.stats.generation_tokens / choice.stats.generation_tps
            for choice in self.choices.values()
            if choice.stats.generation_tps > 0
        )
        return {
            "prompt_n": self.prompt_tokens - self.cached_tokens,
            "cache_n": self.cached_tokens,
            "prompt_per_second": round(first.prompt_tps, 2),
            "predicted_n": generated,
            "predicted_per_second": round(generated / seconds, 2) if seconds else 0.0,
            "draft_n": self.total("drafted"),
            "draft_n_accepted": self.total("accepted"),
            "rounds": rounds,
            "acceptance_length": round(generated / rounds, 3) if rounds else 0.0,
            "mean_depth": round(self.total("verified") / rounds, 3) if rounds else 0.0,
            "parked_share": round(self.total("parked_rounds") / rounds, 3) if rounds else 0.0,
        }


def logprob_value(value: float | None) -> float:
    """A log-probability JSON can carry; OpenAI writes -9999 for the impossible."""
    return -9999.0 if value is None or not value > -9999.0 else value
