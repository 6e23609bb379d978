"""The protocol moved year by year: one test year proves little, many show whether the gain is a rule.

For a test year Y, Train ends with Y-2, the first half of Y-1 is buffer, its second half Validation, and Y itself the
test. Buckets, zero shares and baselines are fitted anew on each year's Train.

Enters: a corpus and a year. Leaves: the corpus under that year's boundaries; bits and paired gains on the year.
Paper: Methods, "Corpus Construction and Split Protocol", shifted; the paper itself has one test year.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from vaiom.baselines.base import Predictor
from vaiom.baselines.counts import Frequency, Markov
from vaiom.baselines.store import fit_or_load
from vaiom.evaluation.events_file import score_events
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import losses_of
from vaiom.events.corpus import Corpus
from vaiom.events.splits import SplitConfig
from vaiom.experiments.records import SplitScores
from vaiom.run import Run

MIN_TRAIN_YEARS = 3
MAX_YEARS = 9
"""The last ones are taken."""
TREE_EVENTS = 300_000
"""Train events that the trees see each year."""
TREES = "lightgbm"
TEST = "test-h1"


def splits_of(year: int) -> SplitConfig:
    """The boundaries whose test is the whole of `year`."""
    start, end = datetime(year, 1, 1), datetime(year + 1, 1, 1)
    return SplitConfig(
        train_end=datetime(year - 1, 1, 1),
        validation=(datetime(year - 1, 7, 1), start),
        tests=((start, end),),
        seal=end,
    )


def years_of(corpus: Corpus) -> list[int]:
    """The last whole years before the corpus's own tests that have enough years of Train before them."""
    # Most assets, not the oldest one, must be there from the start of Train.
    begins = sorted(corpus.timestamps[rows.start].item() for rows in corpus.asset_slices.values())
    usual: datetime = begins[len(begins) // 2]
    end = min(corpus.splits.validation[1], corpus.timestamps.max().item())
    years = [
        year
        for year in range(usual.year, end.year + 1)
        if datetime(year - 1 - MIN_TRAIN_YEARS, 1, 1) >= usual and datetime(year, 12, 31) <= end
    ]
    return years[-MAX_YEARS:]


def score_year(corpus: Corpus, run: Path, device: str, trees: Path | None) -> SplitScores:
    """The run's best checkpoint beside baselines of the year's Train; `trees`: where fits of trees are kept, if any."""
    model = ModelPredictor.load(Run(run).best, device)
    context = model.checkpoint.model.config.history
    rows = corpus.endpoints(TEST, context)
    predictors: list[Predictor] = [model, Frequency(), Markov()]
    if trees:
        from vaiom.baselines.lightgbm import LightGBM, TreeConfig

        chosen = LightGBM(TREES, TreeConfig(max_events=TREE_EVENTS))
        predictors.append(fit_or_load(chosen, corpus, context, trees))
    return SplitScores.of_events(score_events(corpus, rows, losses_of(predictors, corpus, rows, context)))
