"""The verdict is no kinder than the figures."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from judged_runs import Judged

from vaiom.evaluation.inference import BlockBootstrap, Interval, PairedComparison
from vaiom.report.contents import RunContents, period_label, read_run
from vaiom.report.results import headline, verdict


def with_gains(judged: Judged, gains: dict[str, tuple[float, Interval | None, Interval | None]]) -> RunContents:
    """The run's contents on one test split with other gains, asset-month and month intervals."""
    contents = read_run(judged.run)
    split = next(each for each in contents.splits if each.name == "test-h1")
    one = split.evaluation.against[0]

    def blocks(like: BlockBootstrap, pair: Interval | None) -> BlockBootstrap:
        return replace(like, interval=pair)

    against = [
        PairedComparison(
            baseline=name,
            gain=replace(
                one.gain,
                gain_bits=gain,
                asset_months=blocks(one.gain.asset_months, near),
                months=blocks(one.gain.months, wide),
            ),
            diebold_mariano=one.diebold_mariano,
        )
        for name, (gain, near, wide) in gains.items()
    ]
    evaluation = replace(split.evaluation, against=against)
    return replace(contents, splits=[replace(split, evaluation=evaluation)])


@pytest.mark.parametrize(
    ("gain", "near", "wide", "says", "never"),
    [
        (0.02, (0.01, 0.03), (0.005, 0.04), "0.0200 fewer than tree", "zero"),
        (0.02, (0.01, 0.03), (-0.005, 0.04), "with whole months as blocks the interval includes zero", "told apart"),
        (0.02, (-0.01, 0.03), (-0.01, 0.03), "the two cannot be told apart", "better"),
        (-0.02, (-0.03, -0.01), (-0.03, -0.01), "0.0200 more than tree", "fewer"),
        (-0.02, (-0.03, -0.01), (-0.03, -0.01), "the baseline is better", "told apart"),
        (-0.02, (-0.03, 0.01), None, "the two cannot be told apart", "better"),
        (0.02, None, None, "no interval can be given", "better"),
    ],
)
def test_against_the_strongest(
    judged: Judged, gain: float, near: Interval | None, wide: Interval | None, says: str, never: str
) -> None:
    said = verdict(with_gains(judged, {"tree": (gain, near, wide)}))[0]
    assert says in said
    assert never not in said


def test_the_strongest_is_named_and_the_others_counted(judged: Judged) -> None:
    sure = (0.05, 0.2)
    said = verdict(
        with_gains(
            judged, {"weak": (0.1, sure, sure), "even": (0.0, (-1, 1), None), "strong": (-0.1, (-0.2, -0.05), None)}
        )
    )[0]
    assert "more than strong, the strongest baseline" in said
    assert "beats 1 of 3 baselines by an interval that excludes zero, and loses to 1 so" in said
    assert "beats all 2 baselines" in verdict(with_gains(judged, {"a": (0.1, sure, sure), "b": (0.1, sure, sure)}))[0]


def test_validation_alone_is_said_to_flatter(judged: Judged, tmp_path: Path) -> None:
    here = judged.copy_to(tmp_path)
    for split in ("test-h1", "test-h2"):
        (here.run / f"evaluation-{split}.json").unlink()
    said = " ".join(verdict(read_run(here.run)))
    assert "No test split was scored" in said
    assert "Looks at Test" not in said
    assert "No test split was scored" not in " ".join(verdict(read_run(judged.run)))


@pytest.mark.parametrize(
    ("gains", "says"),
    [
        ({"tree": (0.02, (0.01, 0.03), None), "plain": (0.1, (0.05, 0.2), None)}, "Better than every baseline: 0.0200"),
        ({"tree": (0.02, (-0.01, 0.03), None), "plain": (0.1, (0.05, 0.2), None)}, "Cannot be told from tree on"),
        ({"tree": (-0.02, (-0.03, -0.01), None), "plain": (0.1, (0.05, 0.2), None)}, "Worse than tree on"),
        ({}, "Compared with no baseline"),
    ],
)
def test_the_title_says_what_was_found(
    judged: Judged, gains: dict[str, tuple[float, Interval | None, Interval | None]], says: str
) -> None:
    assert headline(with_gains(judged, gains)).startswith(says)


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        ("2025-01-01", "2025-07-01", "2025H1"),
        ("2025-07-01", "2026-01-01", "2025H2"),
        ("2025-01-01", "2026-01-01", "2025"),
        ("2025-04-01", "2025-10-01", "2025-04-01 to 2025-09-30"),
        ("2025-01-01", "2025-01-20", "2025-01-01 to 2025-01-19"),
    ],
)
def test_a_period_is_named_as_people_write_it(start: str, end: str, says: str) -> None:
    assert period_label(datetime.fromisoformat(start), datetime.fromisoformat(end)) == says
