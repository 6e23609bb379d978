"""What the figures say, in sentences that are computed from them; no kinder than they are.

Enters: the contents of a run. Leaves: a paragraph, and the standing remarks on what figures of this kind mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from vaiom.evaluation.evaluate import Against
from vaiom.events.splits import SEALED
from vaiom.report.contents import RunContents, Split
from vaiom.report.numbers import bits, count, percent, signed

_PLAIN_BASELINES = frozenset({"frequency", "markov"})

MEANING = (
    (
        "Every figure is conditional on a non-zero next return.",
        "Events whose next return was exactly zero are left out by their outcome; their share stands with the data "
        "quality. A forecast says what the return is like if there is one.",
    ),
    (
        "Likelihood is not profit.",
        "A gain in bits says that outcomes were more probable than the baseline thought. It knows no spread, no "
        "cost, no position and no fill.",
    ),
    (
        "One bar ahead, nothing further.",
        "Each forecast is of the next bar's return over its own scale. Longer horizons do not follow from it.",
    ),
    (
        "One asset at a time.",
        "There is no joint law across assets: nothing here says how two of them move together.",
    ),
    (
        "Asset-month intervals treat the pairs of a month as independent.",
        "Pairs that share a currency are not. The month-clustered interval allows for that, from few blocks; where the "
        "two disagree, believe the wider.",
    ),
    (
        "Intervals hold the trained model fixed.",
        "They measure the chance of the sample. Another seed would give another model; only several seeds together "
        "show by how much.",
    ),
)
"""What the figures do and do not mean."""


def verdict(contents: RunContents) -> list[str]:
    """The paragraphs below the title: what was found, and what limits it."""
    tests = [split for split in contents.splits if split.is_test]
    said = [_finding(split) for split in (tests or contents.splits)]
    if not tests:
        said.append(
            "No test split was scored. The model was selected on Validation, so these figures flatter it a little."
        )
    return [*said, *_limits(contents, tests or contents.splits)]


def _finding(split: Split) -> str:
    found = split.evaluation
    ranked = sorted(found.against, key=lambda each: each.gain.gain_bits)
    start = (
        f"On {split.period} ({split.name}, {count(found.num_events)} events) the model needs "
        f"{bits(found.bits['model'])} bits per event"
    )
    if not ranked:
        return f"{start}. No baseline stood beside it."
    best = ranked[0]
    sentence = f"{start}, {_against(best)}."
    if len(ranked) > 1:
        beaten = sum(_beats(each) for each in ranked)
        lost = sum(_loses(each) for each in ranked)
        share = f"all {len(ranked)} baselines" if beaten == len(ranked) else f"{beaten} of {len(ranked)} baselines"
        sentence += f" It beats {share} by an interval that excludes zero{f', and loses to {lost} so' if lost else ''}."
    return sentence


def _against(each: Against) -> str:
    gain, pair = each.gain.gain_bits, each.gain.asset_months.interval
    amount = f"{bits(abs(gain))} {'fewer' if gain > 0 else 'more'} than {each.baseline}, the strongest baseline"
    if pair is None:
        return f"{amount}; there is a single block, so no interval can be given and the difference may be chance"
    within = f"gain {signed(gain)}, 95% interval {signed(pair[0])} to {signed(pair[1])}"
    if pair[0] <= 0 <= pair[1]:
        return f"{amount}, but the interval includes zero ({within}): the two cannot be told apart"
    months = each.gain.months.interval
    if months is not None and months[0] <= 0 <= months[1]:
        return (
            f"{amount} ({within}); with whole months as blocks the interval includes zero "
            f"({signed(months[0])} to {signed(months[1])})"
        )
    return f"{amount} ({within})" if gain > 0 else f"{amount} ({within}): the baseline is better"


def _beats(each: Against) -> bool:
    pair = each.gain.asset_months.interval
    return pair is not None and pair[0] > 0


def _loses(each: Against) -> bool:
    pair = each.gain.asset_months.interval
    return pair is not None and pair[1] < 0


def _limits(contents: RunContents, splits: Sequence[Split]) -> list[str]:
    out = []
    last = splits[-1].evaluation
    both = next(tail for tail in last.calibration.tails if tail.outcome == "both")
    out.append(
        f"On {splits[-1].period} returns ended in a tail in {percent(both.observed)} of the events where "
        f"{percent(both.predicted)} was forecast."
    )
    if {each.baseline for each in last.against} <= _PLAIN_BASELINES:
        out.append("Only the simplest baselines stood beside the model: `vaiom baselines` fits stronger ones.")
    looks = {_called(split): split.evaluation.looks for split in splits if split.evaluation.looks is not None}
    if looks:
        each = ", ".join(f"{what} {'once' if times == 1 else f'{times} times'}" for what, times in looks.items())
        out.append(f"Looks at Test on this corpus, these included: {each}.")
    return out


def _called(split: Split) -> str:
    return "the sealed interval" if split.name == SEALED else split.period
