"""From messages to token ids, and the part of them that the next turn repeats."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pytest

from macspec.engine.prompt import prompt_tokens, repeated_prefix, takes_effort
from macspec.engine.text import Detokenizer
from macspec.engine.thinking import Markers
from macspec.errors import RequestError, UnsupportedError
from macspec.request import GenerationRequest
from tiny_engine import TEMPLATE, tiny_tokenizer

VOCAB = 272
CHAT = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello, 你好"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Again?"},
)


def tokenizer(template: str | None = TEMPLATE) -> Any:
    made = tiny_tokenizer(VOCAB)
    made._tokenizer.chat_template = template
    made.has_chat_template = template is not None
    return made


def tokens_of(own: Any, messages: tuple[dict[str, str], ...]) -> list[int]:
    return prompt_tokens(GenerationRequest(messages=messages), own, VOCAB)


def test_what_the_next_turn_repeats_is_all_but_the_opening_of_the_answer() -> None:
    own = tokenizer()
    request = GenerationRequest(messages=CHAT)
    prompt = tokens_of(own, CHAT)
    boundary = repeated_prefix(request, own, prompt)
    assert boundary is not None and own.decode(prompt[boundary:]) == "<assistant>"
    later = tokens_of(own, (*CHAT, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Why?"}))
    assert later[:boundary] == prompt[:boundary]


@pytest.mark.parametrize(
    "template",
    [
        # The opening is in the middle, or the tokens of the opening depend on what is before.
        "{% if add_generation_prompt %}<a>{% endif %}{% for m in messages %}{{ m['content'] }}{% endfor %}",
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ '!' if add_generation_prompt else '?' }}",
    ],
)
def test_templates_that_do_not_just_append_an_opening(template: str) -> None:
    own = tokenizer(template)
    prompt = tokens_of(own, CHAT)
    closed = own.apply_chat_template([dict(message) for message in CHAT], add_generation_prompt=False)
    common = next((n for n, (a, b) in enumerate(zip(prompt, closed, strict=False)) if a != b), len(closed))
    assert repeated_prefix(GenerationRequest(messages=CHAT), own, prompt) == (common or None)


def test_an_answer_that_was_begun_goes_on() -> None:
    own = tokenizer()
    messages = (*CHAT, {"role": "assistant", "content": "Yes, ag"})
    request = GenerationRequest(messages=messages, continue_final_message=True)
    prompt = prompt_tokens(request, own, VOCAB)
    assert own.decode(prompt) == own.decode(tokens_of(own, CHAT)) + "Yes, ag"
    assert repeated_prefix(request, own, prompt) is None
    for wrong in (CHAT, None):
        request = GenerationRequest(messages=wrong, prompt="x" if wrong is None else None, continue_final_message=True)
        with pytest.raises(RequestError, match="has to be the assistant's"):
            request.check()


def test_levels_of_thinking_are_the_templates() -> None:
    own = tokenizer("{{ reasoning_effort }}{% for m in messages %}{{ m['content'] }}{% endfor %}")
    assert takes_effort(own) and not takes_effort(tokenizer()) and not takes_effort(tokenizer(None))
    request = GenerationRequest(messages=CHAT[:1], template_options={"reasoning_effort": "high"})
    assert own.decode(prompt_tokens(request, own, VOCAB)) == "highBe brief."


def test_a_tokenizer_goes_with_its_model() -> None:
    own = tokenizer()
    tokens_of(own, CHAT)
    Detokenizer(own).add(3)
    Markers.of(own)
    gone = ref(own)
    del own
    gc.collect()
    assert gone() is None


def test_a_template_that_never_opens_the_answer_repeats_everything() -> None:
    own = tokenizer("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    prompt = tokens_of(own, CHAT)
    assert repeated_prefix(GenerationRequest(messages=CHAT), own, prompt) == len(prompt)


def test_a_history_is_not_tokenised_again_to_find_the_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    own = tokenizer()
    prompt, seen, encode = tokens_of(own, CHAT), [], own._tokenizer.encode
    monkeypatch.setattr(own._tokenizer, "encode", lambda text, **rest: seen.append(text) or encode(text, **rest))
    assert repeated_prefix(GenerationRequest(messages=CHAT), own, prompt)
    assert seen == ["<assistant>"]


def test_plain_prompts_have_no_boundary() -> None:
    assert repeated_prefix(GenerationRequest(prompt="a"), tokenizer(), [1]) is None


@pytest.mark.parametrize(
    ("request_", "template", "param"),
    [
        (GenerationRequest(tokens=(1, VOCAB)), TEMPLATE, "tokens"),
        (GenerationRequest(messages=CHAT), None, "messages"),
        (GenerationRequest(messages=CHAT), "{{ raise_exception('no system messages') }}", "messages"),
        (GenerationRequest(messages=CHAT), "{# nothing #}", "messages"),
    ],
)
def test_refusals_name_the_field(request_: GenerationRequest, template: str | None, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        prompt_tokens(request_, tokenizer(template), VOCAB)
    assert raised.value.param == param
    assert isinstance(raised.value, UnsupportedError) is (template is None)


@pytest.mark.model
def test_the_embedded_template(smollm: Any) -> None:
    own = smollm.tokenizer
    prompt = prompt_tokens(GenerationRequest(messages=CHAT), own, smollm.vocab_size)
    boundary = repeated_prefix(GenerationRequest(messages=CHAT), own, prompt)
    assert boundary is not None and own.decode(prompt[boundary:]) == "<|im_start|>assistant\n"
