"""The verdict is no kinder than the figures."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from judged_runs import BASELINES, Judged

from evaluation.simulated_market import TINY_SPLITS
from vaiom.baselines.base import BASELINES as KNOWN
from vaiom.baselines.base import usual_baselines
from vaiom.evaluation.inference import BlockBootstrap, Interval, PairedComparison
from vaiom.report.contents import RunContents, period_label, period_of, read_run
from vaiom.report.verdict import headline, limits, verdict


def with_gains(
    judged: Judged,
    gains: dict[str, tuple[float, Interval | None, Interval | None]],
    num_blocks: int = 66,
) -> RunContents:
    """The run's contents on one test split with other gains, asset-month and month intervals."""
    contents = read_run(judged.run)
    split = next(each for each in contents.splits if each.name == "test-h1")
    one = split.evaluation.against[0]

    def blocks(like: BlockBootstrap, pair: Interval | None) -> BlockBootstrap:
        return replace(like, interval=pair, num_blocks=1 if pair is None else num_blocks)

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
        (
            0.02,
            (0.01, 0.03),
            (-0.005, 0.04),
            "with whole months as blocks the interval includes zero",
            "told apart",
        ),
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


@pytest.mark.parametrize(("num_blocks", "told"), [(2, True), (6, True), (7, False)])
def test_an_interval_over_few_blocks_says_so(judged: Judged, num_blocks: int, told: bool) -> None:
    said = verdict(with_gains(judged, {"tree": (0.02, (0.01, 0.03), None)}, num_blocks))[0]
    assert (
        f"+0.0100 to +0.0300 over {num_blocks} asset-months only, a rough width)" in said
    ) is told


def test_where_there_is_no_interval_none_is_counted(judged: Judged) -> None:
    said = verdict(with_gains(judged, {"tree": (0.02, None, None), "even": (0.03, None, None)}))[0]
    assert said.endswith("the difference may be chance.")


def test_the_strongest_is_named_and_the_others_counted(judged: Judged) -> None:
    sure = (0.05, 0.2)
    said = verdict(
        with_gains(
            judged,
            {
                "weak": (0.1, sure, sure),
                "even": (0.0, (-1, 1), None),
                "strong": (-0.1, (-0.2, -0.05), None),
            },
        )
    )[0]
    assert "more than strong, the strongest baseline" in said
    assert "By intervals that exclude zero it beats 1 of 3 baselines and loses to 1." in said
    assert (
        "beats all 2 baselines"
        in verdict(with_gains(judged, {"a": (0.1, sure, sure), "b": (0.1, sure, sure)}))[0]
    )


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
        (
            {"tree": (0.02, (0.01, 0.03), None), "plain": (0.1, (0.05, 0.2), None)},
            "Better than 2 of 17 baselines, the others not fitted: 0.0200",
        ),
        (
            {"tree": (0.02, (-0.01, 0.03), None), "plain": (0.1, (0.05, 0.2), None)},
            "Cannot be told from tree on",
        ),
        (
            {"tree": (-0.02, (-0.03, -0.01), None), "plain": (0.1, (0.05, 0.2), None)},
            "Worse than tree on",
        ),
        (
            dict.fromkeys(KNOWN, (0.02, (0.01, 0.03), None)),
            f"Better than every baseline, {len(KNOWN)} in all: 0.0200",
        ),
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
        ("2025-01-02", "2025-07-01", "2025-01-02 to 2025-06-30"),
        ("2025-01-01", "2025-07-02", "2025-01-01 to 2025-07-01"),
        ("2025-01-01T01:00", "2025-07-01T01:00", "2025-01-01 to 2025-07-01"),
        ("2025-07-01", "2026-07-01", "2025-07-01 to 2026-06-30"),
        ("2025-01-01", "2027-01-01", "2025-01-01 to 2026-12-31"),
        ("2025-01-01", "2026-07-01", "2025-01-01 to 2026-06-30"),
    ],
)
def test_a_period_is_named_as_people_write_it(start: str, end: str, says: str) -> None:
    assert period_label(datetime.fromisoformat(start), datetime.fromisoformat(end)) == says


def test_a_short_period_stands_beside_the_name_of_its_split(judged: Judged) -> None:
    split = read_run(judged.run).splits[1]
    assert (split.period, split.title, split.label) == (
        *("2024-01-10 to 2024-01-19", "test-h1", "test-h1 (2024-01-10 to 2024-01-19)"),
    )
    assert replace(split, period="2025H1").title == "test-h1, 2025H1"
    assert period_of(TINY_SPLITS, "validation") == "2023-12-20 to 2024-01-09"
    assert period_of(TINY_SPLITS, "test-h2") == "2024-01-20 to 2024-02-02"
    assert period_of(TINY_SPLITS, "sealed") == "2024-02-03 and later"


def test_the_reader_is_told_of_tails_looks_and_simple_baselines(
    judged: Judged, lonely: Judged
) -> None:
    contents = read_run(judged.run)
    tail, missing, looks = limits(contents)
    both = contents.splits[-1].evaluation.calibration.tails[2]
    assert tail == (
        f"On 2024-01-20 to 2024-02-02 returns ended in a tail in {100 * both.observed:.1f}% of "
        f"the events where "
        f"{100 * both.predicted:.1f}% was forecast."
    )
    left_out = [name for name in usual_baselines() if name not in BASELINES]
    assert missing.startswith("Not compared with ")
    assert missing.endswith(": `vaiom baselines` fits them.")
    assert set(left_out) <= set(missing.replace(":", ",").replace(",", " ").split())
    periods = "2024-01-10 to 2024-01-19 once, 2024-01-20 to 2024-02-02 once"
    assert looks == f"Looks at Test on this corpus, these included: {periods}."
    alone = read_run(lonely.run)
    [split] = alone.splits
    sealed = replace(split, evaluation=replace(split.evaluation, split="sealed", looks=3))
    _, simple, looks = limits(replace(alone, splits=[sealed]))
    assert (
        simple == "The model was compared with the simplest baselines only: `vaiom baselines` fits "
        "stronger ones."
    )
    assert looks == "Looks at Test on this corpus, these included: the sealed interval 3 times."
    nothing = replace(split, evaluation=replace(split.evaluation, against=[]))
    said = verdict(replace(alone, splits=[nothing]))[0]
    assert said.endswith("bits per event. It was compared with no baseline.")


def test_of_several_splits_the_least_favourable_makes_the_title(judged: Judged) -> None:
    good = with_gains(judged, {"tree": (0.02, (0.01, 0.03), None)}).splits[0]
    worse = with_gains(judged, {"tree": (0.01, (0.005, 0.03), None)}).splits[0]
    bad = with_gains(judged, {"tree": (0.1, (-0.01, 0.3), None)}).splits[0]
    contents = read_run(judged.run)
    assert (
        headline(replace(contents, splits=[good, worse]))
        == "Better than 1 of 16 baselines, the others not fitted: 0.0100 bits ahead of tree"
    )
    second = replace(bad, period="2025H2")
    assert (
        headline(replace(contents, splits=[good, second, worse]))
        == "Cannot be told from tree on 2025H2"
    )
