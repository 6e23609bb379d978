"""Walk-forward evaluation: the splits move from year to year, and everything is fitted anew.

Enters: a corpus. Leaves: the years that it can be tested on, the splits of a year, and the losses
of a run and of baselines in it.
Not in the paper: its split of one year, repeated for others.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from vaiom.baselines.base import Predictor
from vaiom.baselines.counts import Frequency, Markov
from vaiom.baselines.stored_losses import fit_or_load
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import ScoredEvents, losses_of, score_events
from vaiom.run import Run

MIN_TRAIN_YEARS = 3
MAX_YEARS = 9
"""The last years are taken, where there are more."""
TREE_EVENTS = 300_000
"""Train events that the trees see each year."""
TREES = "lightgbm"
TEST = "test-h1"


def splits_of(year: int) -> SplitConfig:
    """The paper's splits moved to test `year` as a whole: Train ends a year before it, and
    Validation is the second half of the year between them.
    """
    train_end = datetime(year - 1, 1, 1)
    test_start = datetime(year, 1, 1)
    test_end = datetime(year + 1, 1, 1)
    return SplitConfig(
        train_end=train_end,
        validation=(datetime(year - 1, 7, 1), test_start),
        tests=((test_start, test_end),),
        seal=test_end,
    )


def years_of(corpus: Corpus) -> list[int]:
    """The last whole years before the corpus's own tests with enough years of Train before them.

    Train counts from the median of the assets' first bars: one old asset makes no old years.
    """
    starts = sorted(corpus.timestamps[rows.start].item() for rows in corpus.asset_slices.values())
    start: datetime = starts[len(starts) // 2]
    end = min(corpus.splits.validation[1], corpus.timestamps.max().item())
    years = []
    for year in range(start.year, end.year + 1):
        first_train_year = datetime(year - 1 - MIN_TRAIN_YEARS, 1, 1)
        if first_train_year >= start and datetime(year, 12, 31) <= end:
            years.append(year)
    return years[-MAX_YEARS:]


def score_year(corpus: Corpus, run: Path, device: str, trees: Path | None = None) -> ScoredEvents:
    """Losses of a run and of baselines in the test year of a corpus under `splits_of`.

    Trees are fitted where a folder for them is named, and stored in it.
    """
    model = ModelPredictor.load(Run(run).best, device)
    context = model.checkpoint.config.history
    predictors: list[Predictor] = [model, Frequency(), Markov()]
    if trees:
        from vaiom.baselines.lightgbm import LightGBM, TreeConfig

        unfitted = LightGBM(TREES, TreeConfig(max_events=TREE_EVENTS))
        predictors.append(fit_or_load(unfitted, corpus, context, trees))
    rows = corpus.endpoints(TEST, context)
    return score_events(corpus, rows, losses_of(predictors, corpus, rows, context))
