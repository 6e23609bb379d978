"""The paper's tables of Validation bits as data, and which experiment each of their rows is.

Enters: nothing. Leaves: `COMPARISONS`. Rows without a published figure are ours: the paper says that they are missing.
Paper: Results and Appendices A, C and D; every table is named by its label there.
"""

from __future__ import annotations

from dataclasses import dataclass

SEEDS = (17, 29, 43)
MAIN, BEST = "main", "best"
JUDGED = (MAIN, BEST)
"""What is scored on the tests."""
MAIN_TIMEFRAME = "1h"


@dataclass(frozen=True)
class Row:
    """One run of a table."""

    label: str
    experiment: str
    steps: int
    """The optimizer steps of the published figure."""
    bits: float | None = None
    """Published Validation bits per event."""
    against: str | None = None
    """The label of the row that it is compared with."""
    timeframe: str = MAIN_TIMEFRAME
    at_step: bool = False
    """Our figure is that of exactly this step; otherwise the best checkpoint up to it stands for the run."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows that belong together, in the order of the paper."""

    name: str
    title: str
    label: str
    """Of the paper's table; empty for ours."""
    rows: tuple[Row, ...]
    num_seeds: int = 3
    note: str = ""


def _sweep(
    name: str, experiment: str, reference: int, published: dict[int, float], timeframe: str = MAIN_TIMEFRAME
) -> tuple[Row, ...]:
    """Checkpoints of one run, each beside the reference step."""

    def label(steps: int) -> str:
        return f"{name} at {steps:,}"

    return tuple(
        Row(label(steps), experiment, steps, bits, None if steps == reference else label(reference), timeframe, True)
        for steps, bits in published.items()
    )


