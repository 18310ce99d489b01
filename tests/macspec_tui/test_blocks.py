"""Cutting Markdown into prose and code, whole and streamed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macspec_tui.blocks import Block, Cutter, Piece, code_blocks, joined, split

_LINES = st.sampled_from(
    [
        "text\n",
        "```\n",
        "```python\n",
        "~~~\n",
        "````\n",
        "  ```sh\n",
        "    ```\n",
        "`code` here\n",
        "\n",
        "x = 1\n",
        "`` ` ``\n",
        "- ```\n",
    ]  # one list of lines
)


def _pieces(cutter: Cutter, *texts: str) -> list[Piece]:
    pieces = [piece for text in texts for piece in cutter.feed(text)]
    return [*pieces, *cutter.finish()]


@settings(deadline=None)
@given(st.lists(_LINES, max_size=12), st.randoms(use_true_random=False))
def test_streaming_in_any_pieces_gives_the_same(lines: list[str], rng: object) -> None:
    text = "".join(lines)
    parts, rest = [], text
    while rest:
        size = rng.randint(1, 5)  # type: ignore[attr-defined]  # a random.Random
        parts.append(rest[:size])
        rest = rest[size:]
    assert list(joined(_pieces(Cutter(), *parts))) == list(joined(_pieces(Cutter(), text)))


def test_neighbours_of_one_kind_are_joined() -> None:
    pieces = [Piece("prose", "a\n"), Piece("prose", "b\n"), Piece("open", "py"), Piece("code", "x\n"), Piece("close")]
    assert list(joined(pieces)) == [Piece("prose", "a\nb\n"), *pieces[2:]]
    twice = [Piece("open"), Piece("close"), Piece("open"), Piece("close")]
    assert list(joined(twice)) == twice


@settings(deadline=None)
@given(st.lists(_LINES, max_size=12))
def test_every_opened_block_is_closed(lines: list[str]) -> None:
    kinds = [piece.kind for piece in _pieces(Cutter(), "".join(lines))]
    assert kinds.count("open") == kinds.count("close")


def test_prose_is_shown_before_its_line_ends() -> None:
    assert list(Cutter().feed("Hello wor")) == [Piece("prose", "Hello wor")]


@pytest.mark.parametrize("start", ["`", "``", "```", "```py", "  ~", "   "])
def test_what_may_become_a_fence_is_held_back(start: str) -> None:
    assert list(Cutter().feed(start)) == []


def test_inline_code_is_not_held_back() -> None:
    assert list(Cutter().feed("`x` is")) == [Piece("prose", "`x` is")]


def test_split_of_an_answer() -> None:
    text = "Look:\n\n```python\nx = 1\n\ny = 2\n```\nDone.\n"
    assert split(text) == [Block("Look:"), Block("x = 1\n\ny = 2", "python"), Block("Done.")]


def test_a_longer_fence_may_hold_a_shorter_one() -> None:
    assert code_blocks("````md\n```\nx\n```\n````\n") == [Block("```\nx\n```", "md")]


def test_an_indented_fence_loses_its_indentation() -> None:
    assert code_blocks("1. Run\n   ```sh\n   ls\n     -l\n   ```\n") == [Block("ls\n  -l", "sh")]


def test_an_unclosed_block_is_code_to_the_end() -> None:
    assert code_blocks("```js\nlet x\nlet y") == [Block("let x\nlet y", "js")]


def test_a_line_with_backticks_inside_is_no_fence() -> None:
    assert code_blocks("``` a ``` b\ntext\n") == []


def test_an_info_string_may_say_more_than_the_language() -> None:
    assert code_blocks("```python title=x.py\na\n```") == [Block("a", "python")]
