"""Proofs (e), (h) and (i), step by step: what is compared with what, how near it must be, and what
is said of it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vaiom.auditing import figures
from vaiom.auditing.pipeline import AuditedRun
from vaiom.auditing.proof import AuditConfig, Proof
from vaiom.baselines.base import baseline
from vaiom.baselines.store import fit_or_load
from vaiom.corpus import targets as horizons
from vaiom.corpus.build import CorpusConfig, corpus_in_memory
from vaiom.corpus.splits import VALIDATION
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.distribution.dependence import Dependence
from vaiom.evaluation.scores import ScoredEvents, find_rows, read_events
from vaiom.market.folder import read_bars

LEDGER = {"precision": "float32", "ledger_sha256": "0"}


@pytest.fixture(autouse=True)
def all_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vaiom.auditing.proof.MAX_FINDINGS", 10**6)


@pytest.fixture(scope="module")
def corpus(finished: Path) -> Corpus:
    return open_corpus(finished / "corpus")


def audited(finished: Path, **options: Any) -> AuditedRun:
    return AuditedRun(
        finished / "seed17", open_corpus(finished / "corpus"), AuditConfig(seed=3, **options)
    )


def validation(run: AuditedRun) -> tuple[np.ndarray, ScoredEvents]:
    events = read_events(run.files.path, VALIDATION)
    return find_rows(
        run.corpus, run.corpus.target_timestamps, events.symbols, events.target_times
    ), events


COMPARED: dict[str, tuple[Any, Any, int, list[str]]] = {
    "the same": ({"a": [1.0, 2], "b": None}, {"a": [1.0, 2], "b": None}, 5, []),
    "added": ({"a": 1}, {"a": 1, "c": 2, "b": 3}, 2, ["x: the file has b, c, which nothing gives"]),
    "missing": ({"a": 1, "b": 2}, {"a": 1}, 3, ["x.b: the file says None, recomputed 2"]),
    "no table": ({"a": 1.0}, [1.0], 2, ["x.a: the file says None, recomputed 1.0"]),
    "inside": (
        {"a": {"b": [0, 1]}},
        {"a": {"b": [0, 2]}},
        5,
        ["x.a.b[1]: the file says 2, recomputed 1"],
    ),
    "shorter": ([1, 2], [1], 1, ["x: 2 entries recomputed, not those of the file"]),
    "a text of that length": ([1, 2], "12", 1, ["x: 2 entries recomputed, not those of the file"]),
    "no list": ([], None, 1, ["x: 0 entries recomputed, not those of the file"]),
    "a whole number for a figure": (2.0, 2, 1, []),
    "a little off": (2.0, 2.0 + 1e-8, 1, [f"x: the file says {2.0 + 1e-8}, recomputed 2.0"]),
    "a count is exact": (2, 2.0 + 1e-12, 1, [f"x: the file says {2.0 + 1e-12}, recomputed 2"]),
    "a text for a figure": (2.0, "2.0", 1, ["x: the file says 2.0, recomputed 2.0"]),
    "another text": ("one", "two", 1, ["x: the file says two, recomputed one"]),
    "nothing for a figure": (2.0, None, 1, ["x: the file says None, recomputed 2.0"]),
    "not a number for a figure": (2.0, math.nan, 1, ["x: the file says nan, recomputed 2.0"]),
}


@pytest.mark.parametrize("which", COMPARED)
def test_every_value_is_in_the_file_and_no_other(which: str) -> None:
    ours, stored, count, says = COMPARED[which]
    proof = Proof(claim=figures.prove_figures)
    figures.compare_figures(proof, ours, stored, "x")
    assert (proof.findings, proof.count) == (says, count)


@pytest.mark.parametrize(("times", "fits"), [(0.5, True), (1.5, False)])
def test_a_figure_may_be_as_far_off_as_it_is_told(times: float, fits: bool) -> None:
    proof = Proof(claim=figures.prove_figures)
    ours = {"loose": {"a": [0.1]}, "tight": 0.1, "confidence_set": [1]}
    stored = {"loose": {"a": [0.1 + times * 0.01]}, "tight": 0.1 + 1e-9, "confidence_set": None}
    figures._compare_named(proof, ours, stored, "split", {"loose": 0.01})
    tight = f"split.tight: the file says {0.1 + 1e-9}, recomputed 0.1"
    loose = f"split.loose.a[0]: the file says {0.1 + times * 0.01}, recomputed 0.1"
    assert proof.findings == ([tight] if fits else [loose, tight])
    assert proof.notes == ["split: not compared: confidence_set"]


def test_sets_of_the_best_are_compared_where_both_are_there() -> None:
    for ours, stored, notes, findings in (
        (None, [1], 1, 0),
        ([1], None, 1, 0),
        ([1], [2], 0, 1),
        ([1], [1], 0, 0),
    ):
        proof = Proof(claim=figures.prove_figures)
        figures._compare_named(
            proof, {"confidence_set": ours, "other": None}, {"confidence_set": stored}, "split", {}
        )
        assert (len(proof.notes), len(proof.findings)) == (notes, findings)
    proof = Proof(claim=figures.prove_figures)
    figures._compare_named(proof, {"other": 1}, {}, "split", {})
    assert proof.findings == ["split.other: the file says None, recomputed 1"]


def test_losses_are_compared_event_by_event() -> None:
    for difference, says in (
        ([], []),
        ([1e-7, -1e-7], []),
        ([0.0, -2e-6], ["split: markov gives an event 2.0e-06 bits more or fewer than the file"]),
        ([0.25, -0.125], ["split: markov gives an event 2.5e-01 bits more or fewer than the file"]),
    ):
        proof = Proof(claim=figures.prove_figures)
        figures._compare_losses(proof, "split", "markov", np.array(difference), 1e-6)
        assert (proof.findings, proof.count) == (says, len(difference))


def test_baselines_are_fitted_again_taken_as_stored_or_named(
    finished: Path, corpus: Corpus, tmp_path: Path
) -> None:
    run = audited(finished, baselines=("markov",))
    rows, events = validation(run)
    fit_or_load(baseline("hour_of_week"), corpus, 16, tmp_path)
    worse = {name: bits + (name == "hour_of_week") for name, bits in events.bits.items()} | {
        "rival": events.bits["markov"]
    }
    proof = Proof(claim=figures.prove_figures)
    figures._compare_baselines(
        proof, run, "here", rows, replace(events, bits=worse), str(tmp_path), {"model"}
    )
    again = "here: {} was not computed again (--baselines fits those that are named)"
    stored = (
        "here: hour_of_week by its stored fit, not fitted again (--baselines hour_of_week does)"
    )
    notes = {
        "hour_of_week": stored,
        **{
            name: again.format(name)
            for name in worse
            if name not in ("model", "markov", "hour_of_week")
        },
    }
    assert proof.notes == [notes[name] for name in worse if name in notes]
    assert proof.findings == [
        "here: hour_of_week gives an event 1.0e+00 bits more or fewer than the file"
    ]
    assert proof.count == 2 * len(rows)


def scored_again(
    finished: Path, stored: dict[str, Any] = LEDGER, rescore: int | None = None, **changes: Any
) -> tuple[Proof, ScoredEvents, dict[str, float], AuditedRun]:
    run = audited(finished, rescore=rescore)
    rows, events = validation(run)
    moved = replace(events, **{name: change(events) for name, change in changes.items()})
    proof = Proof(claim=figures.prove_figures)
    found, tolerances = figures._score_again(proof, run, VALIDATION, rows, moved, stored)
    return proof, found, tolerances, run


def with_model(change: Any) -> Any:
    return lambda events: events.bits | {"model": change(events.bits["model"])}


OLD = (
    "validation: an old file without forecasts; not recomputed: the PIT and its tests, "
    "reliability, Brier, RPS, "
    "entropy, forecast tails, value-at-risk and shortfall backtests, latent states"
)


def test_an_honest_split_is_scored_again_in_full(finished: Path) -> None:
    proof, events, tolerances, run = scored_again(finished)
    rounding = run.rounding(VALIDATION, "float32")
    explained = f"{rounding.bits:.1e} bits of an event, {rounding.mean_bits:.1e} of their mean"
    assert proof.findings == []
    assert proof.notes == [
        "validation: all 982 events scored again, largest difference 0.0e+00 bits, mean +0.0e+00; "
        f"float32 arithmetic explains {explained}"
    ]
    assert proof.count == 982 + 1 + 982 + 982 * 16
    assert tolerances == {}
    assert events.probs is not None


@pytest.mark.parametrize(
    ("times", "found"), [(0.5, False), (2.0, True), (-0.5, False), (-2.0, True)]
)
def test_losses_are_those_of_the_probabilities_beside_them(
    finished: Path, times: float, found: bool
) -> None:
    """To a billionth of a bit; figures that rest on what the model answers here may differ where
    losses do.
    """
    one = np.arange(982) == 7
    proof, _, tolerances, run = scored_again(
        finished, bits=with_model(lambda bits: bits + times * 1e-9 * one)
    )
    assert proof.findings == ["validation: losses and probabilities of the events disagree"] * found
    rounding = run.rounding(VALIDATION, "float32")
    near = {"mixture": max(rounding.bits, 8 / 982), "bits_alone": rounding.mean_bits, "joint": 5e-3}
    assert tolerances == (near if found else {})


def test_losses_that_rounding_does_not_explain_are_measured(finished: Path) -> None:
    proof, *_ = scored_again(finished, bits=with_model(lambda bits: bits - 0.25))
    assert proof.findings == [
        "validation: losses that are not the checkpoint's: 2.5e-01 bits off, -2.5e-01 in the mean",
        "validation: losses and probabilities of the events disagree",
    ]
    assert "largest difference 2.5e-01 bits, mean -2.5e-01; float32" in proof.notes[0]


@pytest.mark.parametrize(("times", "found"), [(0.5, False), (2.0, True)])
def test_probabilities_are_the_checkpoints(finished: Path, times: float, found: bool) -> None:
    probability = audited(finished).rounding(VALIDATION, "float32").probability

    def moved(events: ScoredEvents) -> np.ndarray:
        assert events.probs is not None
        probs, bucket = events.probs.copy(), int(events.buckets[7])
        probs[7, bucket % 16] += (
            times * probability
        )  # not that of the outcome: losses stay, but for the sum
        probs[7, (bucket + 1) % 16] -= times * probability
        return probs

    proof, *_ = scored_again(finished, probs=moved)
    off = f"validation: a probability differs by {times * probability:.1e} from the checkpoint's"
    assert proof.findings == [off] * found


def test_files_with_forecasts_name_a_ledger_and_those_without_are_older(finished: Path) -> None:
    stored = {"precision": "float32"}
    proof, *_ = scored_again(finished, stored)
    assert proof.findings == [
        "validation: the evaluation names no ledger, as all that come with forecasts do"
    ]
    none: Any = lambda events: None  # noqa: E731
    for words, bits, notes in (
        ({}, with_model(lambda bits: bits), 1),
        ({"rescore": 10}, with_model(lambda bits: bits), 2),
        ({}, with_model(lambda bits: bits + 1e-8), 2),
        ({"rescore": 10}, with_model(lambda bits: bits + 1e-8), 2),
    ):
        proof, events, _, _ = scored_again(finished, stored, probs=none, bits=bits, **words)
        assert (proof.findings, len(proof.notes)) == ([], notes)
        assert proof.notes[1:] == [OLD][: notes - 1]
        assert (events.probs is not None) == (notes == 1)
        some = "10 of 982 events" if words else "all 982 events"
        assert proof.notes[0].startswith(f"validation: {some} scored again")
        proof, *_ = scored_again(finished, LEDGER, probs=none, bits=bits, **words)
        assert proof.findings == ["validation: the forecasts were taken out of the events file"] * (
            notes - 1
        )


def test_events_without_forecasts_are_all_scored_again(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many: there is nothing else to hold their figures to."""
    monkeypatch.setattr("vaiom.auditing.pipeline.SAMPLED", 100)
    for probs, some in (
        (lambda events: events.probs, "100 of 982 events"),
        (lambda events: None, "all 982 events"),
    ):
        proof, *_ = scored_again(finished, {}, probs=probs)
        assert proof.notes[0].startswith(f"validation: {some} scored again")


