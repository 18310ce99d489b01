"""Sessions on disk: private, crash-safe, never lost to a damaged line."""

from __future__ import annotations

import errno
import json
import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import killed_chat
from macspec.errors import RequestError
from macspec_tui.conversation import Message
from macspec_tui.store import Session, SessionError, SessionStore, replay, title_of


def _turn(session: Session, question: str, answer: str) -> None:
    said = session.conversation.say(question)
    session.save(said)
    session.save(session.conversation.add(Message("assistant", answer, parent=said.id)))


def _texts(session: Session) -> list[str]:
    return [message.text for message in session.conversation.path()]


def _refuse(handle: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_nothing_is_written_before_the_first_message(store: SessionStore) -> None:
    session = store.new("Be brief.")
    session.set_title("named")
    session.save_head()
    assert not list(store.folder.iterdir())


def test_a_session_comes_back_whole(store: SessionStore) -> None:
    session = store.new("Be brief.")
    _turn(session, "Grüße 日本語", "hello\nthere")
    session.set_title("Greeting")
    session.close()
    again = store.load(session.id)
    assert _texts(again) == ["Grüße 日本語", "hello\nthere"]
    assert (again.conversation.system, again.conversation.title, again.damaged) == ("Be brief.", "Greeting", 0)


def test_files_are_private(store: SessionStore) -> None:
    session = store.new()
    _turn(session, "a", "b")
    assert stat.S_IMODE(session.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_a_folder_open_to_others_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    SessionStore(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_branches_and_removals_come_back(store: SessionStore) -> None:
    session = store.new()
    _turn(session, "one", "1")
    session.conversation.rewind()
    session.save_head()
    _turn(session, "uno", "eins")
    gone = session.conversation.say("never mind")
    session.save(gone)
    session.conversation.remove(gone)
    session.save_removal(gone)
    again = store.load(session.id)
    assert _texts(again) == ["uno", "eins"]
    assert len(again.conversation.messages) == 4


def test_a_torn_line_costs_itself_only(store: SessionStore) -> None:
    session = store.new()
    _turn(session, "one", "1")
    session.close()
    with session.path.open("ab") as file:
        file.write(b'{"type":"message","id":"torn","par')
    again = store.load(session.id)
    assert (_texts(again), again.damaged) == (["one", "1"], 1)
    _turn(again, "two", "2")
    again.close()
    assert _texts(store.load(session.id)) == ["one", "1", "two", "2"]


def test_what_follows_a_damaged_line_stays(store: SessionStore) -> None:
    session = store.new()
    for number in range(3):
        _turn(session, f"q{number}", f"a{number}")
    session.close()
    lines = session.path.read_bytes().splitlines(keepends=True)
    lines[3] = b"\x00\xff garbage\n"
    session.path.write_bytes(b"".join(lines))
    again = store.load(session.id)
    assert _texts(again) == ["q0", "a0", "a1", "q2", "a2"]
    assert again.damaged == 1


@settings(deadline=None)
@given(st.data())
def test_no_damage_makes_a_file_unreadable(data: st.DataObject) -> None:
    records = [{"type": "session", "version": 1, "id": "x", "created": 0}]
    parent = None
    for number in range(4):
        message = Message(
            "user" if number % 2 == 0 else "assistant", f"text {number}", parent=parent, id=f"m{number}", created=0.0
        )
        parent = message.id
        records.append({"type": "message", **message.to_record()})
    raw = bytearray("\n".join(json.dumps(record) for record in records).encode() + b"\n")
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    conversation, damaged = replay(bytes(raw[:cut]))
    assert len(conversation.path()) <= 8 and damaged >= 0


def test_one_window_at_a_time(store: SessionStore) -> None:
    session = store.new()
    _turn(session, "a", "b")
    other = store.load(session.id)
    with pytest.raises(SessionError, match="open in another"):
        other.lock()
    session.close()
    other.lock()
    other.close()


def test_a_disk_that_refuses_is_reported(store: SessionStore) -> None:
    session = store.new()
    _turn(session, "a", "b")
    session.close()
    session.path.chmod(0o400)
    session.path.unlink()
    session.path.mkdir()
    with pytest.raises(SessionError, match="cannot be opened"):
        session.set_title("x")


def test_what_a_full_disk_cut_off_is_reported_and_written_once_there_is_room(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, room, write = store.new(), 300, os.write

    def full(handle: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = write(handle, data[:room])
        room -= taken
        return taken

    said = session.conversation.say("a")
    session.save(said)
    before = session.path.read_bytes()
    monkeypatch.setattr(os, "write", full)
    answer = session.conversation.add(Message("assistant", "long " * 100, parent=said.id))
    with pytest.raises(SessionError, match="No space left"):
        session.save(answer)
    assert session.path.read_bytes() == before
    with pytest.raises(SessionError):
        session.save_unsaved()
    room = 10_000
    session.save(session.conversation.say("b"))
    session.close()
    again = store.load(session.id)
    assert (_texts(again), again.damaged) == (["a", "long " * 100, "b"], 0)


def test_a_first_message_that_found_no_room_is_not_lost(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    session = store.new("Be brief.")
    said = session.conversation.say("a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", _refuse)
        with pytest.raises(SessionError):
            session.save(said)
        answer = session.conversation.add(Message("assistant", "b", parent=said.id))
        with pytest.raises(SessionError):
            session.save(answer)
    assert not session.stored
    session.close()
    again = store.load(session.id)
    assert (_texts(again), again.conversation.system, again.damaged) == (["a", "b"], "Be brief.", 0)


def test_names_are_found_by_their_ends(store: SessionStore) -> None:
    session = store.new()
    _turn(session, "a", "b")
    session.close()
    assert store.load(session.id[-4:]).id == session.id
    assert store.latest() == session.id


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "a/b", ".hidden"])
def test_only_names_of_sessions_are_opened(store: SessionStore, name: str) -> None:
    with pytest.raises(RequestError, match="not the name"):
        store.load(name)


def test_an_unknown_or_ambiguous_name_says_so(store: SessionStore) -> None:
    with pytest.raises(RequestError, match="no session"):
        store.load("20200101")
    for _ in range(2):
        session = store.new()
        _turn(session, "a", "b")
        session.close()
    with pytest.raises(RequestError, match="Several"):
        store.load("20")


def test_the_list_is_searched_by_words(store: SessionStore) -> None:
    for question, answer in (("How do tides work?", "The moon pulls."), ("Rain haiku", "Drops on the roof.")):
        session = store.new()
        _turn(session, question, answer)
        session.close()
    assert {summary.title for summary in store.list()} == {"How do tides work?", "Rain haiku"}
    [found] = store.list("MOON tides")
    assert (found.title, found.turns) == ("How do tides work?", 1)
    assert not store.list("moon haiku")


def test_deleting(store: SessionStore) -> None:
    session = store.new()
    _turn(session, "a", "b")
    session.close()
    store.delete(session.id)
    assert store.latest() is None


def test_a_session_whose_only_question_was_taken_back_is_none_to_continue(store: SessionStore) -> None:
    kept = store.new()
    _turn(kept, "a", "b")
    kept.close()
    session = store.new()
    said = session.conversation.say("too early")
    session.save(said)
    session.conversation.remove(said)
    session.save_removal(said)
    session.save_head()
    session.close()
    later = kept.path.stat().st_mtime + 10
    os.utime(session.path, (later, later))
    assert store.latest() == kept.id
    assert [summary.id for summary in store.list()] == [kept.id]


def test_a_long_first_line_is_a_short_title(store: SessionStore) -> None:
    session = store.new()
    session.conversation.say("word " * 100)
    assert len(title_of(session.conversation)) == 60


@pytest.mark.slow
def test_a_kill_at_any_moment_of_a_turn_loses_at_most_the_unfinished_answer(tmp_path: Path) -> None:
    words = [sys.executable, killed_chat.__file__, str(tmp_path), "100", "7"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=1800)
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    # Kills in the first, the second and the third turn.
    assert len(runs) == 100 and {0, 1, 2} <= {len(ended) for ended in runs}
    rng = random.Random(7)
    for attempt, ended in enumerate(runs):
        store = SessionStore(tmp_path / str(attempt))
        name = store.latest()
        assert name is not None
        session = store.load(name)
        texts = _texts(session)
        assert session.damaged <= 1 and len(texts) >= 2 * len(ended)
        expected = [say(turn) for turn in range(len(ended) + 1) for say in (killed_chat.question, killed_chat.answer)]
        assert texts == expected[: len(texts)]
        # The same file with its end torn off: what is before the tear stays.
        data = session.path.read_bytes()
        session.path.write_bytes(data[: rng.randrange(len(data) // 2, len(data))])
        torn = store.load(name)
        assert torn.damaged <= 1 and _texts(torn) == expected[: len(_texts(torn))]
