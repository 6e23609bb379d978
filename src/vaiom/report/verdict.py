"""What the figures say, in sentences that are computed from them; no kinder than they are."""

from __future__ import annotations

from vaiom.evaluation.inference import PairedComparison
from vaiom.events.splits import SEALED
from vaiom.report.contents import RunContents, Split
from vaiom.report.tables import bits, count, percent, side_of_zero, signed

_PLAIN_BASELINES = frozenset({"frequency", "markov"})


def verdict(contents: RunContents) -> list[str]:
    """What was found, and what limits it."""
    return [*findings(contents), *limits(contents)]


def findings(contents: RunContents) -> list[str]:
    """A sentence per test split, or on Validation where no test was scored."""
    return [_describe_split(split) for split in contents.judged]


def limits(contents: RunContents) -> list[str]:
    """What the reader must know before believing the findings."""
    splits, out = contents.judged, []
    if not any(split.is_test for split in splits):
        out.append(
            "No test split was scored. The model was selected on Validation, so these figures flatter it a little."
        )
    last = splits[-1].evaluation
    both = next(tail for tail in last.calibration.tails if tail.outcome == "both")
    out.append(
        f"On {splits[-1].period} returns ended in a tail in {percent(both.observed)} of the events where "
        f"{percent(both.predicted)} was forecast."
    )
    if {each.baseline for each in last.against} <= _PLAIN_BASELINES:
        out.append("The model was compared with the simplest baselines only: `vaiom baselines` fits stronger ones.")
    looks = [
        ("the sealed interval " if split.name == SEALED else f"{split.period} ")
        + ("once" if times == 1 else f"{times} times")
        for split in splits
        if (times := split.evaluation.looks) is not None
    ]
    if looks:
        out.append(f"Looks at Test on this corpus, these included: {', '.join(looks)}.")
    return out


def _describe_split(split: Split) -> str:
    found = split.evaluation
    ranked = sorted(found.against, key=lambda each: each.gain.gain_bits)
    start = (
        f"On {split.period} ({split.name}, {count(found.num_events)} events) the model needs "
        f"{bits(found.bits['model'])} bits per event"
    )
    if not ranked:
        return f"{start}. It was compared with no baseline."
    sentence = f"{start}, {_compare_with_strongest(ranked[0])}."
    if len(ranked) > 1:
        sides = [side_of_zero(each.gain.asset_months.interval) for each in ranked]
        beaten, lost = sides.count(1), sides.count(-1)
        share = f"all {len(ranked)} baselines" if beaten == len(ranked) else f"{beaten} of {len(ranked)} baselines"
        sentence += f" It beats {share} by an interval that excludes zero{f', and loses to {lost} so' if lost else ''}."
    return sentence


def _compare_with_strongest(each: PairedComparison) -> str:
    gain, pair, months = each.gain.gain_bits, each.gain.asset_months.interval, each.gain.months.interval
    amount = f"{bits(abs(gain))} {'fewer' if gain > 0 else 'more'} than {each.baseline}, the strongest baseline"
    if pair is None:
        return f"{amount}; there is a single block, so no interval can be given and the difference may be chance"
    within = f"gain {signed(gain)}, 95% interval {signed(pair[0])} to {signed(pair[1])}"
    if side_of_zero(pair) == 0:
        return f"{amount}, but the interval includes zero ({within}): the two cannot be told apart"
    if months is not None and side_of_zero(months) == 0:
        return (
            f"{amount} ({within}); with whole months as blocks the interval includes zero "
            f"({signed(months[0])} to {signed(months[1])})"
        )
    return f"{amount} ({within})" if gain > 0 else f"{amount} ({within}): the baseline is better"