def test_a_page_is_taken_apart_into_sections_and_figures() -> None:
    page = (
        'a<svg id="1">\nx</svg>b<section id="one">c<svg>y</svg></section><section id="two" '
        'class="d">e</section>f'
    )
    assert figures._parts(page) == [
        ("top", "a<svg>b"),
        ("one", ">c<svg></section>"),
        ("two", ' class="d">e</section>f'),
        ("figures", '<svg id="1">\nx</svg>'),
        ("figures", "<svg>y</svg>"),
    ]


def test_rows_after_a_cut_come_in_another_order_at_the_same_stamps(corpus: Corpus) -> None:
    end = figures._end_of_train(corpus)
    assert end.astype("datetime64[us]").item() == corpus.splits.train_end - timedelta(
        microseconds=1
    )
    for cut in (end, corpus.timestamps[1_000]):
        found, rng = (
            figures._scrambled_after(corpus, cut, np.random.default_rng(4)),
            np.random.default_rng(4),
        )
        order: list[int] = []
        for rows in corpus.asset_slices.values():
            known = [row for row in range(rows.start, rows.stop) if corpus.timestamps[row] <= cut]
            order += [*known, *rng.permutation(np.arange(known[-1] + 1, rows.stop)).tolist()]
        for name, column in corpus.columns.items():
            np.testing.assert_array_equal(
                found.columns[name], column if name == "timestamp" else column[order]
            )


