"""Proof (e): every number of an evaluation is recomputed; both computations agree, and no changed one escapes."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vaiom.audit import plain
from vaiom.audit.forecasts import Forecasts, Shape, clipped, forecast_figures
from vaiom.audit.proof import PASSED, Claim, Proof
from vaiom.audit.recompute import compare_figures, figures_of, prove_figures
from vaiom.audit.states import state_figures
from vaiom.evaluation.backtests import forecast_tails, tail_tests
from vaiom.evaluation.calibration import calibrate, score_groups
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.events_file import ScoredEvents
from vaiom.evaluation.inference import compare, confidence_set, summarise_seeds
from vaiom.evaluation.mixture import mixture_report
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import bits_by_group, clip_probabilities
from vaiom.events.corpus import open_corpus
from vaiom.events.distribution import ReturnDistributions
from vaiom.events.fit import fit_shape
from vaiom.report.page import write_report
from vaiom.run import Run

EDGES = np.array([-np.inf, -3, -2, -1.5, -1, -0.7, -0.4, -0.2, 0, 0.2, 0.4, 0.7, 1, 1.5, 2, 3, np.inf])
ELSEWHERE = ("seed", "step", "looks")
"""Numbers of the file that are no figures of events: proof (f) holds them to checkpoint and ledger."""


@pytest.fixture(scope="module")
def reported(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run with another seed beside it on Validation, and a page."""
    folder = tmp_path_factory.mktemp("reported") / "place"
    shutil.copytree(finished, folder)
    corpus = open_corpus(folder / "corpus")
    evaluate_run(folder / "seed29", corpus, "validation", device="cpu")
    evaluate_run(folder / "seed17", corpus, "validation", device="cpu", other_seeds=[folder / "seed29"])
    write_report(folder / "seed17", corpus=folder / "corpus")
    return folder


@pytest.fixture
def spoiled(reported: Path, tmp_path: Path) -> Path:
    """A copy to be spoiled, whose runs lie beside each other elsewhere than they were evaluated."""
    shutil.copytree(reported, tmp_path / "spoiled")
    return tmp_path / "spoiled"


@pytest.fixture
def all_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vaiom.audit.proof.MAX_FINDINGS", 10**6)


def proof_of(place: Path, model: ModelPredictor | None = None, **words: Any) -> Proof:
    run = place / "seed17"
    model = model or ModelPredictor.load(Run(run).best, "cpu")
    return prove_figures(run, open_corpus(place / "corpus"), model, **words)


def keep_only(place: Path, split: str) -> Path:
    """One evaluation is enough, and quicker."""
    for file in (place / "seed17").glob("evaluation-*.json"):
        if file.stem != f"evaluation-{split}":
            file.unlink()
    Run(place / "seed17").report.unlink()
    return place / "seed17" / f"evaluation-{split}.json"


def changed(value: Any, path: str, paths: list[str]) -> Any:
    """The same with every number a little larger, and the paths of these."""
    if isinstance(value, dict):
        return {key: each if key in ELSEWHERE else changed(each, f"{path}.{key}", paths) for key, each in value.items()}
    if isinstance(value, list):
        return [changed(each, f"{path}[{index}]", paths) for index, each in enumerate(value)]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    paths.append(path)
    return value + 1 if isinstance(value, int) else value + 1e-6


def test_what_was_left_alone_passes_in_full(reported: Path) -> None:
    proof = proof_of(reported)
    assert proof.findings == []
    assert proof.verdict == PASSED
    assert not any("not recomputed" in note for note in proof.notes)


@pytest.mark.parametrize("split", ["validation", "test-h2"])
def test_no_number_of_an_evaluation_can_be_changed(spoiled: Path, split: str, all_findings: None) -> None:
    """All at once: each must be named. Validation has the seeds, the last test all tests together."""
    file = spoiled / "seed17" / f"evaluation-{split}.json"
    stored = json.loads(file.read_text())
    assert stored["seeds" if split == "validation" else "all_tests"]
    assert stored["confidence_set"]
    assert stored["mixture"]
    Run(spoiled / "seed17").report.unlink()
    paths: list[str] = []
    file.write_text(json.dumps(changed(stored, split, paths)))
    found = {finding.split(":")[0] for finding in proof_of(spoiled).findings}
    assert set(paths) - found == set()
    assert len(paths) > 1_500


