"""Thinking and tool calls leave the answer as events of their own."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tool_parsers import glm47, json_tools, mistral

from macspec.engine.sampling import Chooser
from macspec.engine.sections import ParsedCall, Pieces, Sections
from macspec.engine.thinking import MarkerMatch, Markers, ThinkingTracker
from macspec.errors import RequestError
from macspec.request import Grammar, SamplingParams
from tiny_tokenizers import byte_level

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


@cache
def tokenizer(kind: str) -> Any:
    if kind == "plain":
        return byte_level()
    if kind == "mistral":
        parts = {"tool_call_start": mistral.tool_call_start, "tool_call_end": mistral.tool_call_end}
        return byte_level(("<end>", "[TOOL_CALLS]", "[ARGS]"), tool_parser=mistral.parse_tool_call, **parts)
    parts = {"tool_call_start": json_tools.tool_call_start, "tool_call_end": json_tools.tool_call_end}
    if kind == "harmony":
        return byte_level(("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"))
    if kind == "brackets":
        return byte_level(("<end>", "[THINK]", "[/THINK]"))
    if kind == "channels":
        # The opening marker is two tokens: <|channel> and the letters of "thought".
        return byte_level(("<end>", "<|channel>", "<channel|>"), tool_parser=json_tools.parse_tool_call, **parts)
    added = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    return byte_level(added=added, tool_parser=json_tools.parse_tool_call, **parts)


def encode(kind: str, text: str) -> list[int]:
    return tokenizer(kind).encode(text, add_special_tokens=False)


def run(kind: str, text: str, prompt: str = "hi", **options: Any) -> tuple[str, str, list[ParsedCall], str | None]:
    """Answer, thinking, calls and the stop string of a text taken in token by token."""
    sections = Sections(tokenizer(kind), encode(kind, prompt), **options)
    answer, thinking, calls, matched = "", "", [], None

    def take(pieces: Pieces) -> None:
        nonlocal answer, thinking
        for part in pieces.parts:
            if isinstance(part, ParsedCall):
                calls.append(part)
            elif part[0] == "answer":
                answer += part[1]
            else:
                thinking += part[1]

    for token in encode(kind, text):
        pieces = sections.add(token)
        take(pieces)
        if pieces.matched is not None:
            matched = pieces.matched
            break
    else:
        pieces = sections.finish()
        take(pieces)
        matched = pieces.matched
    return answer, thinking, calls, matched


def test_thinking_is_a_section_of_its_own():
    assert run("think", "<think>\nhm 😀\n</think>\n\nYes.") == ("Yes.", "hm 😀\n", [], None)
    assert run("think", "hm</think>Yes", prompt="a<think>") == ("Yes", "hm", [], None)
    assert run("think", "one</think>two", prompt="<think>x</think>") == ("one</think>two", "", [], None)
    assert run("think", "<think>never closed") == ("", "never closed", [], None)
    assert run("plain", "<think>x</think>y") == ("<think>x</think>y", "", [], None)


def test_markers_of_several_tokens():
    assert run("channels", "<|channel>thought\nhm<channel|>Yes") == ("Yes", "hm", [], None)
    # What only begins like the marker is text; the special token in it is hidden as everywhere.
    assert run("channels", "a<|channel>though b") == ("athough b", "", [], None)
    assert run("channels", "a<|channel>tho") == ("atho", "", [], None)


def test_channels_of_harmony():
    thinking, answer = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
    turn = "<|end|><|start|>assistant"
    assert run("harmony", f"{thinking}hm{turn}{answer}Yes.<|return|>") == ("Yes.", "hm", [], None)
    assert run("harmony", f"{answer}At once.<|return|>") == ("At once.", "", [], None)
    assert run("harmony", f"hm{turn}{answer}Yes", prompt=f"a{thinking}") == ("Yes", "hm", [], None)
    assert run("harmony", f"{thinking}never closed") == ("", "never closed", [], None)


def test_a_marker_that_a_message_mentions_opens_nothing():
    asked = "What does <think> do?<end>"
    assert run("think", "It thinks.", prompt=asked) == ("It thinks.", "", [], None)
    assert run("think", "hm</think>Yes", prompt=f"{asked}<think>\n") == ("Yes", "hm", [], None)
    own = tokenizer("think")
    params = SamplingParams(grammar=Grammar("regex", "[0-9]"))
    chooser = Chooser(params, len(own), own, encode("think", asked), 0, frozenset({own.eos_token_id}))
    (one,) = encode("think", "1")
    rows = np.eye(1, len(own), encode("think", "a")[0], dtype=np.float32) + np.eye(1, len(own), one) / 2
    assert chosen(chooser, rows.astype(np.float32), 9) == [one]


def test_an_analysis_that_ended_with_a_call_is_over():
    """Harmony's turns that call a tool have no final channel; they are part of the history."""
    called = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>{}<|end|>"
    prompt = f"{called}<|start|>assistant"
    assert run("harmony", "<|channel|>final<|message|>Yes", prompt=prompt) == ("Yes", "", [], None)


