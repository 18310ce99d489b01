"""The JSON bodies clients send, one model per endpoint.

Null means absent. Unknown keys are ignored, as newer clients send newer keys; a known key that cannot be honoured is an
error that names it. Deep structures (messages, tools) are checked where they are converted, so that an error can name
the exact place in them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from macspec.errors import RequestError, UnsupportedError

Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Whole = Annotated[int, Field(strict=True)]
Words = Annotated[str, Field(strict=True)]

#: Fields of other servers that would load something; refused by name so that nobody thinks they worked.
_LOADERS = (
    "adapter",
    "adapters",
    "chat_template",
    "draft_model",
    "lora",
    "model_path",
    "num_draft_tokens",
    "num_ctx",
    "speculative_model",
)

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    #: Known keys that cannot be honoured, with the values that mean nothing and are therefore fine.
    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {}

    model: Words | None = None

    @classmethod
    def read(cls, values: dict[str, Any]) -> Self:
        """Validate; raises `RequestError` whose ``param`` names the field."""
        present = {key: value for key, value in values.items() if value is not None}
        for name in _LOADERS:
            if name in present and name not in cls.model_fields:
                raise UnsupportedError(f"{name} cannot be set by a request; it is chosen when serving.", param=name)
        for name, harmless in cls.unsupported.items():
            if name in present and not any(_same(present[name], value) for value in harmless):
                raise UnsupportedError(f"{name} is not supported here; leave it out.", param=name)
        try:
            return cls.model_validate(present)
        except ValidationError as error:
            raise _as_request_error(error) from None


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _as_request_error(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = ""
    for part in first["loc"]:
        if part in ("str", "int") or str(part).startswith("list["):
            # The branch of a union, which is pydantic's business.
            continue
        param += f"[{part}]" if isinstance(part, int) else f".{part}" if param else str(part)
    if first["type"] == "missing":
        return RequestError(f"{param} is missing.", param=param)
    reason = first["msg"].replace("Input should", "it should")
    return RequestError(f"{param} is not valid: {reason[0].lower()}{reason[1:]}.", param=param)


class SamplingBody(Body):
    """Sampling parameters under OpenAI's names, and those of other local servers."""

    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Whole | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    seed: Whole | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    penalty_window: Whole | None = None
    logit_bias: dict[str, Number] | None = None
    min_tokens: Whole | None = None
    stop_token_ids: list[Whole] | None = None
    ignore_eos: Flag | None = None
    #: Draft tokens per round: ``auto``, ``full`` or a number; changes the speed and never the text.
    depth: Words | Whole | None = None
    #: Reuse the prefix of earlier requests.
    cache_prompt: Flag | None = None


class StreamOptions(BaseModel):
    """OpenAI's ``stream_options``."""

    include_usage: Flag | None = None
    include_obfuscation: Flag | None = None


class ChatBody(SamplingBody):
    """``POST /v1/chat/completions``."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "audio": (),
        "functions": ([],),
        "function_call": ("none",),
        "modalities": (["text"],),
        "prediction": (),
        "verbosity": ("medium",),
        "web_search_options": (),
    }

    messages: list[Any]
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    stop: Words | list[Words] | None = None
    n: Annotated[Whole, Field(ge=1)] | None = None
    logprobs: Flag | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    stream: Flag | None = None
    stream_options: StreamOptions | None = None
    #: Tell how far the prompt is, as llama.cpp does.
    return_progress: Flag | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: Flag | None = None
    response_format: Any = None
    reasoning_effort: Effort | None = None
    reasoning: dict[str, Any] | None = None
    thinking_budget: Annotated[Whole, Field(ge=0)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    #: As vLLM has it: go on with the assistant's last message.
    continue_final_message: Flag | None = None
    guided_json: Any = None
    guided_regex: Words | None = None
    guided_choice: list[Words] | None = None
    guided_grammar: Words | None = None


class CompletionBody(SamplingBody):
    """``POST /v1/completions``."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
    }

    prompt: Any
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    stop: Words | list[Words] | None = None
    n: Annotated[Whole, Field(ge=1)] | None = None
    logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    stream: Flag | None = None
    stream_options: StreamOptions | None = None
    return_progress: Flag | None = None
    response_format: Any = None
    guided_json: Any = None
    guided_regex: Words | None = None
    guided_choice: list[Words] | None = None
    guided_grammar: Words | None = None


class ResponsesBody(SamplingBody):
    """``POST /v1/responses``; nothing is stored, so each request brings the whole conversation."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "background": (False,),
        "conversation": (),
        "previous_response_id": (),
        "prompt": (),
        "truncation": ("disabled",),
    }

    input: Words | list[Any]
    instructions: Words | None = None
    max_output_tokens: Annotated[Whole, Field(ge=1)] | None = None
    max_tool_calls: Whole | None = None
    stream: Flag | None = None
    stream_options: StreamOptions | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: Flag | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    include: list[Words] | None = None
    metadata: dict[str, Any] | None = None
    store: Flag | None = None


class MessagesBody(Body):
    """``POST /v1/messages``, in Anthropic's shape."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {"container": (), "mcp_servers": ([],)}

    messages: list[Any]
    max_tokens: Annotated[Whole, Field(ge=1)]
    system: Words | list[Any] | None = None
    temperature: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=0)] | None = None
    stop_sequences: list[Words] | None = None
    stream: Flag | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


class CountTokensBody(Body):
    """``POST /v1/messages/count_tokens``."""

    messages: list[Any]
    system: Words | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


class TokenizeBody(Body):
    """``POST /tokenize``: ``prompt`` or ``content`` as it is, or ``messages`` through the chat template."""

    prompt: Words | None = None
    content: Words | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
