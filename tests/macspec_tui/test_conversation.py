"""The tree of messages and what the model is told of it."""

from __future__ import annotations

import pytest

from macspec.request import GenerationStats
from macspec_tui.conversation import Conversation, Message


def _turn(conversation: Conversation, question: str, answer: str, thinking: str = "") -> Message:
    said = conversation.say(question)
    return conversation.add(Message("assistant", answer, parent=said.id, thinking=thinking))


def test_the_template_gets_the_system_prompt_once_and_every_turn() -> None:
    conversation = Conversation("Be brief.")
    _turn(conversation, "one", "1")
    conversation.say("two")
    assert conversation.for_template() == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
    )


def test_thinking_is_apart_from_the_answer() -> None:
    conversation = Conversation()
    _turn(conversation, "one", "1", thinking="hm")
    assert conversation.for_template()[1] == {"role": "assistant", "content": "1", "reasoning_content": "hm"}


def test_an_unanswered_question_is_joined_with_the_next() -> None:
    conversation = Conversation()
    conversation.say("one")
    assert conversation.unanswered() is not None
    conversation.say("two")
    assert conversation.for_template() == ({"role": "user", "content": "one\n\ntwo"},)


def test_joining_does_not_change_the_messages() -> None:
    conversation = Conversation()
    conversation.say("one")
    conversation.say("two")
    conversation.for_template()
    assert [m.text for m in conversation.path()] == ["one", "two"]


def test_versions_and_branches() -> None:
    conversation = Conversation()
    first = _turn(conversation, "one", "1")
    _turn(conversation, "two", "2")
    question = conversation.path()[0]
    second = conversation.add(Message("assistant", "uno", parent=question.id))
    assert [m.text for m in conversation.path()] == ["one", "uno"]
    assert conversation.siblings(second.id) == [first.id, second.id]
    conversation.select(first.id)
    assert [m.text for m in conversation.path()] == ["one", "1", "two", "2"]


def test_rewind_keeps_the_messages_as_a_branch() -> None:
    conversation = Conversation()
    _turn(conversation, "one", "1")
    _turn(conversation, "two", "2")
    taken = conversation.rewind()
    assert taken is not None and taken.text == "two"
    assert [m.text for m in conversation.path()] == ["one", "1"]
    assert len(conversation.messages) == 4


def test_rewind_of_nothing() -> None:
    assert Conversation().rewind() is None


def test_only_a_message_without_answers_can_be_removed() -> None:
    conversation = Conversation()
    answer = _turn(conversation, "one", "1")
    with pytest.raises(ValueError, match="has answers"):
        conversation.remove(conversation.path()[0])
    conversation.remove(answer)
    assert conversation.head == conversation.path()[0].id


def test_a_message_survives_its_record() -> None:
    message = Message(
        "assistant", "x", thinking="y", thinking_seconds=1.5, reason="stop", model="m",
        stats=GenerationStats(generation_tokens=3),
    )  # fmt: skip
    again = Message.from_record(message.to_record())
    assert (again.text, again.thinking, again.reason, again.stats) == ("x", "y", "stop", message.stats)


@pytest.mark.parametrize("change", [{"role": "system"}, {"text": 3}, {"id": None}, {"parent": 7}])
def test_a_record_that_is_no_message_is_refused(change: dict[str, object]) -> None:
    record = Message("user", "x").to_record() | change
    with pytest.raises(ValueError, match="not a message"):
        Message.from_record(record)