def test_budget_closes_the_analysis_of_harmony():
    opening = encode("harmony", "<|channel|>analysis<|message|>")
    tracker = ThinkingTracker.of(tokenizer("harmony"), [], budget=2)
    for token in [*opening, *encode("harmony", "ab")]:
        tracker.feed(token)
    ending = []
    while (token := tracker.forced()) is not None:
        ending.append(token)
        tracker.feed(token)
    closing = "<|end|><|start|>assistant<|channel|>final<|message|>"
    assert ending == encode("harmony", closing) and not tracker.inside


def test_markers_mlx_lm_does_not_look_for():
    assert run("brackets", "[THINK]hm[/THINK]Yes") == ("Yes", "hm", [], None)


def test_markers_are_looked_for_once_per_tokenizer(monkeypatch):
    """Every request asks for them several times before its first token, and a vocabulary takes long to list."""
    plain, listed = byte_level(), []
    monkeypatch.setattr(type(plain), "get_vocab", lambda self: listed.append(self) or {}, raising=False)
    assert [Markers.of(plain), Markers.of(plain), Markers.of(None)] == [None, None, None]
    assert len(listed) == 1


def test_thinking_tokens_are_counted():
    sections = Sections(tokenizer("think"), encode("think", "a"))
    for token in encode("think", "ab<think>cde</think>fg"):
        sections.add(token)
    assert sections.thinking_tokens == 4


def test_stop_strings_end_the_answer_not_the_thinking():
    assert run("think", "<think>a STOP b</think>c STOP d", stops=["STOP"]) == ("c ", "a STOP b", [], "STOP")
    assert run("think", "abS", stops=["Sx"]) == ("abS", "", [], None)
    # Thinking in between keeps a stop string from matching across it.
    assert run("think", "a S<think>x</think>T b", stops=["ST"]) == ("a ST b", "x", [], None)


def test_tool_calls_are_parsed_by_the_models_own_parser():
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 😀"}}\n</tool_call>'
    answer, thinking, calls, _ = run("think", f"Let me look.{call}\n{call}", tools=TOOLS)
    assert (answer, thinking) == ("Let me look.", "")
    assert [call.name for call in calls] == ["weather", "weather"]
    assert json.loads(calls[0].arguments) == {"city": "Zürich 😀"}


def test_without_tools_a_call_is_text():
    text = '<tool_call>{"name": "x", "arguments": {}}</tool_call>'
    assert run("think", text) == (text, "", [], None)


@pytest.mark.parametrize("inside", ["not json", "[]", '{"arguments": {}}', '{"name": 3}', ""])
def test_what_the_parser_does_not_understand_stays_in_the_answer(inside):
    text = f"a<tool_call>{inside}</tool_call>b"
    assert run("think", text, tools=TOOLS) == (text, "", [], None)


def test_an_unfinished_call_is_text_or_a_call_where_no_end_is_marked():
    assert run("think", 'a<tool_call>{"name": "wea', tools=TOOLS)[2] == []
    answer, _, calls, _ = run("mistral", 'a[TOOL_CALLS]weather[ARGS]{"city": "Bern"}', tools=TOOLS)
    assert (answer, calls) == ("a", [ParsedCall("weather", '{"city": "Bern"}')])


def test_a_call_cut_off_at_the_limit_is_text_as_written():
    """Some parsers take a call for whole that has lost arguments, or the end of them."""
    parts = {"tool_call_start": glm47.tool_call_start, "tool_call_end": glm47.tool_call_end}
    own = byte_level(added=("<tool_call>", "</tool_call>"), tool_parser=glm47.parse_tool_call, **parts)
    written = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>day</arg_key>\n"
    for complete in (False, True):
        sections = Sections(own, [], tools=TOOLS)
        for token in own.encode(written, add_special_tokens=False):
            assert not sections.add(token).parts
        wanted: Any = ParsedCall("weather", '{"city": "Bern"}') if complete else ("answer", written)
        assert sections.finish(complete=complete).parts == [wanted]


