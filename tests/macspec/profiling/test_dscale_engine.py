import dataclasses
from pathlib import Path

import numpy as np
import pytest

import macspec_models  # noqa: F401  (loads the fast BLAS before MLX)
from macspec.engine.loop import Engine
from macspec.errors import MacspecError
from macspec.machine import Machine, State
from macspec.profiling.policies import attach
from macspec.profiling.store import ProfileStore
from macspec.request import Round
from macspec_models.checkpoints import load_drafter
from macspec_models.training.predictor import FILE, input_count
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
