from __future__ import annotations

import json
from pathlib import Path

import pytest

from macspec.bench import presets
from macspec.errors import RequestError

TRAINING = Path(__file__).parents[3] / "models/macspec_models/training/data/prompts.jsonl"


def test_shipped_suites_are_whole_and_unchanged() -> None:
    hashes = presets.published_hashes()
    assert set(hashes) == set(presets.SUITES)
    for name in presets.SUITES:
        suite = presets.load(name)
        assert suite.sha256 == hashes[name]
        assert len(suite.prompts) >= 8
        assert {p.category for p in suite.prompts} == {name}


def test_no_prompt_was_trained_on() -> None:
    trained = {json.loads(line)["prompt"].strip().lower() for line in TRAINING.read_text("utf-8").splitlines()}
    assert len(trained) > 1000
    for suite in presets.load_all(["all"]):
        for prompt in suite.prompts:
            assert prompt.text.strip().lower() not in trained


def test_all_means_all_once() -> None:
    assert [s.name for s in presets.load_all(["code", "all"])] == [
        "code",
        "chat",
        "math",
        "summarise",
        "rewrite",
        "json",
    ]


@pytest.mark.parametrize(
    "line",
    [
        {"question": "How many?", "answer": "4"},
        {"turns": ["How many?", "And then?"], "question_id": 81},
        {"prompt": "How many?", "task_id": "HumanEval/0", "canonical_solution": "x"},
        {"problem": "How many?", "solution": "4"},
        {"text": "How many?", "code": "x", "task_id": 2},
    ],
    ids=["GSM8K", "MT-Bench", "HumanEval", "MATH-500", "MBPP"],
)
def test_files_of_known_benchmarks(tmp_path: Path, line: dict[str, object]) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(line) + "\n\n" + json.dumps(line) + "\n", "utf-8")
    suite = presets.load(str(file))
    assert [p.text for p in suite.prompts] == ["How many?"] * 2
    assert [p.id for p in suite.prompts] == ["mine-1", "mine-3"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "has no prompts"),
        ("[1]\n", "line 1 is not an object"),
        ("{}\n", "line 1 has no prompt"),
        ("{", "line 1 is not JSON"),
        ("[" * 100000, "line 1 is not JSON"),
        ('{"prompt": 3}', "line 1 has no prompt"),
        ('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}', "occurs twice"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    with pytest.raises(RequestError, match=sentence):
        presets.load_all([str(file)])


def test_unknown_suite_and_binary_file(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="There is no suite or file 'poetry'"):
        presets.load_all(["poetry"])
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match="cannot be read"):
        presets.load(str(file))


def test_long_contexts() -> None:
    assert presets.parse_contexts("1k, 8k,512") == [1000, 8000, 512]
    for wrong in ("", "k", "-1", "1.5k", "0", "1k,,2k"):
        with pytest.raises(RequestError, match="write token counts"):
            presets.parse_contexts(wrong)
    suite = presets.long_context(8000)
    assert [p.category for p in suite.prompts] == ["context-8k"] * 3
    for prompt in suite.prompts:
        assert 0.95 < len(prompt.text) / (8000 * presets.CHARACTERS_PER_TOKEN) < 1.05
    assert len({p.text for p in suite.prompts}) == 3