@given(
    parts=st.lists(
        st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "a", "\n", " the", "é", "S", "T", "😀"]),
        max_size=14,
    )
)
@settings(max_examples=200, deadline=None)
def test_nothing_is_lost_whatever_the_order(parts):
    """Markers in any order: all other text comes out, in order, but for line breaks after markers."""
    text = "".join(parts)
    answer, thinking, calls, matched = run("think", text, stops=["ST!"], tools=TOOLS)
    assert not calls and matched is None
    shown = (answer + thinking).replace("<tool_call>", "").replace("</tool_call>", "").replace("\n", "")
    wanted = "".join(part for part in parts if len(part) < 6).replace("\n", "")
    shown = shown.replace("<think>", "").replace("</think>", "")
    assert sorted(shown) == sorted(wanted)


def test_a_marker_of_repeating_tokens():
    match = MarkerMatch((1, 1, 2))
    assert [match.feed(token) for token in (1, 1, 1, 2, 1, 1, 2)] == [False, False, False, True, False, False, True]


def chosen(chooser: Chooser, rows: np.ndarray, position: int, draft: tuple[int, ...] = ()) -> list[int]:
    return np.array(chooser.choose(mx.array(rows), position, draft)).tolist()


def test_the_budget_ends_thinking_row_by_row():
    own = tokenizer("think")
    start, end, word = encode("think", "<think></think>a")
    prompt = [word]
    rows = np.zeros((5, len(own)), dtype=np.float32)
    rows[:, word] = 5.0
    chooser = Chooser(SamplingParams(), len(own), own, prompt, 0, frozenset(), thinking_budget=2)
    draft = (start, word, word, end)
    assert chosen(chooser, rows, 1, draft) == [word, word, word, end, word]
    chooser.commit(draft)
    assert chosen(chooser, rows[:1], 5) == [word]
    assert not chooser.fast


def test_a_budget_with_a_marker_of_several_tokens():
    own = tokenizer("channels")
    (end,) = encode("channels", "<channel|>")
    tracker = ThinkingTracker.of(own, encode("channels", "<|channel>thought"), budget=1)
    assert tracker is not None and tracker.inside
    tracker.feed(5)
    assert tracker.forced() == end
    assert tracker.feed(end) and not tracker.inside
    assert tracker.forced() is None


def test_thinking_switched_off_is_closed_at_once():
    own = tokenizer("think")
    _, end, word = encode("think", "<think></think>a")
    rows = np.zeros((1, len(own)), dtype=np.float32)
    rows[:, word] = 5.0
    chooser = Chooser(SamplingParams(), len(own), own, encode("think", "a<think>"), 0, frozenset(), thinking=False)
    assert chosen(chooser, rows, 2) == [end]


def test_a_grammar_begins_after_thinking():
    own = tokenizer("think")
    start, end, a, z, one = encode("think", "<think></think>az1")
    params = SamplingParams(grammar=Grammar("regex", "[0-9]z"))
    rows = np.zeros((6, len(own)), dtype=np.float32)
    rows[0, start] = rows[1, a] = rows[2, end] = rows[3, a] = rows[4, a] = 9.0
    rows[3, one] = 5.0

    def fresh(**options: Any) -> Chooser:
        return Chooser(params, len(own), own, [a], 0, frozenset({own.eos_token_id}), **options)

    draft = (start, a, end, one, z)
    assert chosen(fresh(), rows, 1, draft) == [start, a, end, one, z]
    chooser = fresh()
    for number, token in enumerate(draft):
        assert chosen(chooser, rows[number : number + 1], 1 + number) == [token]
        assert not chooser.must_stop()
        chooser.commit([token])
    assert chooser.must_stop()
    # Thinking is optional, comes first or not at all, and not when it is switched off.
    rows[0, one] = 20.0
    assert chosen(fresh(), rows[:2], 1, (one,))[0] == one
    rows[0, one], rows[1, start] = 0.0, 20.0
    assert chosen(fresh(), rows[:2], 1, (one,))[0] == start
    chooser = fresh()
    chooser.commit([one])
    assert chosen(chooser, rows[1:2], 2) == [z]
    assert chosen(fresh(thinking=False), rows[:1], 1) != [start]


def test_a_banned_end_of_thinking_is_an_error_and_not_a_loop():
    own = tokenizer("think")
    _, end, a = encode("think", "<think></think>a")
    params = SamplingParams(banned_tokens=(end,))
    with pytest.raises(RequestError) as raised:
        Chooser(params, len(own), own, encode("think", "<think>"), 0, frozenset(), thinking_budget=0)
    assert raised.value.param == "thinking_budget"
    chooser = Chooser(params, len(own), own, encode("think", "<think>"), 0, frozenset(), thinking_budget=1)
    chooser.commit([a])
    with pytest.raises(RequestError):
        chosen(chooser, np.zeros((1, len(own)), dtype=np.float32), 2)