def test_the_sample_is_counted_right_and_no_predictor_is_added(spoiled: Path) -> None:
    file = keep_only(spoiled, "validation")
    stored = json.loads(file.read_text())
    stored["sample"]["num_months"] += 1
    stored["bits"]["oracle"] = 3.0
    file.write_text(json.dumps(stored))
    (sample, name) = sorted(proof_of(spoiled).findings)
    assert sample.startswith("validation.sample.num_months: the file says 3")
    assert name.startswith("validation: the file names")


def test_events_that_are_not_in_the_corpus_are_found(spoiled: Path) -> None:
    keep_only(spoiled, "validation")
    file = spoiled / "seed17/events-validation.parquet"
    pl.read_parquet(file).with_columns(pl.col("target_time").dt.offset_by("13m")).write_parquet(file)
    assert any("events that the corpus does not have" in finding for finding in proof_of(spoiled).findings)


class Elsewhere(ModelPredictor):
    """The same model on a machine that rounds otherwise, so much that ranks change."""

    def predict_proba(self, corpus: Any, rows: Any) -> Any:
        probs = super().predict_proba(corpus, rows)
        return probs * (1 + 1e-3 * np.sin(np.arange(probs.size)).reshape(probs.shape))


def test_another_machine_holds_means_to_its_own_difference(spoiled: Path) -> None:
    file = keep_only(spoiled, "validation")
    model = Elsewhere.load(Run(spoiled / "seed17").best, "cpu")
    proof = proof_of(spoiled, model)
    assert proof.findings == []
    assert "not recomputed: PIT and its tests" in proof.notes[0]
    stored = json.loads(file.read_text())
    stored["calibration"]["overall"]["brier"] += 1e-2
    stored["calibration_by"]["hour"][3]["entropy_bits"] -= 1e-2
    file.write_text(json.dumps(stored))
    assert proof_of(spoiled, model).num_findings == 2


def test_what_is_left_out_is_named(reported: Path, spoiled: Path) -> None:
    file = keep_only(spoiled, "validation")
    file.write_text(file.read_text().replace(str(reported / "seed29"), "/nowhere/gone"))
    proof = proof_of(spoiled, rescore=10)
    assert proof.findings == []
    seeds, forecasts, page = proof.notes
    assert "not recomputed: seeds (this split of the run has no scored events" in seeds
    assert "not recomputed: the PIT" in forecasts
    assert page == "the run has no report.html (vaiom report)"


def test_the_page_shows_what_the_files_say(spoiled: Path) -> None:
    page = Run(spoiled / "seed17").report
    bits = json.loads((spoiled / "seed17/evaluation-test-h1.json").read_text())["bits"]["model"]
    text = page.read_text()
    assert f"{bits:.4f}" in text
    page.write_text(text.replace(f">{bits:.4f}<", f">{bits - 0.1:.4f}<"))
    (finding,) = proof_of(spoiled).findings
    assert finding.startswith("report.html shows another table, or none: test-h1")


def random_events(rng: np.random.Generator, count: int, num_assets: int, num_months: int) -> ScoredEvents:
    hours = np.sort(rng.integers(0, 24 * 30 * num_months, count))
    return ScoredEvents(
        symbols=np.array(["XAUUSD", "EURUSD", "USDJPY"])[rng.integers(0, num_assets, count)],
        target_times=np.datetime64("2024-07-01T00", "s") + hours * np.timedelta64(1, "h"),
        buckets=rng.integers(1, 17, count).astype(np.uint8),
        bits={name: rng.gamma(4, 0.8, count) for name in ("model", "frequency", "markov")},
    )


def agree(ours: Any, theirs: Any) -> int:
    proof = Proof(claim=Claim("", ""))
    compare_figures(proof, ours, json.loads(json.dumps(theirs)), "")
    assert proof.findings == []
    return proof.count


SIZES = (st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 3), st.integers(1, 4))


