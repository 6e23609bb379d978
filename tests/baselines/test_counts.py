"""Frequency, Markov and hours of the week against counting by hand, on the corpus of a small
simulated market.
"""

from __future__ import annotations

import math
from collections import Counter
from datetime import timedelta

import numpy as np
import pytest
from small_fits import with_columns

from vaiom.baselines.base import Baseline
from vaiom.baselines.counts import (
    PRIOR_WEIGHTS,
    Frequency,
    HourOfWeek,
    Markov,
    hour_of_week,
    log_evidence,
)
from vaiom.corpus.store import Corpus


def test_frequency_is_the_smoothed_share_of_train(corpus: Corpus) -> None:
    rows = corpus.endpoints("train")
    counts = Counter(corpus.target_return[rows].tolist())
    expected = [(counts[bucket] + 1) / (len(rows) + 16) for bucket in range(1, 17)]
    events = corpus.endpoints("validation")
    probs = Frequency().fit(corpus, rows).predict_proba(corpus, events)
    np.testing.assert_allclose(probs, np.tile(expected, (len(events), 1)), rtol=1e-14)


def test_markov_is_the_smoothed_share_after_the_rows_own_bucket(corpus: Corpus) -> None:
    rows = corpus.endpoints("train")
    pairs = Counter(
        zip(corpus.disc[rows, 0].tolist(), corpus.target_return[rows].tolist(), strict=True)
    )
    # Every row of the corpus, so that masked rows ask for the distribution of a missing bucket.
    events = np.arange(len(corpus))
    probs = Markov().fit(corpus, rows).predict_proba(corpus, events)
    for row in (*range(0, len(corpus), 997), *np.flatnonzero(corpus.mask_any)[:5].tolist()):
        now = int(corpus.disc[row, 0])
        total = sum(pairs[now, bucket] for bucket in range(1, 17))
        expected = [(pairs[now, bucket] + 1) / (total + 16) for bucket in range(1, 17)]
        np.testing.assert_allclose(probs[row], expected, rtol=1e-14)


@pytest.mark.parametrize("kind", [Frequency, Markov])
def test_targets_outside_the_fitted_rows_do_not_matter(
    corpus: Corpus, kind: type[Baseline]
) -> None:
    rows = corpus.endpoints("train")
    one = kind().fit(corpus, rows[:500]).predict_proba(corpus, rows)
    two = kind().fit(corpus, rows).predict_proba(corpus, rows)
    assert not np.array_equal(one, two)
    for probs in (one, two):
        assert probs.shape == (len(rows), 16)
        assert (probs > 0).all()
        np.testing.assert_allclose(probs.sum(axis=1), 1.0)


def test_hours_of_the_week_are_counted_and_drawn_towards_frequency(corpus: Corpus) -> None:
    train = corpus.endpoints("train")
    fit = HourOfWeek().fit(corpus, train)
    centre = Frequency().fit(corpus, train).probs_

    def cell(row: int) -> tuple[int, int, int]:
        moment = corpus.timestamps[row].item()
        return int(corpus.meta[row, 0]), moment.weekday(), moment.hour

    counts = Counter((*cell(row), int(corpus.target_return[row])) for row in train)
    rows = corpus.endpoints("validation")[::157]
    for row, got in zip(rows, fit.predict_proba(corpus, rows), strict=True):
        own = np.array([counts[(*cell(row), bucket)] for bucket in range(1, 17)])
        expected = (own + fit.prior_weight_ * centre) / (own.sum() + fit.prior_weight_)
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_a_pair_never_seen_gets_frequency(corpus: Corpus) -> None:
    first, second = corpus.asset_slices.values()
    train = corpus.endpoints("train")
    train = train[train < first.stop]
    fit = HourOfWeek().fit(corpus, train)
    got = fit.predict_proba(corpus, np.arange(second.start, second.start + 5))
    np.testing.assert_allclose(got, np.tile(Frequency().fit(corpus, train).probs_, (5, 1)))


def test_the_prior_weight_follows_how_much_cells_differ() -> None:
    rng = np.random.default_rng(1)
    centre = np.array([0.5, 0.3, 0.2])
    alike = rng.multinomial(200, centre, size=100).astype(float)
    unlike = np.stack([rng.multinomial(200, rng.dirichlet(8 * centre)) for _ in range(100)]).astype(
        float
    )

    def best(counts: np.ndarray) -> float:
        return max(PRIOR_WEIGHTS, key=lambda weight: log_evidence(counts, weight * centre))

    assert best(unlike) in (4.0, 8.0, 16.0)
    assert best(alike) > 1_000
    assert (PRIOR_WEIGHTS[0], PRIOR_WEIGHTS[-1]) == (0.5, 65_536.0)


def test_the_evidence_of_counts_is_the_product_of_the_urns_draws() -> None:
    prior, counts = (
        np.array([0.7, 1.5, 2.0]),
        np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
    )
    expected = 0.0
    for cell in counts:
        urn = prior.copy()
        for bucket, times in enumerate(cell):
            for _ in range(int(times)):
                expected += math.log(urn[bucket] / urn.sum())
                urn[bucket] += 1
    assert log_evidence(counts, prior) == pytest.approx(expected)


def test_the_clock_of_the_row_decides_its_hour(corpus: Corpus) -> None:
    rows = corpus.endpoints("validation")[:300]
    moments = [stamp.item() for stamp in corpus.timestamps[rows]]
    assert hour_of_week(corpus, rows).tolist() == [
        24 * moment.weekday() + moment.hour for moment in moments
    ]
    fit = HourOfWeek().fit(corpus, corpus.endpoints("train"))
    shifted = with_columns(
        corpus, timestamp=corpus.columns["timestamp"] + int(timedelta(days=7).total_seconds())
    )
    np.testing.assert_array_equal(fit.predict_proba(shifted, rows), fit.predict_proba(corpus, rows))
