"""Every leaky pipeline is caught by the general proofs, and the honest one passes, on simulated and
on real bars.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import frame_of, price_pairs
from vaiom.auditing.chronology import prove_chronology
from vaiom.auditing.cuts import DAMAGES, damage_after, rare_moments
from vaiom.auditing.pipeline import Pipeline
from vaiom.auditing.proof import PASSED
from vaiom.corpus.splits import TRAIN, VALIDATION
from vaiom.corpus.store import Corpus
from verification.leaks.leaky import (
    AUDIT,
    LEAKS,
    RARE,
    Leak,
    audit_pipeline,
    failed_proofs,
    make_pipeline,
    thinned,
    tied,
)
from verification.leaks.markets import Market


@pytest.mark.parametrize("market", ["simulated", "real"])
def test_the_honest_pipeline_passes(market: str, request: pytest.FixtureRequest) -> None:
    chosen: Market = request.getfixturevalue(market)
    for bars, config in ((chosen.bars, AUDIT), (tied(thinned(chosen.bars)), RARE)):
        proofs = audit_pipeline(make_pipeline(chosen.splits), bars, config)
        assert {proof.name: proof.findings for proof in proofs if proof.verdict != PASSED} == {}
        assert f"{config.cuts} cuts, {len(DAMAGES)} kinds of damage" in proofs[3].notes
    names = ["prices", "lead-lag", "duplicates", "a. future", "b. refit", "c. chronology"]
    assert [proof.name for proof in proofs] == names


@pytest.mark.parametrize("market", ["simulated", "real"])
@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
def test_a_leak_is_caught(leak: Leak, market: str, request: pytest.FixtureRequest) -> None:
    assert leak.caught_by in failed_proofs(request.getfixturevalue(market), leak)


def test_there_is_a_cut_in_every_month(simulated: Market) -> None:
    months = {
        f"in {month}"
        for frame in simulated.bars.values()
        for month in frame["Datetime"].dt.strftime("%Y-%m")
    }
    assert months <= rare_moments(simulated.bars).keys()


class LatePastTrain(Pipeline):
    """One step of many draws a window from later rows."""

    def sampler(self, corpus: Corpus) -> Any:
        honest, later = super().sampler(corpus), self.splits(corpus)[VALIDATION][:16]
        return SimpleNamespace(draw=lambda step: later if step == 4_321 else honest.draw(step))


def test_no_step_of_the_sampler_is_overlooked(simulated: Market) -> None:
    pipeline = make_pipeline(simulated.splits, LatePastTrain)
    found = prove_chronology(pipeline, pipeline.corpus(simulated.bars)).findings
    assert found
    assert all(each.startswith("step 4321: ") for each in found)


class OnceMore(Pipeline):
    """One event is there twice."""

    def splits(self, corpus: Corpus) -> dict[str, np.ndarray]:
        splits = super().splits(corpus)
        return {**splits, TRAIN: np.append(splits[TRAIN], splits[TRAIN][7])}


def test_an_event_that_is_there_twice_is_found(simulated: Market) -> None:
    pipeline = make_pipeline(simulated.splits, OnceMore)
    found = prove_chronology(pipeline, pipeline.corpus(simulated.bars)).findings
    assert found == ["1 events of an asset and a target time are there more than once"]


class NoTest(Pipeline):
    """A test split is left out as a whole."""

    def splits(self, corpus: Corpus) -> dict[str, np.ndarray]:
        return {**super().splits(corpus), "test-h1": np.array([], np.int64)}


def test_a_split_that_is_left_out_is_found(simulated: Market) -> None:
    pipeline = make_pipeline(simulated.splits, NoTest)
    (found,) = prove_chronology(pipeline, pipeline.corpus(simulated.bars)).findings
    assert found.startswith("test-h1 lacks")


@given(
    price_pairs(min_rows=2), st.sampled_from(sorted(DAMAGES)), st.integers(0, 2**32 - 1), st.data()
)
def test_damage_begins_after_the_cut_and_spares_no_bar(
    prices: tuple[np.ndarray, np.ndarray], how: str, seed: int, data: st.DataObject
) -> None:
    bars = frame_of(*prices)
    cut = data.draw(st.integers(0, len(bars) - 2))
    moment = bars["Datetime"].to_numpy()[cut]
    damaged = damage_after({"EURUSD": bars}, moment, how, np.random.default_rng(seed))["EURUSD"]
    assert damaged[: cut + 1].equals(bars[: cut + 1])
    assert damaged["Datetime"].is_sorted()
    kept = (
        damaged[cut + 1 :]
        .join(bars[cut + 1 :], on="Datetime", how="inner")
        .filter(pl.col("Volume") == pl.col("Volume_right"))
    )
    assert how == "shifted" or not len(kept)
