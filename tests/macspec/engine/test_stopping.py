"""Stop strings: the result is that of a search in the full text, wherever the pieces are cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from macspec.engine.stopping import StopWatcher

LETTERS = st.text(alphabet="ab", max_size=14)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4)


def search(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The stop string that is complete first, the longest among equals."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end - len(stop)], stop


def watch(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    watcher, shown = StopWatcher(stops), ""
    for piece in pieces:
        text, matched = watcher.feed(piece)
        shown += text
        if matched is not None:
            return shown, matched
    return shown + watcher.flush(), None


@given(pieces=st.lists(LETTERS, max_size=8), stops=STOPS)
@settings(max_examples=400, deadline=None)
def test_equals_a_search_in_the_full_text(pieces, stops):
    assert watch(pieces, stops) == search("".join(pieces), stops)


@given(pieces=st.lists(LETTERS, max_size=8), stops=STOPS)
@settings(max_examples=200, deadline=None)
def test_only_the_beginning_of_a_stop_string_is_held_back(pieces, stops):
    watcher, seen, shown = StopWatcher(stops), "", ""
    for piece in pieces:
        text, matched = watcher.feed(piece)
        seen, shown = seen + piece, shown + text
        if matched is not None:
            break
        held = seen[len(shown) :]
        assert seen.startswith(shown)
        longest = max(
            (n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])),
            default=0,
        )
        assert len(held) == longest


def test_after_a_match_nothing_is_shown():
    watcher = StopWatcher(["END"])
    assert watcher.feed("one E") == ("one ", None)
    assert watcher.feed("ND two") == ("", "END")
    assert watcher.feed("three") == ("", "END")
    assert watcher.flush() == ""


def test_many_and_long_stop_strings():
    stops = [f"stop number {number}." for number in range(500)] + ["é" * 300]
    assert watch(["a stop num", "ber 499", ". rest"], stops) == ("a ", "stop number 499.")
    assert watch(["é" * 299, "e", "é" * 299, "é"], stops) == ("é" * 299 + "e", "é" * 300)


def test_a_stop_string_inside_another():
    assert watch(["abcd"], ["abcd", "bc"]) == ("a", "bc")
    assert watch(["xab"], ["ab", "b"]) == ("x", "ab")
