"""What the figures of a run say in words: the finding on each split, and what limits it.

Evaluations enter; sentences for the terminal, the page and the model card leave. An interval that
includes zero is never called a gain or a loss. Paper: Results; Methods, "Paired Test Uncertainty".
"""

from __future__ import annotations

from collections.abc import Sequence

from vaiom.baselines.base import BASELINES, PLAIN, SHORTENED
from vaiom.corpus.splits import SEALED, VALIDATION
from vaiom.evaluation.inference import PairedComparison
from vaiom.evaluation.mixture import MixtureReport
from vaiom.evaluation.record import FEW_BLOCKS, Evaluation
from vaiom.evaluation.scores import MODEL
from vaiom.report.contents import RunContents, Split
from vaiom.report.tables import bits, count, percent, percent2, side_of_zero, signed


def verdict(contents: RunContents) -> list[str]:
    """The finding on each test split, or on Validation where none was scored, and its limits.

    These are the sentences at the top of the page and under `vaiom report`.
    """
    findings = [describe(split.evaluation, split.period) for split in contents.judged]
    return findings + limits(contents)


def headline(contents: RunContents) -> str:
    """The finding in a few words: the least favourable comparison of the judged splits decides."""
    worst: tuple[int, float] | None = None
    finding = "Compared with no baseline"
    for split in contents.judged:
        for each in split.evaluation.against:
            side = side_of_zero(each.gain.asset_months.interval)
            rank = (side, each.gain.gain_bits)
            if worst is None or rank < worst:
                worst = rank
                finding = _headline_of(each, side, split.period, _compared(contents))
    return finding


def _headline_of(each: PairedComparison, side: int, period: str, compared: set[str]) -> str:
    """The finding on one baseline, by the side of zero on which the interval of the gain lies.

    A gain over all baselines that were compared names their number, and says "every" only where
    none was left out.
    """
    if side > 0:
        ahead = f"{bits(each.gain.gain_bits)} bits ahead of {each.baseline}"
        num_missing = len(_left_out(compared))
        if not num_missing:
            return f"Better than every baseline, {len(compared)} in all: {ahead}"
        total = len(compared) + num_missing
        return f"Better than {len(compared)} of {total} baselines, the others not fitted: {ahead}"
    start = "Worse than" if side < 0 else "Cannot be told from"
    return f"{start} {each.baseline} on {period}"


def _compared(contents: RunContents) -> set[str]:
    """The baselines that the model was compared with on every judged split."""
    on_each = [{each.baseline for each in split.evaluation.against} for split in contents.judged]
    return set.intersection(*on_each)


def _left_out(compared: set[str]) -> list[str]:
    """The known baselines that the model was not compared with."""
    return [name for name in BASELINES if name not in compared and name not in SHORTENED]


def limits(contents: RunContents) -> list[str]:
    """What the reader must know before believing the findings.

    Whether any test was scored, how the forecast tails came out, whether stronger baselines were
    left out, and how often models were scored on each test of this corpus.
    """
    splits = contents.judged
    last = splits[-1]
    out = []
    if all(split.name == VALIDATION for split in splits):
        selected = "The model was selected on Validation, so these figures flatter it a little."
        out.append(f"No test split was scored. {selected}")
    tails = last.evaluation.calibration.tails
    both = next(tail for tail in tails if tail.outcome == "both")
    shares = f"{percent(both.observed)} of the events where {percent(both.predicted)} was forecast"
    out.append(f"On {last.period} returns ended in a tail in {shares}.")
    compared = _compared(contents)
    missing = _left_out(compared)
    if compared <= set(PLAIN):
        out.append(
            "The model was compared with the simplest baselines only: `vaiom baselines` fits "
            "stronger ones."
        )
    elif missing:
        out.append(f"Not compared with {', '.join(missing)}: `vaiom baselines` fits them.")
    looks = _count_looks(splits)
    if looks:
        out.append(f"Looks at Test on this corpus, these included: {', '.join(looks)}.")
    return out


