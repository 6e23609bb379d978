"""The paper's published figures that are not runs on Validation: the Test tables, the corpus, the rungs.

Enters: nothing. Leaves: figures as data, each named by the label of its table.
Paper: Results, RQ1; Methods, "Complete Capacity Rungs and Corpus Support"; Appendices B, E and F.
"""

from __future__ import annotations

from dataclasses import dataclass

TEST_BITS = {
    "test-h1": {"frequency": 3.2802, "markov": 3.2755, "lightgbm": 3.2057, "model": 3.1764},
    "test-h2": {"frequency": 3.2793, "markov": 3.2683, "lightgbm": 3.1785, "model": 3.1359},
}
VALIDATION_LIGHTGBM = 3.1756
VALIDATION_SEEDS = {17: 3.1465, 29: 3.1525, 43: 3.1450}


@dataclass(frozen=True, kw_only=True)
class PublishedGain:
    """The main model against LightGBM on one test period."""

    bits: float
    gain_bits: float
    interval: tuple[float, float]
    win_rate: float


TEST_SEEDS = {
    "test-h1": {
        17: PublishedGain(bits=3.1764, gain_bits=0.0292, interval=(0.0205, 0.0406), win_rate=0.848485),
        29: PublishedGain(bits=3.1880, gain_bits=0.0177, interval=(0.0088, 0.0284), win_rate=0.712121),
        43: PublishedGain(bits=3.1817, gain_bits=0.0239, interval=(0.0157, 0.0341), win_rate=0.818182),
    },
    "test-h2": {
        17: PublishedGain(bits=3.1359, gain_bits=0.0426, interval=(0.0291, 0.0626), win_rate=0.924242),
        29: PublishedGain(bits=3.1478, gain_bits=0.0307, interval=(0.0183, 0.0490), win_rate=0.833333),
        43: PublishedGain(bits=3.1396, gain_bits=0.0388, interval=(0.0273, 0.0558), win_rate=0.924242),
    },
}
TAILS = {
    "test-h1": {"events": 2_256, "negative": 0.2545, "positive": 0.1940, "both": 0.2251},
    "test-h2": {"events": 2_279, "negative": 0.3509, "positive": 0.2428, "both": 0.3001},
    "all": {"events": 4_535, "negative": 0.3036, "positive": 0.2181, "both": 0.2628},
}


@dataclass(frozen=True, kw_only=True)
class PublishedBlocks:
    events: int
    blocks: int
    interval: tuple[float, float]
    win_rate: float
    win_rate_interval: tuple[float, float]


BOOTSTRAP = {
    "test-h1": PublishedBlocks(
        events=33_068, blocks=66, interval=(0.0205, 0.0406), win_rate=0.848485, win_rate_interval=(0.757576, 0.924242)
    ),
    "test-h2": PublishedBlocks(
        events=33_816, blocks=66, interval=(0.0291, 0.0626), win_rate=0.924242, win_rate_interval=(0.848485, 0.984848)
    ),
    "all": PublishedBlocks(
        events=66_884, blocks=132, interval=(0.0273, 0.0476), win_rate=0.886364, win_rate_interval=(0.825758, 0.939394)
    ),
}
SPLIT_EVENTS = {"train": 1_266_989, "validation": 33_911, "test-h1": 33_068, "test-h2": 33_816}
EDGES = {
    "return": (-1.0085, -0.6241, -0.2697, 0.0118, 0.2833, 0.6362, 1.0206),
    "gap": (-0.6776, -0.3059, 0.0, 0.3195, 0.7012),
}
"""Those inside (-2, 2)."""
ASSETS = {
    "AUDUSD": (140_325, 122_905),
    "EURUSD": (142_744, 126_950),
    "GBPUSD": (142_731, 126_812),
    "NZDUSD": (141_123, 124_213),
    "USDCAD": (141_162, 124_684),
    "USDCNY": (85_008, 70_346),
    "USDHKD": (118_417, 95_594),
    "USDJPY": (142_714, 124_642),
    "USDSGD": (133_072, 113_855),
    "XAGUSD": (135_869, 112_262),
    "XAUUSD": (138_622, 124_726),
}
"""Stored 1H bars and valid Train windows."""
RUNG_PARAMETERS = {"0.9M": (890_086, 824_550), "5M": (4_965_222, 4_834_150), "15M": (14_726_850, 14_530_242)}
"""Total and non-positional."""
TARGET_EXPOSURE = {"Last position, 50K": 6.4e6, "Full sequence, 5.5K": 360e6}
"""Supervised targets seen by two rows of the supervision table."""
