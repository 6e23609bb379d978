"""The paper's tables of Validation bits as data, and which experiment each of their rows is.

Enters: nothing. Leaves: `COMPARISONS`. Rows without a published figure are ours: the paper says that they are missing.
Paper: Results and Appendices A, C and D; every table is named by its label there.
"""

from __future__ import annotations

from dataclasses import dataclass

SEEDS = (17, 29, 43)
MAIN = "main"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run of a table."""

    label: str
    experiment: str
    steps: int
    """The optimizer steps of the published figure."""
    bits: float | None = None
    """Published Validation bits per event."""
    timeframe: str = "1h"
    against: str | None = None
    """The label of the row that it is compared with."""
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
    name: str, experiment: str, reference: int, published: dict[int, float], timeframe: str = "1h"
) -> tuple[Row, ...]:
    """Checkpoints of one run, each beside the reference step."""

    def label(steps: int) -> str:
        return f"{name} at {steps:,}"

    return tuple(
        Row(
            label=label(steps),
            experiment=experiment,
            steps=steps,
            bits=bits,
            against=None if steps == reference else label(reference),
            timeframe=timeframe,
            at_step=True,
        )
        for steps, bits in published.items()
    )


COMPARISONS = (
    Comparison(
        name="inputs",
        title="Continuous input versus discrete input",
        label="tab:discin_contin",
        rows=(
            Row(label="1D DiscIn", experiment="disc-no-aux-last-10k", steps=10_000, bits=3.1743, timeframe="1d"),
            Row(
                label="1D pure ContIn",
                experiment="cont-no-aux-last-10k",
                steps=10_000,
                bits=3.1649,
                timeframe="1d",
                against="1D DiscIn",
            ),
            Row(label="1H DiscIn", experiment="disc-last-50k", steps=50_000, bits=3.1633),
            Row(label="1H pure ContIn", experiment="cont-last-50k", steps=50_000, bits=3.1536, against="1H DiscIn"),
        ),
    ),
    Comparison(
        name="matched",
        title="The same fields as numbers and as buckets",
        label="",
        rows=(
            Row(label="DiscIn, matched fields", experiment="matched-disc", steps=5_500),
            Row(
                label="ContIn, matched fields",
                experiment="matched-cont",
                steps=5_500,
                against="DiscIn, matched fields",
            ),
        ),
        note="The field-matched comparison that the paper says is missing: calendar, mask_any, return, gap and "
        "volatility regime, once as numbers and once as buckets, without metadata; FullSeq, all heads.",
    ),
    Comparison(
        name="metadata",
        title="Metadata augmentation of the continuous-input model",
        label="tab:contin_meta",
        rows=(
            Row(label="Pure ContIn", experiment="cont", steps=5_500, bits=3.1488),
            Row(label="HybridContIn", experiment="main", steps=5_500, bits=3.1465, against="Pure ContIn"),
        ),
    ),
    Comparison(
        name="supervision",
        title="Last-position versus full-sequence supervision",
        label="tab:supervision",
        rows=(
            Row(label="Last position, 50K", experiment="cont-last-50k", steps=50_000, bits=3.1536),
            Row(
                label="Last position, 300K",
                experiment="cont-0.9m-last-300k",
                steps=300_000,
                bits=3.1542,
                against="Last position, 50K",
            ),
            Row(
                label="Full sequence, 5K",
                experiment="cont",
                steps=5_000,
                bits=3.1515,
                against="Last position, 50K",
                at_step=True,
            ),
            Row(label="Full sequence, 5.5K", experiment="cont", steps=5_500, bits=3.1488, against="Last position, 50K"),
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
            Row(label="DiscIn, none", experiment="disc-no-aux-last-45k", steps=45_000, bits=3.1658),
            Row(label="DiscIn, Gap", experiment="disc-gap-last-45k", steps=45_000, bits=3.1648, against="DiscIn, none"),
            Row(
                label="DiscIn, VolReg",
                experiment="disc-vol-regime-last-45k",
                steps=45_000,
                bits=3.1659,
                against="DiscIn, none",
            ),
        ),
    ),
    Comparison(
        name="ordinal",
        title="The ordinal head over Gap and VolReg, and its weight",
        label="tab:aux_ablation, tab:app_hyper_ablations",
        rows=(
            Row(label="5M, no Ordinal", experiment="disc-5m-gap-vol-last-400k", steps=180_000, bits=3.1719),
            Row(
                label="5M, weight 0.05",
                experiment="disc-5m-ordinal-0.05-last-180k",
                steps=180_000,
                bits=3.1695,
                against="5M, no Ordinal",
            ),
            Row(
                label="5M, weight 0.1",
                experiment="disc-5m-last-180k",
                steps=180_000,
                bits=3.1673,
                against="5M, no Ordinal",
            ),
        ),
        num_seeds=1,
    ),
    Comparison(
        name="components",
        title="One component less, under the main model's own supervision",
        label="",
        rows=(
            Row(label="main", experiment="main", steps=5_500),
            Row(label="no Gap", experiment="main-no-gap", steps=5_500, against="main"),
            Row(label="no VolReg", experiment="main-no-vol-regime", steps=5_500, against="main"),
            Row(label="no Ordinal", experiment="main-no-ordinal", steps=5_500, against="main"),
            Row(label="no auxiliary", experiment="main-no-aux", steps=5_500, against="main"),
            Row(label="independent head", experiment="main-independent", steps=5_500, against="main"),
        ),
        note="The paper's component deltas come from single seeds of DiscIn at the last position and lie near its seed "
        "noise; these are HybridContIn, FullSeq, several seeds.",
    ),
    Comparison(
        name="heads",
        title="MoMS versus independent categorical head",
        label="tab:moms_vs_indep",
        rows=(
            Row(label="1H ContIn, independent", experiment="cont-independent-10k", steps=10_000, bits=3.1651),
            Row(
                label="1H ContIn, MoMS",
                experiment="cont-20k",
                steps=10_000,
                bits=3.1563,
                against="1H ContIn, independent",
            ),
            Row(
                label="4H DiscIn, independent",
                experiment="disc-5m-gap-vol-independent-last-30k",
                steps=30_000,
                bits=3.1887,
                timeframe="4h",
            ),
            Row(
                label="4H DiscIn, MoMS",
                experiment="disc-5m-gap-vol-last-30k",
                steps=30_000,
                bits=3.1834,
                timeframe="4h",
                against="4H DiscIn, independent",
            ),
        ),
        num_seeds=1,
    ),
    Comparison(
        name="rungs",
        title="Complete rungs and corpus support",
        label="tab:data_capacity",
        rows=(
            Row(label="0.9M", experiment="cont-0.9m-last-300k", steps=300_000, bits=3.1542),
            Row(label="5M", experiment="cont-5m-last-300k", steps=300_000, bits=3.1580, against="0.9M"),
            Row(label="15M", experiment="cont-15m-last-300k", steps=300_000, bits=3.1607, against="0.9M"),
        ),
        num_seeds=1,
        note="A larger rung is supported by the corpus only where it improves on the next smaller one.",
    ),
    Comparison(
        name="states",
        title="MoMS state count",
        label="tab:app_hyper_ablations",
        rows=(
            Row(label="4 states", experiment="disc-5m-last-180k", steps=180_000, bits=3.1673),
            Row(
                label="8 states",
                experiment="disc-5m-states-8-last-180k",
                steps=180_000,
                bits=3.1707,
                against="4 states",
            ),
            Row(
                label="16 states",
                experiment="disc-5m-states-16-last-180k",
                steps=180_000,
                bits=3.1659,
                against="4 states",
            ),
        ),
        num_seeds=1,
    ),
    Comparison(
        name="context",
        title="Context length",
        label="tab:app_hyper_ablations",
        rows=(
            Row(label="512 bars", experiment="disc-5m-gap-vol-last-400k", steps=300_000, bits=3.1631),
            Row(
                label="1,024 bars",
                experiment="disc-5m-gap-vol-1024-last-300k",
                steps=175_000,
                bits=3.1604,
                against="512 bars",
            ),
            Row(
                label="1,024 bars at 250,000",
                experiment="disc-5m-gap-vol-1024-last-300k",
                steps=250_000,
                bits=3.1691,
                against="1,024 bars",
                at_step=True,
            ),
            Row(
                label="1,024 bars at 300,000",
                experiment="disc-5m-gap-vol-1024-last-300k",
                steps=300_000,
                bits=3.1663,
                against="1,024 bars",
                at_step=True,
            ),
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
            Row(
                label="0.9M ContIn, no auxiliary",
                experiment="cont-no-aux-last-10k",
                steps=10_000,
                bits=3.1649,
                timeframe="1d",
            ),
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
            Row(label="1D ContIn", experiment="cont-no-aux-last-10k", steps=10_000, bits=3.1649, timeframe="1d"),
            Row(label="4H DiscIn", experiment="disc-5m-gap-vol-last-30k", steps=30_000, bits=3.1834, timeframe="4h"),
            Row(label="1H ContIn", experiment="cont", steps=5_500, bits=3.1488),
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
                label="0.9M at 50,000",
                experiment="cont-0.9m-last-100k",
                steps=50_000,
                bits=3.1889,
                timeframe="10min",
                against="5M at 50,000",
                at_step=True,
            ),
            Row(
                label="0.9M at 100,000",
                experiment="cont-0.9m-last-100k",
                steps=100_000,
                bits=3.1829,
                timeframe="10min",
                against="0.9M at 50,000",
                at_step=True,
            ),
        ),
        num_seeds=1,
    ),
)