DEPENDENCE: dict[str, Any] = {
    "checkpoint_sha256": "0",
    "symbols": ("A", "B"),
    "classes": ("FX", "FX"),
    "covariance": np.eye(2),
    "decay": 0.9,
    "correlation": np.eye(2),
    "shrinkage": 0.1,
    "degrees": {"1": 8.0},
    "references": {},
    "num_stamps": 9,
}


@pytest.mark.parametrize(
    ("later", "stamps", "says"),
    [(0.0, 64, False), (0.5e-5, 64, False), (2e-5, 64, True), (-2e-5, 64, True), (0.0, 63, True)],
)
def test_what_is_known_of_a_dependence_before_a_stamp_stays(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, later: float, stamps: int, says: bool
) -> None:
    """64 stamps before each cut, inside Validation."""
    fit, asked = Dependence(**DEPENDENCE), []

    def panel(model: Any, seen: Corpus, begin: Any, end: Any, size: int) -> Any:
        asked.append((seen, begin, end, size))
        damaged = seen is not corpus
        last = SimpleNamespace(covariance=np.eye(2) + later * damaged)
        return SimpleNamespace(
            stamps=np.arange(stamps if damaged else 64), states=lambda _: [None, last]
        )

    monkeypatch.setattr(figures, "make_panel", panel)
    monkeypatch.setattr(figures, "fit_dependence", lambda *_: fit)
    none: Any = None
    proof = figures.prove_dependence(fit, none, corpus, AuditConfig(cuts=3, seed=1))
    cuts = [begin - 1 for _, begin, _, _ in asked[::2]]
    assert (
        proof.findings
        == [f"another state after {cut} with other rows after it" for cut in cuts] * says
    )
    assert proof.notes == ["3 cuts, 64 stamps before each"]
    assert proof.count == len(DEPENDENCE) + 3 * 64
    held_out = corpus.timestamps[corpus.split_codes == corpus.splits.code(VALIDATION)]
    assert set(cuts) <= set(held_out)
    for (own, *honest), (damaged, *same) in zip(asked[::2], asked[1::2], strict=True):
        assert honest == same == [honest[0], honest[0], 64]
        assert own is corpus
        before = corpus.timestamps <= honest[0] - 1
        assert np.array_equal(
            own.columns["log_ret"][before], damaged.columns["log_ret"][before], equal_nan=True
        )
        assert not np.array_equal(
            own.columns["log_ret"], damaged.columns["log_ret"], equal_nan=True
        )


