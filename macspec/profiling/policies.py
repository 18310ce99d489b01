"""Depth rules for a loaded engine: finds or measures the pair's ladder, loads and keeps what was learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from macspec.errors import ModelLoadError
from macspec.machine import Machine, State, describe, state
from macspec.profiling.conditions import doubtful, warnings
from macspec.profiling.identity import identity
from macspec.profiling.measure import Meter
from macspec.profiling.store import Profile, ProfileStore
from macspec.scheduler.cost import CostModel
from macspec.scheduler.dscale import LengthPredictor
from macspec.scheduler.interface import LOOKUP, DepthPolicy
from macspec.scheduler.policies import make_policy, needs_cost
from macspec.scheduler.store import load_survival, save_survival
from macspec.scheduler.survival import Prior, SurvivalModel
from macspec_models.drafters.block import DFlashDrafter
from macspec_models.drafters.combined import CombinedDrafter, without_lookup

#: Prompt lookup reports chances it has already settled against what came.
LOOKUP_PRIOR = Prior(1.0, 0.0)

#: Called with a stage, the amount done and the amount in all.
Progress = Callable[[str, int, int], None]
#: Called with one sentence for the person.
Say = Callable[[str], None]


def attach(engine: Any, **options: Any) -> PolicyMaker:
    """Let an engine's depth rules use this machine's measured ladder and what was learned before.

    Args:
        options: of `PolicyMaker`.

    Returns:
        The maker; call its `save` when the engine closes, `prepare` to measure before the first request.
    """
    maker = PolicyMaker(engine, **options)
    engine.make_policy = maker
    return maker


class PolicyMaker:
    """Makes depth rules by name; see `attach`.

    Nothing is measured until a rule that weighs costs is asked for, or `prepare` is called.

    Args:
        engine: needs ``target`` and ``drafter``.
        store: where profiles are kept; None takes the user's cache directory.
        say: gets one sentence when something is measured, and the warnings.
    """

    def __init__(
        self,
        engine: Any,
        *,
        store: ProfileStore | None = None,
        progress: Progress | None = None,
        say: Say | None = None,
        machine: Machine | None = None,
        condition: Callable[[], State] = state,
    ) -> None:
        self.engine = engine
        self.store = store or ProfileStore()
        self._progress = progress or (lambda stage, done, total: None)
        self._say = say or (lambda sentence: None)
        self._machine = machine or describe()
        self._condition = condition
        self._profile: Profile | None = None
        self._cost: CostModel | None = None
        self._learned: dict[str, SurvivalModel] = {}

    def __call__(self, name: str) -> DepthPolicy:
        """The rule called ``name``; see `macspec.scheduler.make_policy` for the errors."""
        if self.engine.drafter is None:
            return make_policy(name)
        if name == "dscale":
            return make_policy(name, predictor=self._predictor())
        return make_policy(name, self.cost(), survival=self._table) if needs_cost(name) else make_policy(name)

    @property
    def ladder_ms(self) -> tuple[float, ...]:
        """Milliseconds by row count at the shortest context measured, empty before `prepare`."""
        return () if self._profile is None else self._profile.ladder.verify[0]

    def cost(self) -> CostModel:
        """The cost model all rules share."""
        if self._cost is None:
            self._cost = CostModel(self.prepare().ladder)
        return self._cost

    def prepare(self, *, again: bool = False) -> Profile:
        """The pair's profile, measured if need be; ``again`` measures in any case.

        An interrupted measurement raises what interrupted it and leaves the stored profile as it was.
        """
        if self._profile is not None and not again:
            return self._profile
        before = self._condition()
        key = identity(self.engine, self._machine, before)
        stored, why = (None, "") if again else self.store.load(key)
        if stored is not None and stored.doubtful and not doubtful(self._machine, before):
            stored, why = None, "The stored profile was measured on a busy or hot machine."
        if stored is None:
            if why:
                self._say(f"{why} Measuring it takes a few seconds.")
            stored = self._measure(key, before)
        self._profile = stored
        self._cost = None
        drafter = self.engine.drafter
        if isinstance(drafter, CombinedDrafter):
            drafter.choice.draft_share = stored.ladder.draft[0] / stored.ladder.verify[0][0]
        return stored

    def _measure(self, key: dict[str, Any], before: State) -> Profile:
        meter = Meter(
            self.engine.target,
            self.engine.drafter,
            progress=lambda done, total: self._progress("measuring verification", done, total),
        )
        library = getattr(self.engine, "library", None)
        # A kernel that fails meanwhile is given up, and everything is measured again without it.
        ladder = meter.ladder() if library is None else library.guard(meter.ladder, lambda: None)
        after = self._condition()
        found = tuple(warnings(self._machine, before, after))
        profile = Profile(ladder, key, self.store.now(), doubtful(self._machine, before, after), found)
        self.store.save(profile)
        for sentence in found:
            self._say(sentence)
        return profile

    def _table(self, source: str) -> SurvivalModel:
        if source not in self._learned:
            model = SurvivalModel(LOOKUP_PRIOR if source == LOOKUP else None)
            load_survival(self.store.survival_path(self.prepare().identity, source), model)
            self._learned[source] = model
        return self._learned[source]

    def _predictor(self) -> LengthPredictor | None:
        """The pair's length predictor, with the drafter set to feed it; None where the drafter cannot have one."""
        drafter = without_lookup(self.engine.drafter)
        if type(drafter) is not DFlashDrafter or drafter.folder is None:
            return None
        from macspec_models.training.predictor import FILE, input_count
        from macspec_models.training.predictor_command import feature_map

        predictor = LengthPredictor.load(drafter.folder / FILE)
        if predictor.slots != drafter.max_depth or predictor.inputs != input_count(drafter.max_depth):
            raise ModelLoadError(
                f"The length predictor {drafter.folder / FILE} was trained for blocks of {predictor.slots} draft "
                f"tokens, not {drafter.max_depth}; train it again with macspec train predictor."
            )
        drafter.feature_map = feature_map(drafter, self.engine.target)
        return predictor

    def save(self) -> None:
        """Keep what was learned; call it when the engine closes. Two processes that learned at once both count."""
        if self._profile is None:
            return
        for source, model in self._learned.items():
            save_survival(self.store.survival_path(self._profile.identity, source), model)
        if self._cost is not None and self._cost.suspect:
            self.store.mark_stale(self._profile.identity)
