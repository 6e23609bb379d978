"""The quick baselines on real hourly bars, against figures that were computed independently of this
package.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from vaiom.baselines.base import baseline
from vaiom.corpus.build import build_corpus
from vaiom.evaluation.scores import event_bits


@pytest.mark.slow
def test_real_bars_give_the_known_figures(shared_data: Path, tmp_path: Path) -> None:
    corpus = build_corpus(shared_data / "bars_1h", tmp_path / "corpus")
    train, rows = corpus.endpoints("train"), corpus.endpoints("validation")

    def bits(name: str) -> float:
        probs = baseline(name).fit(corpus, train).predict_proba(corpus, rows)
        return float(event_bits(probs, corpus.target_return[rows]).mean())

    assert (len(train), len(rows)) == (1_128_594, 33_878)
    assert bits("frequency") == pytest.approx(3.2776, abs=1e-4)
    assert bits("markov") == pytest.approx(3.2693, abs=1e-4)
    # No independent figures: these only have to know more than Frequency does.
    assert bits("hour_of_week") < bits("garch_t") < bits("frequency")