@settings(max_examples=15)
@given(*SIZES)
def test_both_computations_from_bits_agree(seed: int, count: int, num_assets: int, num_months: int) -> None:
    events = random_events(np.random.default_rng(seed), count, num_assets, num_months)
    labels = {
        "asset": events.symbols,
        "month": events.target_times.astype("datetime64[M]"),
        "hour": events.target_times.astype("datetime64[h]").astype(np.int64) % 24,
        "bucket": events.buckets,
    }
    stored = {
        "num_events": len(events),
        "bits": {name: float(losses.mean()) for name, losses in events.bits.items()},
        "against": [asdict(each) for each in compare(events)],
        "by": {name: [asdict(each) for each in bits_by_group(events.bits, values)] for name, values in labels.items()},
    }
    ours = {name: value for name, value in figures_of(events).items() if name in stored}
    assert agree(ours, stored) > 60
    found = confidence_set(events.bits, events.target_times)
    if found is not None:
        agree(plain.confidence_set(events), asdict(found))
    blocks = plain.blocks_of(events.bits["model"], plain.months_of(events), events.symbols)
    if len(blocks) > 1:
        numbers = {key: number for number, key in enumerate(blocks)}
        block_of = [numbers[key] for key in zip(plain.months_of(events), events.symbols, strict=True)]
        runs = {"a": events.bits["model"], "b": events.bits["markov"]}
        stored = {"frequency": asdict(summarise_seeds(runs, events.bits["frequency"], np.array(block_of)))}
        agree({"frequency": plain.seeds(events, runs)["frequency"]}, stored)


@settings(max_examples=15)
@given(*SIZES, st.sampled_from([0.05, 1.0, 20.0]))
def test_both_computations_from_forecasts_agree(
    seed: int, count: int, num_assets: int, num_months: int, evenness: float
) -> None:
    rng = np.random.default_rng(seed)
    events = random_events(rng, count, num_assets, num_months)
    events.symbols.sort()
    probs = rng.dirichlet(np.full(16, evenness), count)
    inside = np.clip(EDGES, -5, 5)
    z_next = rng.uniform(inside[events.buckets - 1], inside[events.buckets])
    sigma = rng.uniform(1e-5, 1e-2, count)
    fitted = fit_shape(EDGES, 4 * rng.standard_t(3, int(rng.integers(1, 3_000))))
    hours = np.array(plain.hours_of(events))
    served = ReturnDistributions(probs=clip_probabilities(probs), sigma=sigma, shape=fitted)
    pit, tails = served.cdf(z_next * sigma), forecast_tails(served, z_next * sigma)
    groups = {"asset": events.symbols, "hour": hours}
    stored = {
        "calibration": asdict(calibrate(probs, events.buckets, pit)),
        "calibration_by": {
            name: [asdict(each) for each in score_groups(probs, events.buckets, pit, labels)]
            for name, labels in groups.items()
        },
        "backtests": [asdict(each) for each in tail_tests(tails, events.symbols)],
        "backtests_by": {
            name: [asdict(each) for each in tail_tests(tails, events.symbols, labels)]
            for name, labels in groups.items()
        },
    }
    forecasts = Forecasts(
        shares=[clipped(each) for each in probs.tolist()],
        buckets=events.buckets.tolist(),
        z_next=z_next.tolist(),
        symbols=events.symbols.tolist(),
    )
    shape = Shape(
        knots=fitted.knots.tolist(),
        lower=(fitted.lower.scale, fitted.lower.shape),
        upper=(fitted.upper.scale, fitted.upper.shape),
    )
    named = {name: labels.tolist() for name, labels in groups.items()}
    assert agree(forecast_figures(forecasts, shape, named), stored) > 200


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 4))
def test_both_computations_of_states_agree(seed: int, count: int, num_states: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(num_states), count)
    components = rng.dirichlet(np.ones(16), (count, num_states))
    assets = np.sort(rng.integers(0, 2, count))
    ours = state_figures(weights.tolist(), components.tolist(), assets.tolist())
    agree(ours, asdict(mixture_report(weights, components, assets)))
