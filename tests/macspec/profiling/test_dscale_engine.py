import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import macspec_models  # noqa: F401  (loads the fast BLAS before MLX)
from macspec.engine.loop import Engine
from macspec.errors import MacspecError
from macspec.machine import Machine, State
from macspec.profiling.policies import attach
from macspec.profiling.store import ProfileStore
from macspec.request import GenerationRequest, Round, SamplingParams, Text
from macspec.scheduler.dscale import LengthPredictor
from macspec_models import embedded
from macspec_models.checkpoints import load_drafter
from macspec_models.target import Target
from macspec_models.training.predictor import FILE, input_count
from macspec_models.training.predictor_command import fingerprint
from tiny_drafters import write_dflash
from tiny_engine import ask, random_prompt, tiny_target


def engine(folder: Path) -> Engine:
    target = tiny_target(num_hidden_layers=8)
    write_dflash(folder, target.config)
    drafter = load_drafter(folder, target)
    made = Engine(target, drafter)
    attach(made, store=ProfileStore(folder / "profiles"), machine=Machine(system="Linux"), condition=State)
    return made


def test_without_a_predictor_the_sentence_says_how_to_train_one(tmp_path: Path) -> None:
    made = engine(tmp_path)
    with pytest.raises(MacspecError, match="macspec train predictor"):
        list(made.generate(dataclasses.replace(ask((1, 2, 3), depth="auto"), policy="dscale")))


def test_a_predictor_for_other_blocks_is_refused(tmp_path: Path) -> None:
    made = engine(tmp_path)
    zeros = np.zeros((2, input_count(3)), np.float32)
    np.savez(tmp_path / FILE, w1=zeros, b1=np.zeros(2), w2=np.zeros((3, 2)), b2=np.zeros(3), r2=np.float32(0))
    with pytest.raises(MacspecError, match="blocks of 3 draft tokens"):
        list(made.generate(dataclasses.replace(ask((1, 2, 3), depth="auto"), policy="dscale")))


def test_a_drafter_of_another_kind_has_no_predictor(tmp_path: Path) -> None:
    target = tiny_target(num_hidden_layers=8)
    write_dflash(tmp_path, target.config, kind="dspark")
    made = Engine(target, load_drafter(tmp_path, target))
    attach(made, store=ProfileStore(tmp_path / "profiles"), machine=Machine(system="Linux"), condition=State)
    with pytest.raises(MacspecError, match="for a DFlash drafter"):
        list(made.generate(dataclasses.replace(ask((1, 2, 3), depth="auto"), policy="dscale")))


def test_the_network_chooses_the_depth(tmp_path: Path) -> None:
    made = engine(tmp_path)
    assert made.drafter is not None
    slots = made.drafter.max_depth
    inputs = input_count(slots)
    zeros = np.zeros((2, inputs), np.float32)
    bias = np.where(np.arange(slots) < 3, 9.0, -9.0).astype(np.float32)
    np.savez(tmp_path / FILE, w1=zeros, b1=np.zeros(2), w2=np.zeros((slots, 2)), b2=bias, r2=np.float32(0))
    request = ask(random_prompt(9, made.target.vocab_size), depth="auto", max_tokens=20, ignore_eos=True)
    events = list(made.generate(dataclasses.replace(request, policy="dscale")))
    rounds = [event for event in events if isinstance(event, Round)]
    # Three are expected, so three slots are verified, the anchor's among them.
    assert {event.verified for event in rounds if event.drafted == slots} == {2}
    assert all("dscale" in event.reason for event in rounds)


def test_the_embedded_pair_ships_one_for_its_drafter() -> None:
    """Trained for these very weights, and as good on held-out answers as its file says it is."""
    folder = embedded.drafter_folder()
    predictor = LengthPredictor.load(folder / FILE)
    slots = json.loads((folder / "config.json").read_text())["block_size"] - 1
    assert (predictor.slots, predictor.inputs) == (slots, input_count(slots))
    assert predictor.r2 > 0.25
    assert (folder / FILE).stat().st_size < 300_000
    with np.load(folder / FILE) as stored:
        assert str(stored["drafter"]) == fingerprint(folder)


@pytest.mark.model
def test_the_embedded_pair_needs_no_training(smollm: Target, tmp_path: Path) -> None:
    """Depths vary with the text, and the text is plain decoding's."""
    drafter = load_drafter(embedded.drafter_folder(), smollm, head_rows=embedded.frequent_tokens(embedded.HEAD_ROWS))
    made = Engine(smollm, drafter)
    attach(made, store=ProfileStore(tmp_path), machine=Machine(system="Linux"), condition=State)
    prompt = "Write a JSON list of the days of the week."
    request = GenerationRequest(prompt=prompt, sampling=SamplingParams(max_tokens=40))
    events = list(made.generate(dataclasses.replace(request, policy="dscale")))
    rounds = [event for event in events if isinstance(event, Round)]
    whole = [event for event in rounds if event.drafted == drafter.max_depth]
    assert len({event.verified for event in whole}) > 1
    assert all("predicted length" in event.reason for event in whole)
    plain = list(made.generate(dataclasses.replace(request, depth="0")))
    said, expected = ("".join(event.text for event in found if isinstance(event, Text)) for found in (events, plain))
    assert said == expected != ""
