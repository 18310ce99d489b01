"""Every depth rule by its name."""

from __future__ import annotations

from pathlib import Path

from macspec.errors import RequestError
from macspec.scheduler.cost import CostModel
from macspec.scheduler.dscale import DScalePolicy, LengthPredictor
from macspec.scheduler.ewma import EwmaPolicy
from macspec.scheduler.interface import DepthPolicy
from macspec.scheduler.published import AdaEDLPolicy, DCutPolicy, DSparkPolicy, SpecDecPlusPolicy
from macspec.scheduler.rate import RatePolicy, Tables
from macspec.scheduler.simple import FixedPolicy, FullPolicy, PlainPolicy
from macspec.scheduler.survival import SurvivalModel

#: What ``make_policy`` knows; ``fixed:N`` takes a number.
POLICIES = ("rate", "dcut", "dspark", "dscale", "specdec++", "adaedl", "ewma", "plain", "full", "fixed:N")
#: Rules that ``--policy all`` compares.
COMPARED = ("rate", "dcut", "dspark", "specdec++", "adaedl", "ewma", "full", "plain")


def make_policy(
    name: str,
    cost: CostModel | None = None,
    *,
    survival: SurvivalModel | Tables | None = None,
    predictor: LengthPredictor | Path | None = None,
) -> DepthPolicy:
    """The depth rule called ``name``.

    Args:
        cost: prices on this machine; needed by every rule that weighs costs.
        survival: calibration to start from, or a function that gives it by kind of proposer; updated by the rule.
        predictor: DScale's trained network, or its file; only ``dscale`` reads it.

    Raises:
        RequestError: the name is unknown, or the rule needs a cost ladder or a predictor and there is none.
        ModelLoadError: the predictor's file is missing or damaged.
    """
    if name == "plain":
        return PlainPolicy()
    if name == "full":
        return FullPolicy()
    if name.startswith("fixed:"):
        number = name.removeprefix("fixed:")
        if not (number.isascii() and number.isdigit()):
            raise RequestError(
                f"policy is {name!r}; write fixed:N with N draft tokens, such as fixed:4.", param="policy"
            )
        return FixedPolicy(int(number))
    if name == "rate":
        return RatePolicy(_priced(name, cost), survival)
    if name == "dcut":
        return DCutPolicy(_priced(name, cost))
    if name == "dspark":
        return DSparkPolicy(_priced(name, cost))
    if name == "dscale":
        if predictor is None:
            raise RequestError(
                "The policy 'dscale' needs a length predictor, which macspec train predictor makes for a DFlash "
                "drafter, and there is none here; use another policy.",
                param="policy",
            )
        return DScalePolicy(LengthPredictor.load(predictor) if isinstance(predictor, Path) else predictor)
    if name == "specdec++":
        return SpecDecPlusPolicy()
    if name == "adaedl":
        return AdaEDLPolicy()
    if name == "ewma":
        return EwmaPolicy(_priced(name, cost))
    if name in ("oracle", "informed"):
        raise RequestError(
            f"The policy {name!r} knows results in advance and exists only in macspec simulate.", param="policy"
        )
    raise RequestError(f"There is no policy {name!r}; use one of {', '.join(POLICIES)}.", param="policy")


def needs_cost(name: str) -> bool:
    """Whether the rule called ``name`` weighs costs; unknown names are left to `make_policy`."""
    return name in ("rate", "dcut", "dspark", "ewma")


def _priced(name: str, cost: CostModel | None) -> CostModel:
    if cost is None:
        raise RequestError(
            f"The policy {name!r} weighs costs and there is no cost ladder; run macspec profile, or use a fixed depth.",
            param="policy",
        )
    return cost
