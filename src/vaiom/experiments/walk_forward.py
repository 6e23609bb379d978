"""Walk-forward evaluation: the splits move from year to year, and everything is fitted again for
each.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from vaiom.baselines.base import Predictor
from vaiom.baselines.counts import Frequency, Markov
from vaiom.baselines.store import fit_or_load
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import ScoredEvents, losses_of, score_events
from vaiom.run import Run

MIN_TRAIN_YEARS = 3
MAX_YEARS = 9
"""The last ones are taken."""
TREE_EVENTS = 300_000
"""Train events that the trees see each year."""
TREES = "lightgbm"
TEST = "test-h1"


def splits_of(year: int) -> SplitConfig:
    """The splits whose test is the whole of `year`."""
    before, start, end = (datetime(each, 1, 1) for each in (year - 1, year, year + 1))
    selection = (datetime(year - 1, 7, 1), start)
    return SplitConfig(train_end=before, validation=selection, tests=((start, end),), seal=end)


def years_of(corpus: Corpus) -> list[int]:
    """The last whole years before the corpus's own tests that have enough years of Train before
    them.
    """
    # Most assets, not only the oldest, must exist from the start of Train.
    begins = sorted(corpus.timestamps[rows.start].item() for rows in corpus.asset_slices.values())
    usual: datetime = begins[len(begins) // 2]
    end = min(corpus.splits.validation[1], corpus.timestamps.max().item())
    years = [
        year
        for year in range(usual.year, end.year + 1)
        if datetime(year - 1 - MIN_TRAIN_YEARS, 1, 1) >= usual and datetime(year, 12, 31) <= end
    ]
    return years[-MAX_YEARS:]


def score_year(corpus: Corpus, run: Path, device: str, trees: Path | None = None) -> ScoredEvents:
    """The test year of a corpus under `splits_of`: a run and baselines; trees are stored in their
    folder.
    """
    model = ModelPredictor.load(Run(run).best, device)
    context = model.checkpoint.config.history
    predictors: list[Predictor] = [model, Frequency(), Markov()]
    if trees:
        from vaiom.baselines.lightgbm import LightGBM, TreeConfig

        predictors.append(
            fit_or_load(LightGBM(TREES, TreeConfig(max_events=TREE_EVENTS)), corpus, context, trees)
        )
    rows = corpus.endpoints(TEST, context)
    return score_events(corpus, rows, losses_of(predictors, corpus, rows, context))
