"""What prompt lookup adds to a drafter: answers with both against answers with the drafter alone, depth chosen freely.

    python -m benchmarks.lookup [--prompts 4] [--tokens 96] [--drafter NAME+lookup] [--json FILE]

Both arms share one target and answer every prompt in turn, the order reversed every other time. Greedy, no prefix is
reused, the texts must be equal. Prints the ratio of decode rates (with lookup / alone) per prompt and its geometric
mean per kind of prompt: ``rewrite`` gives back a text or code that the prompt holds, ``chat`` shares no text with it.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import macspec_models  # noqa: F401 (loads a fast BLAS, which must come before MLX)

# isort: split
from macspec.bench.stats import geometric_mean
from macspec.engine.loop import Engine
from macspec.profiling.policies import LOOKUP_PRIOR
from macspec.request import Finished, GenerationRequest, SamplingParams, Text
from macspec.runtime import Runtime
from macspec.scheduler.cost import CostModel
from macspec.scheduler.policies import make_policy
from macspec.scheduler.survival import SurvivalModel
from macspec_models.drafters.combined import CombinedDrafter

_NOTE = (
    "The meeting on Monday was moved to Thursday because the projector is broken. She don't like coffee but she drink "
    "tea every morning before work. The results of the survey shows that most people prefers short messages. The "
    "museum is open from nine to five except on public holidays."
)
_LETTER = (
    "Dear Mr Brown, thank you for your letter of 3 May. We are happy to announce that our new store opens next week "
    "near the station. Please find attached the report that you was asking for. The new policy will be in effect from "
    "next month and all staff must read it. Kind regards, Anna Smith"
)
_CODE = """```python
class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance = self.balance + amount

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance = self.balance - amount
```"""
_ROWS = (
    "name,city,age\nAnna,Berlin,31\nBrian,Dublin,45\nChloe,Paris,27\nDavid,Madrid,52\nElena,Rome,38\nFrank,Vienna,61"
)

#: Prompts by kind.
PROMPTS = {
    "rewrite": (
        f"Correct the grammar and spelling of this text:\n\n{_NOTE}",
        f"Rename the class to BankAccount and print the whole code again:\n\n{_CODE}",
        f"Repeat the following text exactly:\n\n{_LETTER}",
        f"Print this table again and add a row for Greta from Vienna, aged 29:\n\n{_ROWS}",
        f"Add a docstring to every method and print the whole code again:\n\n{_CODE}",
        f"Rewrite this letter with the mistakes corrected:\n\n{_LETTER}",
    ),
    "chat": (
        "Give me some advice about blogging.",
        "What is the capital of France, and what is it known for?",
        "What are common mistakes people make with coffee brewing?",
        "Can you help me plan a birthday party for a friend?",
        "Explain why the sky is blue in a few sentences.",
        "What questions should I ask a doctor about sleep?",
    ),
}


@dataclass
class Answer:
    """One arm's answer to one prompt."""

    tokens: list[int] = field(default_factory=list)
    rate: float = 0.0
    acceptance: float = 0.0
    rounds: Counter[str] = field(default_factory=Counter)

    def row(self) -> dict[str, Any]:
        """JSON values."""
        rounds = dict(self.rounds)
        return {"tok_per_s": round(self.rate, 2), "acceptance_length": round(self.acceptance, 3), "rounds": rounds}


class Arm:
    """An engine that remembers which proposer drafted each round."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sources: Counter[str] = Counter()
        policy = engine.policy(GenerationRequest(prompt="-"))
        observe = policy.observe

        def counted(outcome: Any) -> None:
            self.sources[(outcome.source or "drafter") if outcome.drafted else "plain"] += 1
            observe(outcome)

        policy.observe = counted  # type: ignore[method-assign]  # a recorder of this benchmark only

    def answer(self, text: str, limit: int) -> Answer:
        """Greedy, at most ``limit`` tokens."""
        self.sources.clear()
        found = Answer()
        request = GenerationRequest(
            messages=({"role": "user", "content": text},),
            use_cache=False,
            sampling=SamplingParams(max_tokens=limit),
        )
        for event in self.engine.generate(request):
            if isinstance(event, Text):
                found.tokens += [token.id for token in event.tokens]
            if isinstance(event, Finished):
                found.rate, found.acceptance = event.stats.generation_tps, event.stats.acceptance_length
        found.rounds = Counter(self.sources)
        return found


def fresh(source: str) -> SurvivalModel:
    """A survival table that has seen nothing."""
    return SurvivalModel(LOOKUP_PRIOR if source == "lookup" else None)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=4, help="per kind, at most 6")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--model", help="registry name or folder (default: the embedded model)")
    parser.add_argument("--drafter", help="NAME+lookup (default: the model's own drafter)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    both = Runtime.load(options.model, options.drafter or "+lookup")
    if not isinstance(both.drafter, CombinedDrafter):
        raise SystemExit("The drafter to measure must be NAME+lookup.")
    # One ladder for both, and nothing learned before: else the arms would differ in more than the lookup.
    ladder = both.maker.prepare().ladder
    engines = {"alone": Engine(both.target, both.drafter.model), "lookup": both}
    for engine in engines.values():
        engine.make_policy = lambda name: make_policy(name, CostModel(ladder), survival=fresh)
    arms = {name: Arm(engine) for name, engine in engines.items()}
    for arm in arms.values():
        arm.answer("Say hello.", 16)
    rows = []
    for number in range(options.prompts):
        for kind, texts in PROMPTS.items():
            order = list(arms) if number % 2 == 0 else list(reversed(arms))
            found = {name: arms[name].answer(texts[number], options.tokens) for name in order}
            same = found["alone"].tokens == found["lookup"].tokens
            ratio = found["lookup"].rate / found["alone"].rate
            rows.append(
                {"kind": kind, "ratio": ratio, "same": same, **{name: answer.row() for name, answer in found.items()}}
            )
            print(json.dumps(rows[-1]), flush=True)
    summary = {}
    for kind in PROMPTS:
        ratios = [row["ratio"] for row in rows if row["kind"] == kind]
        summary[kind] = {"ratio": round(geometric_mean(ratios), 3), "least": round(min(ratios), 3)}
    summary["texts_differ"] = sum(not row["same"] for row in rows)
    print(json.dumps(summary))
    if options.json:
        machine = {"system": platform.platform(), "model": both.info()["model"]}
        options.json.write_text(json.dumps({"machine": machine, "summary": summary, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
