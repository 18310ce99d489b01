"""Grammars inside speculation: every answer satisfies its grammar, and the draft changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import jsonschema
import mlx.core as mx
import numpy as np
import pytest

from json_schemas import SCHEMAS
from macspec.engine.grammar import GrammarState
from macspec.engine.sampling import Chooser
from macspec.engine.verify import accepted_prefix
from macspec.errors import RequestError, UnsupportedError
from macspec.request import Grammar, SamplingParams
from tiny_tokenizers import byte_level, word_pieces

LIMIT = 600


@cache
def tokenizer() -> Any:
    return byte_level()


class Babbler:
    """A fake model: random logits for every prefix, with a liking for what closes things."""

    def __init__(self) -> None:
        own = tokenizer()
        self.vocab = len(own)
        self.liking = np.zeros(self.vocab, dtype=np.float32)
        for text, liking in (('"', 5.0), ("}", 4.0), ("]", 4.0), (" ", -6.0), ("\n", -9.0), ("\t", -9.0), ("\r", -9.0)):
            self.liking[own.encode(text, add_special_tokens=False)] = liking
        for token in range(self.vocab):
            if not own.decode([token]).strip():
                self.liking[token] = min(self.liking[token], -6.0)
        self.liking[own.eos_token_id] = 3.0

    def rows(self, tokens: Sequence[int], draft: Sequence[int]) -> mx.array:
        """Logits after ``tokens + draft[:k]``."""
        rows = []
        for k in range(len(draft) + 1):
            prefix = (*tokens, *draft[:k])
            seed = hash((prefix[-6:], len(prefix))) % 2**32
            rows.append(np.random.default_rng(seed).normal(size=self.vocab).astype(np.float32) * 2 + self.liking)
        return mx.array(np.stack(rows))


@cache
def babbler() -> Babbler:
    return Babbler()


def answer(
    grammar: Grammar, draft_from: Sequence[int] = (), *, depth: int = 0, **sampling: Any
) -> tuple[list[int], int]:
    """A whole answer and the number of rounds. Drafts are the given tokens, every fifth one spoilt."""
    model, eos = babbler(), frozenset({tokenizer().eos_token_id})
    params = SamplingParams(grammar=grammar, **sampling)
    chooser = Chooser(params, model.vocab, tokenizer(), [1, 2], 3, eos)
    tokens: list[int] = []
    rounds = 0
    while len(tokens) < LIMIT and not chooser.must_stop():
        draft = list(draft_from[len(tokens) : len(tokens) + depth])
        for k in range(len(draft)):
            if (len(tokens) + k) % 5 == 4:
                draft[k] = (draft[k] + 7) % model.vocab
        choices = np.array(chooser.choose(model.rows(tokens, draft), 2 + len(tokens), draft)).tolist()
        committed = choices[: accepted_prefix(draft, choices) + 1]
        end = next((n for n, token in enumerate(committed, 1) if token in eos), None)
        committed = committed[:end]
        chooser.commit(committed)
        tokens += committed
        rounds += 1
        if end is not None:
            break
    return tokens, rounds


def text_of(tokens: Sequence[int]) -> str:
    return tokenizer().decode(list(tokens), skip_special_tokens=True)


def test_there_are_forty_schemas():
    assert len(SCHEMAS) == 40


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("number", range(40))
def test_schemas(number, temperature):
    schema = SCHEMAS[number]
    grammar = Grammar("json_schema", json.dumps(schema))
    plain, _ = answer(grammar, temperature=temperature)
    assert len(plain) < LIMIT
    value = json.loads(text_of(plain))
    jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())
    got, rounds = answer(grammar, [*plain, *range(20)], depth=6, temperature=temperature)
    assert got == plain
    if len(plain) > 6:
        assert len(got) / rounds > 2


def test_penalties_and_grammars_together():
    grammar = Grammar("json_schema", json.dumps(SCHEMAS[32]))
    options = {"frequency_penalty": 0.7, "repetition_penalty": 1.2, "temperature": 0.8, "top_p": 0.9, "min_tokens": 30}
    plain, _ = answer(grammar, **options)
    jsonschema.validate(json.loads(text_of(plain)), SCHEMAS[32])
    assert answer(grammar, plain, depth=4, **options)[0] == plain


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar("regex", "[a-c]{2,5}x?"), "[a-c]{2,5}x?"),
        (Grammar("regex", "(é|你|😀)+!"), "(é|你|😀)+!"),
        (Grammar("choice", '["yes", "yesterday", "no", "a\\"b", "line\\nbreak"]'), 'yes|yesterday|no|a"b|line\nbreak'),
        (Grammar("lark", 'start: item+ "."\nitem: "ab" | "cd"'), r"(ab|cd)+\."),
    ],
)
def test_other_kinds(grammar, pattern, temperature):
    plain, _ = answer(grammar, temperature=temperature)
    assert re.fullmatch(pattern, text_of(plain))
    assert answer(grammar, [*plain, 5, 5, 5], depth=5, temperature=temperature)[0] == plain


def test_json_object():
    """Random keys and values may go on for long; what is there is the beginning of an object."""
    plain, _ = answer(Grammar("json_object"), temperature=1.0)
    text = text_of(plain)
    assert text.lstrip().startswith("{")
    if len(plain) < LIMIT:
        assert isinstance(json.loads(text), dict)


def test_rows_end_where_the_draft_breaks_the_grammar_or_the_answer_is_complete():
    own, model = tokenizer(), babbler()
    grammar = Grammar("regex", "abcd")
    tokens = own.encode("abcd", add_special_tokens=False)
    wrong = own.encode("z", add_special_tokens=False)

    def rows(draft: list[int]) -> list[int]:
        params = SamplingParams(grammar=grammar)
        chooser = Chooser(params, model.vocab, own, [1], 0, frozenset({own.eos_token_id}))
        chosen = chooser.choose(model.rows([], draft), 1, draft)
        again = chooser.choose(model.rows([], draft), 1, draft)
        assert np.array(chosen).tolist() == np.array(again).tolist(), "choosing must leave no trace"
        return np.array(chosen).tolist()

    assert rows(tokens[:2]) == tokens[:3]
    assert rows([tokens[0], *wrong, *tokens[1:]]) == tokens[:2]
    assert rows([*tokens, 3, 4]) == tokens


def test_the_answer_may_end_where_the_grammar_allows_it_only():
    own = tokenizer()
    state = GrammarState(Grammar("regex", "ab(cd)?"), own, len(own), frozenset({own.eos_token_id}))
    a, b, c, d = own.encode("abcd", add_special_tokens=False)
    assert not state.mask()[own.eos_token_id]
    assert state.take(a) and state.take(b)
    assert state.mask()[own.eos_token_id] and not state.finished
    assert not state.take(d)
    assert state.take(c) and state.take(d)
    assert state.finished
    state.undo(3)
    assert not state.finished
    assert state.mask().nonzero()[0].tolist() == [b]


def test_min_tokens_prefers_a_longer_text_and_gives_way_to_a_complete_one():
    own = tokenizer()
    assert len(answer(Grammar("regex", "a{1,20}"), min_tokens=9)[0]) >= 9
    assert text_of(answer(Grammar("regex", "ab"), min_tokens=9)[0]) == "ab"
    assert own.eos_token_id not in answer(Grammar("regex", "ab"), min_tokens=9)[0]


def test_a_model_with_more_ids_than_its_tokenizer():
    own = tokenizer()
    state = GrammarState(Grammar("regex", "a"), own, len(own) + 40, frozenset({own.eos_token_id}))
    assert state.mask().shape == (len(own) + 40,)
    assert not state.mask()[len(own) :].any()


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", "{"),
        Grammar("json_schema", "3"),
        Grammar("json_schema", "false"),
        Grammar("json_schema", '{"type": "objec"}'),
        Grammar("json_schema", '{"enum": []}'),
        Grammar("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}'),
        Grammar("json_schema", '{"allOf": [{"type": "string"}, {"type": "integer"}]}'),
        Grammar("json_schema", '{"type": "array", "minItems": 3, "maxItems": 1}'),
        Grammar("json_schema", '{"type": "array", "uniqueItems": true}'),
        Grammar("json_schema", '{"$ref": "#/nowhere"}'),
        Grammar("regex", "("),
        Grammar("regex", "a(?=b)"),
        Grammar("regex", "[^\\s\\S]"),
        Grammar("choice", "[]"),
        Grammar("choice", '["a", 3]'),
        Grammar("choice", "yes"),
        Grammar("choice", '[""]'),
        Grammar("lark", "start: missing"),
        Grammar("lark", 'begin: "a"'),
        Grammar("lark", 'start: start "a"'),
        Grammar("ebnf", "start"),  # type: ignore[arg-type]  # a kind that does not exist
    ],
    ids=lambda grammar: f"{grammar.kind} {grammar.value}",
)
def test_invalid_and_unsatisfiable_grammars_are_refused(grammar):
    own = tokenizer()
    with pytest.raises(RequestError) as raised:
        Chooser(SamplingParams(grammar=grammar), len(own), own, [1], 0, frozenset({own.eos_token_id}))
    assert raised.value.param == "grammar"
    assert "cannot be used" in raised.value.message and raised.value.message.endswith(".")


def test_a_grammar_and_allowed_tokens_that_contradict_each_other():
    own, model = tokenizer(), babbler()
    params = SamplingParams(grammar=Grammar("regex", "abc"), banned_tokens=tuple(own.encode("b")))
    chooser = Chooser(params, model.vocab, own, [1], 0, frozenset({own.eos_token_id}))
    tokens = own.encode("ab", add_special_tokens=False)
    assert np.array(chooser.choose(model.rows([], tokens), 1, tokens)).tolist() == tokens[:1]
    chooser.commit(tokens[:1])
    with pytest.raises(RequestError, match="no token to go on"):
        chooser.choose(model.rows(tokens[:1], []), 2, [])


def test_what_cannot_begin_is_refused_before_any_work():
    own = tokenizer()
    params = SamplingParams(grammar=Grammar("regex", "abc"), banned_tokens=tuple(own.encode("a")))
    with pytest.raises(RequestError, match="no token to go on") as raised:
        Chooser(params, len(own), own, [1], 0, frozenset({own.eos_token_id}))
    assert raised.value.param == "grammar"


def test_a_tokenizer_without_a_spelling_is_refused():
    class Slow:
        eos_token_id = 0

    with pytest.raises(UnsupportedError):
        GrammarState(Grammar("regex", "a"), Slow(), 10, frozenset({0}))


def test_word_pieces():
    """A tokenizer llguidance may or may not know: it works, or is refused with a sentence."""
    own = word_pieces()
    try:
        state = GrammarState(Grammar("choice", '["cat"]'), own, len(own), frozenset({own.eos_token_id}))
    except UnsupportedError as error:
        assert error.param == "grammar"
    else:
        assert state.mask().any()
