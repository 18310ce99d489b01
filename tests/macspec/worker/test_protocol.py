"""Frames, and what survives a trip through them."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macspec.errors import ContextLengthError, MacspecError, ModelLoadError, ModelNotFoundError
from macspec.worker.protocol import (
    MAX_FRAME,
    EngineInfo,
    EngineOptions,
    EngineStats,
    LoadProgress,
    ProtocolError,
    body_length,
    decode,
    encode,
    error_from_wire,
    error_to_wire,
    read_message,
)
from macspec_models.errors import ModelError, ModelMissingError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), JSON, max_size=5), st.integers(min_value=1, max_value=7))
def test_frames_survive_any_split(values: dict[str, object], step: int) -> None:
    message = {**values, "type": "x"}
    stream = io.BytesIO(encode(message) + encode({"type": "next"}))

    def receive(count: int) -> bytes:
        return stream.read(min(count, step))

    assert read_message(receive) == message
    assert read_message(receive) == {"type": "next"}
    assert read_message(receive) is None


def test_lone_surrogates_survive() -> None:
    message = {"type": "x", "text": "\ud83d"}
    assert decode(encode(message)[4:]) == message


def test_cut_frames_end_the_stream() -> None:
    whole = encode({"type": "x", "text": "hello"})
    for length in range(len(whole)):
        assert read_message(io.BytesIO(whole[:length]).read) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"type": 1}', b"\xff\xfe", b"nonsense"])
def test_other_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(body)


def test_absurd_lengths_are_refused() -> None:
    with pytest.raises(ProtocolError, match="corrupt"):
        body_length(b"\xff\xff\xff\xff")
    with pytest.raises(ProtocolError, match="too long"):
        encode({"type": "x", "text": "a" * (MAX_FRAME + 1)})


@pytest.mark.parametrize(
    "value",
    [
        EngineInfo("m", drafter="d", ladder=(1.0, 2.5)),
        EngineInfo("m", drafter_reason="none fits"),
        EngineStats(rounds=3, uptime=1.5),
        LoadProgress("weights", 1, 2, "file"),
        EngineOptions(model="m", context=7, extra={"a": 1}),
    ],
)
def test_values_survive(value: EngineInfo | EngineStats | LoadProgress | EngineOptions) -> None:
    assert type(value).from_wire(decode(encode({"type": "x", "v": value.to_wire()})[4:])["v"]) == value


def test_errors_survive() -> None:
    error = error_from_wire(error_to_wire(ContextLengthError("Too long.", param="messages")))
    assert isinstance(error, ContextLengthError) and error.message == "Too long." and error.param == "messages"
    foreign = error_from_wire(error_to_wire(ZeroDivisionError("division by zero")))
    assert type(foreign) is MacspecError and "ZeroDivisionError: division by zero" in foreign.message
    model = error_from_wire(error_to_wire(ModelError("The file is cut.")))
    assert isinstance(model, ModelLoadError) and model.message == "The file is cut."
    assert isinstance(error_from_wire(error_to_wire(ModelMissingError("No."))), ModelNotFoundError)
    assert type(error_from_wire({"kind": "os", "message": "x"})) is MacspecError