COMPARISONS = (
    Comparison(
        name="inputs",
        title="Continuous input versus discrete input",
        label="tab:discin_contin",
        rows=(
            Row("1D DiscIn", "disc-no-aux-last-10k", 10_000, 3.1743, timeframe="1d"),
            Row("1D pure ContIn", "cont-no-aux-last-10k", 10_000, 3.1649, "1D DiscIn", timeframe="1d"),
            Row("1H DiscIn", "disc-last-50k", 50_000, 3.1633),
            Row("1H pure ContIn", "cont-last-50k", 50_000, 3.1536, "1H DiscIn"),
        ),
    ),
    Comparison(
        name="matched",
        title="The same fields as numbers and as buckets",
        label="",
        rows=(
            Row("DiscIn, matched fields", "matched-disc", 5_500),
            Row("ContIn, matched fields", "matched-cont", 5_500, against="DiscIn, matched fields"),
        ),
        note="The field-matched comparison that the paper says is missing: calendar, mask_any, return, gap and "
        "volatility regime, once as numbers and once as buckets, without metadata; FullSeq, all heads.",
    ),
    Comparison(
        name="metadata",
        title="Metadata augmentation of the continuous-input model",
        label="tab:contin_meta",
        rows=(
            Row("Pure ContIn", "cont", 5_500, 3.1488),
            Row("HybridContIn", "main", 5_500, 3.1465, "Pure ContIn"),
        ),
    ),
    Comparison(
        name="supervision",
        title="Last-position versus full-sequence supervision",
        label="tab:supervision",
        rows=(
            Row("Last position, 50K", "cont-last-50k", 50_000, 3.1536),
            Row("Last position, 300K", "cont-0.9m-last-300k", 300_000, 3.1542, "Last position, 50K"),
            Row("Full sequence, 5K", "cont", 5_000, 3.1515, "Last position, 50K", at_step=True),
            Row("Full sequence, 5.5K", "cont", 5_500, 3.1488, "Last position, 50K"),
        ),
    ),
    Comparison(
        name="sweep",
        title="Pure-ContIn FullSeq checkpoint sweep",
        label="tab:app_fullseq_sweep",
        rows=_sweep(
            "ContIn",
            "cont-20k",
            5_500,
            {
                5_000: 3.1515,
                5_500: 3.1488,
                6_000: 3.1497,
                6_500: 3.1510,
                7_000: 3.1491,
                10_000: 3.1563,
                20_000: 3.2760,
            },
        ),
        num_seeds=1,
    ),
    Comparison(
        name="auxiliary",
        title="Component-level auxiliary-head ablations",
        label="tab:aux_ablation",
        rows=(
            Row("DiscIn, none", "disc-no-aux-last-45k", 45_000, 3.1658),
            Row("DiscIn, Gap", "disc-gap-last-45k", 45_000, 3.1648, "DiscIn, none"),
            Row("DiscIn, VolReg", "disc-vol-regime-last-45k", 45_000, 3.1659, "DiscIn, none"),
        ),
    ),
    Comparison(
        name="ordinal",
        title="The ordinal head over Gap and VolReg, and its weight",
        label="tab:aux_ablation, tab:app_hyper_ablations",
        rows=(
            Row("5M, no Ordinal", "disc-5m-gap-vol-last-400k", 180_000, 3.1719),
            Row("5M, weight 0.05", "disc-5m-ordinal-0.05-last-180k", 180_000, 3.1695, "5M, no Ordinal"),
            Row("5M, weight 0.1", "disc-5m-last-180k", 180_000, 3.1673, "5M, no Ordinal"),
        ),
        num_seeds=1,
    ),
    Comparison(
        name="components",
        title="One component less, under the main model's own supervision",
        label="",
        rows=(
            Row("main", "main", 5_500),
            Row("no Gap", "main-no-gap", 5_500, against="main"),
            Row("no VolReg", "main-no-vol-regime", 5_500, against="main"),
            Row("no Ordinal", "main-no-ordinal", 5_500, against="main"),
            Row("no auxiliary", "main-no-aux", 5_500, against="main"),
            Row("independent head", "main-independent", 5_500, against="main"),
        ),
        note="The paper's component deltas come from single seeds of DiscIn at the last position and lie near its seed "
        "noise; these are HybridContIn, FullSeq, several seeds.",
    ),
    Comparison(
        name="beyond",
        title="What each part of `best` is worth",
        label="",
        rows=(
            Row("main", MAIN, 5_500),
            Row("best", BEST, 6_000, against="main"),
            Row("not mirrored", "best-no-mirror", 6_000, against="best"),
            Row("no extra fields", "best-no-extra", 6_000, against="best"),
            Row("with dates", "best-dates", 6_000, against="best"),
            Row("with auxiliary heads", "best-aux", 6_000, against="best"),
            Row("no layer left out", "best-no-drop-layer", 6_000, against="best"),
            Row("weight decay 0.01", "best-decay-0.01", 6_000, against="best"),
            Row("no averaged weights", "best-no-average", 6_000, against="best"),
        ),
        note="`best` is this project's own model, chosen on Validation alone; one part of it is changed in each row.",
    ),
    Comparison(
        name="heads",
        title="MoMS versus independent categorical head",
        label="tab:moms_vs_indep",
        rows=(
            Row("1H ContIn, independent", "cont-independent-10k", 10_000, 3.1651),
            Row("1H ContIn, MoMS", "cont-20k", 10_000, 3.1563, "1H ContIn, independent"),
            Row("4H DiscIn, independent", "disc-5m-gap-vol-independent-last-30k", 30_000, 3.1887, timeframe="4h"),
            Row(
                "4H DiscIn, MoMS", "disc-5m-gap-vol-last-30k", 30_000, 3.1834, "4H DiscIn, independent", timeframe="4h"
            ),
        ),
        num_seeds=1,
    ),
    Comparison(
        name="rungs",
        title="Complete rungs and corpus support",
        label="tab:data_capacity",
        rows=(
            Row("0.9M", "cont-0.9m-last-300k", 300_000, 3.1542),
            Row("5M", "cont-5m-last-300k", 300_000, 3.1580, "0.9M"),
            Row("15M", "cont-15m-last-300k", 300_000, 3.1607, "0.9M"),
        ),
        num_seeds=1,
        note="A larger rung is supported by the corpus only where it improves on the next smaller one.",
    ),
    Comparison(
        name="states",
        title="MoMS state count",
        label="tab:app_hyper_ablations",
        rows=(
            Row("4 states", "disc-5m-last-180k", 180_000, 3.1673),
            Row("8 states", "disc-5m-states-8-last-180k", 180_000, 3.1707, "4 states"),
            Row("16 states", "disc-5m-states-16-last-180k", 180_000, 3.1659, "4 states"),
        ),
        num_seeds=1,
    ),
    Comparison(
        name="context",
        title="Context length",
        label="tab:app_hyper_ablations",
        rows=(
            Row("512 bars", "disc-5m-gap-vol-last-400k", 300_000, 3.1631),
            Row("1,024 bars", "disc-5m-gap-vol-1024-last-300k", 175_000, 3.1604, "512 bars"),
            Row("1,024 bars at 250,000", "disc-5m-gap-vol-1024-last-300k", 250_000, 3.1691, "1,024 bars", at_step=True),
            Row("1,024 bars at 300,000", "disc-5m-gap-vol-1024-last-300k", 300_000, 3.1663, "1,024 bars", at_step=True),
        ),
        num_seeds=1,
        note="A longer context has fewer events: those without that much history drop out.",
    ),
    Comparison(
        name="trajectory",
        title="Long-horizon 1H checkpoint path",
        label="tab:app_1h_long_trajectory",
        rows=_sweep(
            "5M DiscIn",
            "disc-5m-gap-vol-last-400k",
            300_000,
            {
                50_000: 3.2072,
                75_000: 3.1914,
                100_000: 3.1772,
                125_000: 3.1741,
                150_000: 3.1677,
                180_000: 3.1719,
                250_000: 3.1679,
                300_000: 3.1631,
                350_000: 3.1637,
                400_000: 3.1679,
            },
        ),
        num_seeds=1,
    ),
    Comparison(
        name="daily",
        title="Daily repeated-exposure stress",
        label="tab:app_daily_trajectory, tab:daily_capacity_appendix",
        rows=(
            Row("0.9M ContIn, no auxiliary", "cont-no-aux-last-10k", 10_000, 3.1649, timeframe="1d"),
            *_sweep(
                "5M MoMS",
                "disc-5m-gap-vol-moms-last-200k",
                20_000,
                {20_000: 3.2072, 30_000: 3.3086, 40_000: 3.8671, 200_000: 8.9647},
                timeframe="1d",
            ),
            *_sweep(
                "5M independent",
                "disc-5m-gap-vol-independent-last-200k",
                20_000,
                {20_000: 3.2541, 30_000: 3.4837, 40_000: 4.1994, 200_000: 8.8181},
                timeframe="1d",
            ),
        ),
        num_seeds=1,
    ),
    Comparison(
        name="frequency-path",
        title="Daily to 4H to 1H development path",
        label="tab:app_frequency_path",
        rows=(
            Row("1D ContIn", "cont-no-aux-last-10k", 10_000, 3.1649, timeframe="1d"),
            Row("4H DiscIn", "disc-5m-gap-vol-last-30k", 30_000, 3.1834, timeframe="4h"),
            Row("1H ContIn", "cont", 5_500, 3.1488),
        ),
        num_seeds=1,
        note="Different targets: the paper records a development path, not a comparison.",
    ),
    Comparison(
        name="ten-minute",
        title="Exploratory 10-minute capacity",
        label="tab:app_10min_capacity",
        rows=(
            *_sweep("5M", "cont-5m-last-100k", 50_000, {5_000: 3.2193, 50_000: 3.1922}, timeframe="10min"),
            Row(
                "0.9M at 50,000", "cont-0.9m-last-100k", 50_000, 3.1889, "5M at 50,000", timeframe="10min", at_step=True
            ),
            Row(
                "0.9M at 100,000",
                "cont-0.9m-last-100k",
                100_000,
                3.1829,
                "0.9M at 50,000",
                timeframe="10min",
                at_step=True,
            ),
        ),
        num_seeds=1,
    ),
)
