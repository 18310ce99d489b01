"""From raw samples to the rows of the report: one per arm and category, plus category ``all``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from macspec.bench import stats
from macspec.bench.notices import Notice, notice
from macspec.bench.quality import Difference, first_difference, is_degenerate
from macspec.bench.samples import Prompt, RoundSample, Sample
from macspec.request import Wire

ALL = "all"
PLAIN = "plain"
#: A repeat this many times slower than the same prompt's other repeats is called an outlier.
OUTLIER_FACTOR = 1.6


@dataclass(frozen=True, slots=True)
class Speculation(Wire):
    """Speculation counters under vLLM's names, with the acceptance rate in both of its meanings.

    ``acceptance_length`` is tokens committed per round, bonus token included. ``acceptance_rate`` is accepted per
    *drafted* token (vLLM's meaning), ``acceptance_rate_verified`` accepted per *verified* token; they differ when
    the depth is cut. ``per_position_acceptance_rates[k]`` is the share of drafts whose first k + 1 tokens were all
    accepted; ``survival[k]`` is the same among rounds that verified that far.
    """

    num_drafts: int = 0
    draft_tokens: int = 0
    verified_tokens: int = 0
    accepted_tokens: int = 0
    acceptance_length: float = 0.0
    acceptance_rate: float | None = None
    acceptance_rate_verified: float | None = None
    per_position_acceptance_rates: tuple[float, ...] = ()
    survival: tuple[float, ...] = ()
    #: ``accepted_histogram[k]`` rounds accepted k draft tokens; ``depth_histogram[d]`` rounds verified d.
    accepted_histogram: tuple[int, ...] = ()
    depth_histogram: tuple[int, ...] = ()
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    other_ms: float = 0.0
    #: Exact mode: near-ties decided again, and the milliseconds that took beside the three above.
    redecided: int = 0
    redecide_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Row(Wire):
    """One line of the report. Rates are None where no answer was fit to be timed."""

    arm: str
    category: str
    #: Geometric mean over prompts of each prompt's median rate, tokens per second after the first round.
    tok_per_s: float | None
    tok_per_s_low: float | None = None
    tok_per_s_high: float | None = None
    tok_per_s_median: float | None = None
    #: Geometric mean over prompts of this arm's rate over the plain arm's on the same prompt.
    ratio_to_plain: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    acceptance_length: float | None = None
    #: Whether every prompt's answer equals the plain arm's; None when nothing could be compared.
    identical: bool | None = None
    identical_prompts: int = 0
    compared_prompts: int = 0
    #: Prompts the rates rest on.
    prompts: int = 0
    first_token_s: float | None = None
    peak_memory: int = 0
    #: Tokens generated per joule over whole answers, prompts included; None without a power source.
    tok_per_joule: float | None = None
    spec_decode: Speculation | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything the report says about the samples."""

    rows: tuple[Row, ...]
    differences: tuple[Difference, ...] = ()
    notices: tuple[Notice, ...] = ()
    #: Prompts left out of every rate because an answer repeats itself.
    excluded: tuple[str, ...] = field(default_factory=tuple)


def analyse(
    samples: Sequence[Sample],
    prompts: Sequence[Prompt],
    arms: Sequence[str],
    baseline: str = PLAIN,
    compared: Collection[str] | None = None,
) -> Analysis:
    """Rows, differences and warnings of a run.

    Args:
        baseline: the arm that ratios and equality refer to.
        compared: arms whose text must equal the baseline's; None means all of them.
    """
    excluded = {s.prompt for s in samples if s.error is None and is_degenerate(s)}
    known = [p for p in prompts if any(s.prompt == p.id for s in samples)]
    categories = list(dict.fromkeys(p.category for p in known))
    own = samples if compared is None else [s for s in samples if s.arm in compared or s.arm == baseline]
    differences, verdicts = _compare_texts(own, baseline)
    rows = []
    for arm in arms:
        own = [s for s in samples if s.arm == arm and s.error is None]
        for category in [*categories, ALL]:
            rows.append(_row(arm, category, own, samples, known, excluded, verdicts, baseline))
    notices = _notices(samples, excluded, differences, rows)
    return Analysis(tuple(rows), tuple(differences), tuple(notices), tuple(sorted(excluded)))


def speculation(rounds: Sequence[RoundSample]) -> Speculation | None:
    """Counters over rounds; None when there were none."""
    if not rounds:
        return None
    drafted = np.array([r.drafted for r in rounds])
    verified = np.array([r.verified for r in rounds])
    accepted = np.array([r.accepted for r in rounds])
    drafts = int((drafted > 0).sum())
    deepest = int(verified.max(initial=0))
    reached = [int((verified >= k).sum()) for k in range(1, deepest + 1)]
    passed = [int((accepted >= k).sum()) for k in range(1, deepest + 1)]
    return Speculation(
        num_drafts=drafts,
        draft_tokens=int(drafted.sum()),
        verified_tokens=int(verified.sum()),
        accepted_tokens=int(accepted.sum()),
        acceptance_length=sum(r.committed for r in rounds) / len(rounds),
        acceptance_rate=float(accepted.sum() / drafted.sum()) if drafted.sum() else None,
        acceptance_rate_verified=float(accepted.sum() / verified.sum()) if verified.sum() else None,
        per_position_acceptance_rates=tuple(p / drafts for p in passed) if drafts else (),
        survival=tuple(p / r for p, r in zip(passed, reached, strict=True)),
        accepted_histogram=tuple(int(n) for n in np.bincount(accepted)),
        depth_histogram=tuple(int(n) for n in np.bincount(verified)),
        draft_ms=float(sum(r.draft_ms for r in rounds)),
        verify_ms=float(sum(r.verify_ms for r in rounds)),
        other_ms=float(sum(r.other_ms for r in rounds)),
        redecided=sum(r.redecided for r in rounds),
        redecide_ms=float(sum(r.redecide_ms for r in rounds)),
    )


def rates_by_prompt(samples: Sequence[Sample], arm: str, excluded: Sequence[str] = ()) -> dict[str, list[float]]:
    """Timed rates of an arm, per prompt in repeat order; prompts without one are absent."""
    found: dict[str, list[float]] = {}
    for sample in sorted((s for s in samples if s.arm == arm), key=lambda s: s.repeat):
        speed = sample.decode_rate
        if speed is not None and sample.prompt not in excluded:
            found.setdefault(sample.prompt, []).append(speed)
    return found


def _row(
    arm: str,
    category: str,
    own: Sequence[Sample],
    samples: Sequence[Sample],
    prompts: Sequence[Prompt],
    excluded: set[str],
    verdicts: dict[tuple[str, str], bool],
    baseline: str,
) -> Row:
    wanted = {p.id for p in prompts if category in (ALL, p.category)}
    mine = [s for s in own if s.prompt in wanted]
    timed = [s for s in mine if s.prompt not in excluded]
    rates = rates_by_prompt(timed, arm)
    base = rates_by_prompt([s for s in samples if s.prompt in wanted and s.prompt not in excluded], baseline)
    shared = [p for p in rates if p in base]
    compared = [verdicts[arm, p] for p in sorted(wanted) if (arm, p) in verdicts]
    ratio = None
    if arm == baseline:
        ratio = stats.Estimate(1.0, count=len(rates)) if rates else None
    elif shared:
        ratio = stats.paired_ratio([base[p] for p in shared], [rates[p] for p in shared])
    speed = stats.rate(list(rates.values())) if rates else None
    spec = speculation([r for s in timed for r in s.rounds])
    first = [s.first_commit_s for s in mine]
    priced = [(s.generation_tokens, s.joules) for s in timed if s.joules is not None]
    joules = sum(energy for _, energy in priced)
    return Row(
        arm=arm,
        category=category,
        tok_per_s=speed.value if speed else None,
        tok_per_s_low=speed.low if speed else None,
        tok_per_s_high=speed.high if speed else None,
        tok_per_s_median=stats.median_rate(list(rates.values())) if rates else None,
        ratio_to_plain=ratio.value if ratio else None,
        ratio_low=ratio.low if ratio else None,
        ratio_high=ratio.high if ratio else None,
        acceptance_length=spec.acceptance_length if spec else None,
        identical=all(compared) if compared else None,
        identical_prompts=sum(compared),
        compared_prompts=len(compared),
        prompts=len(rates),
        first_token_s=float(np.median(first)) if first else None,
        peak_memory=max((s.peak_memory for s in mine), default=0),
        tok_per_joule=sum(tokens for tokens, _ in priced) / joules if joules > 0 else None,
        spec_decode=spec,
    )


def _compare_texts(samples: Sequence[Sample], baseline: str) -> tuple[list[Difference], dict[tuple[str, str], bool]]:
    """Differences from the baseline, first per arm and prompt, and the verdict per arm and prompt.

    Every repeat counts: an arm that answers a prompt differently the second time is not identical either.
    """
    reference: dict[str, Sample] = {}
    for sample in samples:
        if sample.arm == baseline and sample.error is None:
            reference.setdefault(sample.prompt, sample)
    differences: list[Difference] = []
    verdicts: dict[tuple[str, str], bool] = {}
    for sample in samples:
        plain = reference.get(sample.prompt)
        if sample.error is not None or plain is None:
            continue
        key = (sample.arm, sample.prompt)
        difference = first_difference(plain, sample)
        if difference is not None and verdicts.get(key, True):
            differences.append(difference)
        verdicts[key] = verdicts.get(key, True) and difference is None
    return differences, verdicts


def _notices(
    samples: Sequence[Sample], excluded: set[str], differences: Sequence[Difference], rows: Sequence[Row]
) -> list[Notice]:
    found = [notice("degenerate", f"Answers to {p} repeat themselves.", prompt=p) for p in sorted(excluded)]
    short = sorted({s.prompt for s in samples if s.error is None and s.decode_rate is None})
    if short:
        found.append(notice("short_answer", f"Too short to time: answers to {', '.join(short)}."))
    for arm in dict.fromkeys(d.arm for d in differences):
        own = [d for d in differences if d.arm == arm]
        found.append(notice("differs", _describe(own), arm=arm))
    slow = sorted({f"{s.arm} on {s.prompt}" for s in _outliers(samples)})
    if slow:
        shown = ", ".join(slow[:3]) + (f" and {len(slow) - 3} more" if len(slow) > 3 else "")
        found.append(notice("outlier", f"Much slower than its other repeats: {shown}."))
    failed = [s for s in samples if s.error is not None]
    for arm in dict.fromkeys(s.arm for s in failed):
        own_errors = [s for s in failed if s.arm == arm]
        message = f"{arm} gave no answer {len(own_errors)} times; first: {own_errors[0].error}"
        found.append(notice("arm_failed", message, arm=arm))
    if any(r.category == ALL and r.tok_per_s is not None and r.tok_per_s_low is None for r in rows):
        found.append(notice("few_prompts", "Fewer than three prompts were timed; there is no interval."))
    unpriced = sum(s.joules is None for s in samples)
    if 0 < unpriced < len(samples):
        found.append(notice("power", f"The power source said nothing during {unpriced} of {len(samples)} answers."))
    if any(s.thermal_level for s in samples):
        worst = max(s.thermal_level or 0 for s in samples)
        found.append(notice("thermal", f"Thermal pressure reached level {worst} during the run."))
    return found


def _describe(differences: Sequence[Difference]) -> str:
    first = min(differences, key=lambda d: d.position)
    gaps = [abs(d.gap) for d in differences if d.gap is not None]
    told = f", largest logit gap {max(gaps):.3g}" if gaps else ""
    return (
        f"{first.arm}: {len(differences)} prompts answered differently from plain; "
        f"earliest at token {first.position} of {first.prompt}{told}."
    )


def _outliers(samples: Sequence[Sample]) -> list[Sample]:
    groups: dict[tuple[str, str], list[tuple[float, Sample]]] = {}
    for sample in samples:
        speed = sample.decode_rate
        if speed is not None:
            groups.setdefault((sample.arm, sample.prompt), []).append((speed, sample))
    found = []
    for group in groups.values():
        best = max(speed for speed, _ in group)
        found += [sample for speed, sample in group if speed * OUTLIER_FACTOR < best]
    return found
