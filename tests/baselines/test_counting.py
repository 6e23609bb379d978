"""Frequency and Markov against counting by hand, on the corpus of a small simulated market."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from vaiom.baselines.base import Baseline
from vaiom.baselines.frequency import Frequency
from vaiom.baselines.markov import Markov
from vaiom.errors import DataError
from vaiom.events.corpus import Corpus


def test_frequency_is_the_smoothed_share_of_train(corpus: Corpus) -> None:
    rows = corpus.endpoints("train")
    counts = Counter(corpus.target_return[rows].tolist())
    expected = [(counts[bucket] + 1) / (len(rows) + 16) for bucket in range(1, 17)]
    events = corpus.endpoints("validation")
    probs = Frequency().fit(corpus, rows).predict_proba(corpus, events)
    np.testing.assert_allclose(probs, np.tile(expected, (len(events), 1)), rtol=1e-14)


def test_markov_is_the_smoothed_share_after_the_rows_own_bucket(corpus: Corpus) -> None:
    rows = corpus.endpoints("train")
    pairs = Counter(zip(corpus.disc[rows, 0].tolist(), corpus.target_return[rows].tolist(), strict=True))
    # Every row of the corpus, so that masked rows ask for the distribution of a missing bucket.
    events = np.arange(len(corpus))
    probs = Markov().fit(corpus, rows).predict_proba(corpus, events)
    for row in (*range(0, len(corpus), 997), *np.flatnonzero(corpus.mask_any)[:5].tolist()):
        now = int(corpus.disc[row, 0])
        total = sum(pairs[now, bucket] for bucket in range(1, 17))
        expected = [(pairs[now, bucket] + 1) / (total + 16) for bucket in range(1, 17)]
        np.testing.assert_allclose(probs[row], expected, rtol=1e-14)


@pytest.mark.parametrize("kind", [Frequency, Markov])
def test_targets_outside_the_fitted_rows_do_not_matter(corpus: Corpus, kind: type[Baseline]) -> None:
    rows = corpus.endpoints("train")
    one = kind().fit(corpus, rows[:500]).predict_proba(corpus, rows)
    two = kind().fit(corpus, rows).predict_proba(corpus, rows)
    assert not np.array_equal(one, two)
    for probs in (one, two):
        assert probs.shape == (len(rows), 16)
        assert (probs > 0).all()
        np.testing.assert_allclose(probs.sum(axis=1), 1.0)


@pytest.mark.parametrize("kind", [Frequency, Markov])
def test_nothing_to_fit_on_is_an_error(corpus: Corpus, kind: type[Baseline]) -> None:
    with pytest.raises(DataError, match="no events to fit on"):
        kind().fit(corpus, np.array([], np.int64))