def _count_looks(splits: Sequence[Split]) -> list[str]:
    """How often each split was scored, where looks are counted."""
    looks = []
    for split in splits:
        name = "the sealed interval" if split.name == SEALED else split.period
        times = split.evaluation.looks
        if times:
            looks.append(f"{name} once" if times == 1 else f"{name} {times} times")
    return looks


def describe(result: Evaluation, period: str, who: str = "the model") -> str:
    """The finding on a period in a sentence or two.

    `who` is the judged predictor in words. The strongest baseline is named with the interval of the
    gain over it; then how many baselines were beaten beyond chance.
    """
    where = f"On {period} ({result.split}, {count(result.num_events)} events)"
    start = f"{where} {who} needs {bits(result.bits[MODEL])} bits per event"
    ranked = sorted(result.against, key=lambda each: each.gain.gain_bits)
    if not ranked:
        return f"{start}. It was compared with no baseline."
    sentence = f"{start}, {_compare_with_strongest(ranked[0])}."
    if len(ranked) == 1 or ranked[0].gain.asset_months.interval is None:
        return sentence
    sides = [side_of_zero(each.gain.asset_months.interval) for each in ranked]
    beaten = sides.count(1)
    lost = sides.count(-1)
    share = f"all {len(ranked)}" if beaten == len(ranked) else f"{beaten} of {len(ranked)}"
    sentence += f" By intervals that exclude zero it beats {share} baselines"
    if lost:
        sentence += f" and loses to {lost}"
    return f"{sentence}."


def _compare_with_strongest(each: PairedComparison) -> str:
    """How far the model is from the strongest baseline, and whether that may be chance.

    The interval over asset-months decides; where that over whole months includes zero, it is told.
    """
    gain = each.gain.gain_bits
    pairs = each.gain.asset_months
    months = each.gain.months.interval
    fewer = "fewer" if gain > 0 else "more"
    amount = f"{bits(abs(gain))} {fewer} than {each.baseline}, the strongest baseline"
    if pairs.interval is None:
        return (
            f"{amount}; there is a single block, so no interval can be given and the "
            f"difference may be chance"
        )
    low, high = pairs.interval
    within = f"gain {signed(gain)}, 95% interval {signed(low)} to {signed(high)}"
    if pairs.num_blocks <= FEW_BLOCKS:
        within += f" over {pairs.num_blocks} asset-months only, a rough width"
    if side_of_zero(pairs.interval) == 0:
        return f"{amount}, but the interval includes zero ({within}): the two cannot be told apart"
    if months is not None and side_of_zero(months) == 0:
        wide = f"({signed(months[0])} to {signed(months[1])})"
        return f"{amount} ({within}); with whole months as blocks the interval includes zero {wide}"
    return f"{amount} ({within})" if gain > 0 else f"{amount} ({within}): the baseline is better"


def notes_of(result: Evaluation) -> list[str]:
    """What limits the figures of an evaluation, a sentence each.

    Its caveats, the predictors that no other has beaten, what the bars of other assets are worth,
    and the share of returns that are no events.
    """
    notes = [*result.caveats]
    found = result.confidence_set
    if found:
        notes.append(
            f"The {1 - found.size:.0%} model confidence set, the predictors that no other has "
            f"beaten: {', '.join(found.included)}."
        )
    if result.bits_alone is not None:
        loss = signed(result.bits_alone - result.bits[MODEL])
        notes.append(
            f"Without the bars of other assets the model has {bits(result.bits_alone)} bits "
            f"({loss})."
        )
    notes.append(
        f"Every figure is conditional on a non-zero next return: {percent2(result.zero_share)} of "
        f"the next returns in this split were exactly zero and are no events."
    )
    return notes


def describe_states(mixture: MixtureReport) -> str:
    """How the latent states of a mixture are used, in words."""
    return (
        f"{mixture.effective_states:.2f} of {len(mixture.mean_weight)} latent states are in "
        f"effective use; knowing the state would add {bits(mixture.separation_bits)} bits per "
        f"event. The heaviest state stays from one event of an asset to the next in "
        f"{percent(mixture.persistence)} of the cases, against "
        f"{percent(mixture.persistence_if_independent)} if it were drawn anew. "
        f"Measured on {count(mixture.num_events)} events; the numbers of states mean nothing "
        f"across runs."
    )
