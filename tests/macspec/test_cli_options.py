"""The options of a request as words: every sampling parameter has one, and wrong words are refused with its name."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys

import pytest

from macspec.cli_options import (
    add_engine_options,
    add_request_options,
    engine_options,
    option_names,
    request_options,
    set_option,
)
from macspec.errors import RequestError
from macspec.request import GenerationRequest, Grammar, SamplingParams


def parsed(*words: str, max_tokens: int | None = None) -> dict:
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    add_request_options(parser, max_tokens)
    return request_options(parser.parse_args(words))


def test_every_sampling_parameter_can_be_set():
    grammar_kinds = {"json_schema", "json_object", "regex", "choice", "lark"}
    wanted = {field.name for field in dataclasses.fields(SamplingParams)} - {"grammar"} | grammar_kinds
    assert wanted <= set(option_names())


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--temperature", "0.7"], "temperature", 0.7),
        (["--top-p", "0.9"], "top_p", 0.9),
        (["--top-k", "40"], "top_k", 40),
        (["--min-p", "0.05"], "min_p", 0.05),
        (["--seed", "-3"], "seed", -3),
        (["--repetition-penalty", "1.2"], "repetition_penalty", 1.2),
        (["--presence-penalty", "-1"], "presence_penalty", -1.0),
        (["--frequency-penalty", "0.5"], "frequency_penalty", 0.5),
        (["--penalty-window", "64"], "penalty_window", 64),
        (["--logit-bias", "5=-2.5", "--logit-bias", "7=1"], "logit_bias", {5: -2.5, 7: 1.0}),
        (["--banned-tokens", "1,2", "--banned-tokens", "3"], "banned_tokens", (1, 2, 3)),
        (["--allowed-tokens", "4 5"], "allowed_tokens", (4, 5)),
        (["--max-tokens", "9"], "max_tokens", 9),
        (["--max-tokens", "9", "--min-tokens", "3"], "min_tokens", 3),
        (["--stop", "END", "--stop", " x "], "stop", ("END", " x ")),
        (["--stop", '["\\n", "b"]'], "stop", ("\n", "b")),
        (["--stop", "[INST]"], "stop", ("[INST]",)),
        (["--stop-token-ids", "8"], "stop_token_ids", (8,)),
        (["--ignore-eos"], "ignore_eos", True),
        (["--logprobs", "2"], "logprobs", 2),
        (["--n", "3"], "n", 3),
        (["--regex", "a+"], "grammar", Grammar("regex", "a+")),
        (["--json-object"], "grammar", Grammar("json_object")),
        (["--choice", "yes", "--choice", "no"], "grammar", Grammar("choice", '["yes", "no"]')),
        (["--json-schema", '{"type": "null"}'], "grammar", Grammar("json_schema", '{"type": "null"}')),
        (["--lark", 'start: "a"'], "grammar", Grammar("lark", 'start: "a"')),
    ],
)
def test_command_line(words: list[str], field: str, value: object):
    assert getattr(parsed(*words)["sampling"], field) == value


def test_files_hold_schemas_and_grammars(tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}', encoding="utf-8")
    assert parsed("--json-schema", str(schema))["sampling"].grammar == Grammar("json_schema", '{"type": "object"}')


def test_only_what_was_given_is_passed_on():
    assert parsed() == {"sampling": SamplingParams()}
    assert parsed(max_tokens=7)["sampling"].max_tokens == 7
    assert parsed("--max-tokens", "3", max_tokens=7)["sampling"].max_tokens == 3
    values = parsed(
        "--depth", "full", "--thinking", "off", "--coupled", "on", "--use-cache", "off", "--policy", "fixed:3"
    )
    sampling = values.pop("sampling")
    assert sampling == SamplingParams()
    assert values == {"depth": "full", "thinking": False, "coupled": True, "use_cache": False, "policy": "fixed:3"}


def test_engine_options():
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    assert engine_options(parser.parse_args([])) == {}
    given = parser.parse_args(["--model", "m", "--drafter", "none", "--context", "64"])
    assert engine_options(given) == {"model": "m", "drafter": "none", "context": 64}
    assert engine_options(parser.parse_args(["--exact"])) == {"exact": True}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temperature", "nan"),
        ("temperature", "hot"),
        ("temperature", "-1"),
        ("temperature", "1e-9"),
        ("top_p", "0"),
        ("top_p", "1.1"),
        ("top_k", "1.5"),
        ("min_p", "-0.1"),
        ("repetition_penalty", "0"),
        ("presence_penalty", "inf"),
        ("frequency_penalty", "11"),
        ("logit_bias", "5"),
        ("logit_bias", "5=101"),
        ("banned_tokens", "a"),
        ("max_tokens", "0"),
        ("min_tokens", "-1"),
        ("stop", '""'),
        ("ignore_eos", "maybe"),
        ("logprobs", "21"),
        ("n", "0"),
        ("json_schema", "{"),
        ("choice", "[1]"),
        ("depth", "-1"),
        ("policy", "best"),
        ("thinking", "hard"),
        ("template_options", "[]"),
        ("colour", "red"),
        ("messages", "hello"),
        ("grammar", "x"),
    ],
)
def test_wrong_values_are_refused_by_name(name: str, text: str):
    before = GenerationRequest()
    with pytest.raises(RequestError) as raised:
        set_option(before, name, text)
    assert raised.value.param == name
    assert raised.value.message.endswith(".") and len(raised.value.message) > 20
    assert before == dataclasses.replace(GenerationRequest(), id=before.id)


def test_set_changes_one_setting_and_puts_it_back():
    request = set_option(GenerationRequest(), "Top-P", "0.5")
    assert request.sampling == SamplingParams(top_p=0.5)
    assert set_option(request, "top_p", "default").sampling == SamplingParams()
    request = set_option(request, "choice", '["a", "b"]')
    assert json.loads(request.sampling.grammar.value) == ["a", "b"]
    assert set_option(request, "grammar", "none").sampling.grammar is None
    assert set_option(GenerationRequest(), "thinking", "off").thinking is False
    assert set_option(SamplingParams(), "seed", "4") == SamplingParams(seed=4)
    with pytest.raises(RequestError):
        set_option(SamplingParams(), "depth", "3")


def test_no_mlx_is_imported():
    code = "import macspec.cli_options, macspec.limits, sys; sys.exit('mlx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
