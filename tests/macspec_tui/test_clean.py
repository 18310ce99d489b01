"""Text from a model cannot command the terminal."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from macspec_tui.clean import for_display, pasted


@given(st.text(alphabet=st.characters(min_codepoint=0, max_codepoint=0x10FFFF)))
def test_no_control_character_is_left(text: str) -> None:
    left = {c for c in for_display(text) if unicodedata.category(c) in ("Cc", "Cs")}
    assert left <= {"\n", "\t"}


@given(st.text(), st.text())
def test_pieces_need_no_state(first: str, second: str) -> None:
    assert for_display(first) + for_display(second) == for_display(first + second)


def test_scripts_that_need_joiners_stay_whole() -> None:
    text = "日本語 👨‍👩‍👧 ⏺️ é नमस्ते שלום \u2067rtl\u2069"
    assert for_display(text) == text


def test_overrides_of_the_writing_direction_are_shown() -> None:
    assert for_display("a\u202eb") == "a\ufffdb"


def test_pasted_text_has_one_kind_of_line_end_and_no_controls() -> None:
    assert pasted("a\r\nb\rc\x1b[31m\ud800\td\n") == "a\nb\nc[31m\ufffd\td\n"