def test_what_train_fits_of_a_dependence_is_named_part_by_part(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, seen = Dependence(**DEPENDENCE), []
    monkeypatch.setattr(figures, "fit_dependence", lambda _, train: seen.append(train) or fit)
    none: Any = None
    for name, other in (
        ("decay", 0.91),
        ("num_stamps", 8),
        ("covariance", 1.01 * np.eye(2)),
        ("degrees", {"1": 4.0}),
    ):
        proof = figures.prove_dependence(
            replace(fit, **{name: other}), none, corpus, AuditConfig(cuts=0, seed=1)
        )
        assert proof.findings == [f"Train gives another {name}: {DEPENDENCE[name]}, not {other}"]
    three = {
        "symbols": ("A", "B", "C"),
        "classes": ("FX",) * 3,
        "covariance": np.eye(3),
        "correlation": np.eye(3),
    }
    proof = figures.prove_dependence(
        replace(fit, **three), none, corpus, AuditConfig(cuts=0, seed=1)
    )
    assert [each.split(":")[0] for each in proof.findings] == [
        f"Train gives another {name}" for name in DEPENDENCE if name in three
    ]
    end = np.datetime64(corpus.splits.train_end)
    for train in seen:
        in_train = train.timestamps < end
        ours, theirs = (each.columns["log_ret"] for each in (corpus, train))
        assert np.array_equal(ours[in_train], theirs[in_train], equal_nan=True)
        assert not np.array_equal(ours[~in_train], theirs[~in_train], equal_nan=True)


@pytest.fixture(scope="module")
def few(finished: Path, corpus: Corpus) -> Corpus:
    """400 bars of each asset."""
    bars = {symbol: frame[:400] for symbol, frame in read_bars(finished / "bars").items()}
    return corpus_in_memory(bars, CorpusConfig(splits=corpus.splits), tokenizer=corpus.tokenizer)


def test_a_target_is_the_next_bars_and_its_scale_sees_none(
    corpus: Corpus, few: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = corpus.with_target(4)
    for seen, changed in ((corpus, 200), (few, math.ceil((800 - 4) / 9))):
        proof = Proof(claim=figures.prove_horizons)
        figures._prove_targets(proof, seen.with_target(view.target().fit), 3)
        assert (proof.findings, proof.count) == ([], changed + len(seen))
    bars, scale = (
        "4 bars: targets of other bars than the next",
        "4 bars: a scale that sees its target",
    )
    of_returns: Any = lambda self, columns, assets: 1 + np.abs(np.nan_to_num(columns["log_ret"]))  # noqa: E731
    true_sum = horizons.sum_of_next
    too_far: Any = lambda *seen: true_sum(*seen[:2], seen[2] + 1)  # noqa: E731
    too_near: Any = lambda *seen: true_sum(*seen[:2], seen[2] - 1)  # noqa: E731
    for place, name, wrong, says in (
        (horizons.TargetFit, "scale", of_returns, [scale]),
        (horizons, "sum_of_next", too_far, [bars]),
        (horizons, "sum_of_next", too_near, [bars]),
    ):
        proof = Proof(claim=figures.prove_horizons)
        with monkeypatch.context() as patch:
            patch.setattr(place, name, wrong)
            figures._prove_targets(proof, corpus.with_target(view.target().fit), 3)
        assert proof.findings == says
