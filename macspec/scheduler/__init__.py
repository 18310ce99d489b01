"""Chooses how deep each round verifies. Pure Python: nothing here imports MLX."""

from macspec.scheduler.cost import CostModel
from macspec.scheduler.ladder import Ladder, LadderError
from macspec.scheduler.policies import POLICIES, make_policy
from macspec.scheduler.survival import SurvivalModel

__all__ = ["POLICIES", "CostModel", "Ladder", "LadderError", "SurvivalModel", "make_policy"]
