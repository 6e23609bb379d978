"""The whole audit: which proofs are made of what, in which order, and what can be
published of it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditing.test_audit_refusals import claim_splits
from vaiom.auditing import figures, leakage, provenance
from vaiom.auditing.audit import audit_path, hashes_of
from vaiom.auditing.pipeline import widest_model
from vaiom.auditing.proof import NOT_RUN, AuditConfig, Claim, Proof
from vaiom.codec import to_json
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.corpus.targets import DEFAULT_CONTEXT
from vaiom.distribution.dependence import Dependence
from vaiom.errors import DataError
from vaiom.files import sha256_file, write_json
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import Run
from vaiom.training.experiment import TrainConfig, experiment_of_checkpoint

OF_BARS = {
    "rebuilding the corpus": (provenance, "prove_rebuild"),
    "the prices": (leakage, "prove_prices"),
    "the future after 2 cuts": (leakage, "prove_future"),
    "refitting without bars after Train": (leakage, "prove_refit"),
}
OF_CORPUS = {
    "copies of held-out stretches": (leakage, "prove_duplicates"),
    "assets that run ahead of others": (leakage, "prove_lead_lag"),
    "the splits and the sampler's stream": (leakage, "prove_chronology"),
}
OF_RUN = {
    "batch neighbours": (leakage, "prove_neighbours"),
    "the dependence of assets": (figures, "prove_dependence"),
    "the figures of its evaluations": (figures, "prove_figures"),
    "horizons": (figures, "prove_horizons"),
}
LAST = {
    "provenance": (provenance, "prove_provenance"),
    "the selection": (provenance, "prove_selection"),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """What each proof is asked about, in order; none is made."""
    asked: dict[str, tuple[Any, ...]] = {}
    for module, name in {**OF_BARS, **OF_CORPUS, **OF_RUN, **LAST}.values():

        def note(proof: Proof, *args: Any, name: str = name) -> None:
            asked[name] = args
            proof.notes.append(name)

        monkeypatch.setattr(module, name, Claim(name, "", note))
    return asked


def test_a_corpus_is_audited_in_the_order_of_the_data(
    finished: Path, asked: dict[str, tuple[Any, ...]]
) -> None:
    said: list[str] = []
    config = AuditConfig(cuts=2, context=24, baselines=("markov",), seed=4)
    proofs = audit_path(finished / "corpus", bars=finished / "bars", config=config, say=said.append)
    told = {**OF_BARS, **OF_CORPUS, **LAST}
    assert said == ["fitting the pipeline", *told]
    names = [name for _, name in told.values()]
    assert [proof.notes for proof in proofs] == [[name] for name in names]
    assert list(asked) == names
    stored, seen, bars, built = asked["prove_rebuild"]
    assert stored is seen
    assert (stored.path, bars) == (finished / "corpus", finished / "bars")
    pipeline, frames, again, given = asked["prove_future"]
    assert (again, given) == (built, config)
    assert frames is asked["prove_prices"][0]
    assert asked["prove_refit"] == (pipeline, frames, built, 4)
    assert (pipeline.model, pipeline.train, pipeline.predictor) == (
        widest_model(24),
        TrainConfig(),
        None,
    )
    assert (pipeline.baselines, pipeline.moved, pipeline.config.splits) == (
        ("markov",),
        False,
        stored.splits,
    )
    returns, spans = asked["prove_duplicates"]
    assert list(returns) == list(stored.asset_slices)
    assert asked["prove_lead_lag"] == (returns,)
    assert spans == leakage.spans_of(stored, pipeline.splits(stored))
    assert asked["prove_chronology"] == (pipeline, stored)
    assert asked["prove_provenance"] == (stored, bars, None)
    assert asked["prove_selection"] == (stored, None)


def test_without_bars_and_options_the_rest_is_audited(
    finished: Path, asked: dict[str, tuple[Any, ...]]
) -> None:
    said: list[str] = []
    proofs = audit_path(finished / "corpus", say=said.append)
    assert said == [*OF_CORPUS, *LAST]
    assert [proof.notes for proof in proofs[:4]] == [["not run: needs --bars"]] * 4
    assert [proof.name for proof in proofs[:4]] == [name for _, name in OF_BARS.values()]
    assert {proof.verdict for proof in proofs[:4]} == {NOT_RUN}
    pipeline, stored = asked["prove_chronology"]
    assert pipeline.train == TrainConfig()
    assert (pipeline.config, pipeline.model) == (None, widest_model(DEFAULT_CONTEXT))
    assert asked["prove_provenance"] == (stored, None, None)
    assert len(audit_path(finished / "corpus")) == len(proofs)


def test_a_run_is_audited_with_its_model_heads_and_dependence(
    place: Path, asked: dict[str, tuple[Any, ...]]
) -> None:
    said: list[str] = []
    files, config = Run(place / "seed17"), AuditConfig(seed=4)
    fit: dict[str, Any] = {
        "symbols": ("A", "B"),
        "classes": ("FX", "FX"),
        "covariance": np.eye(2),
        "decay": 0.9,
    }
    more: dict[str, Any] = {
        "correlation": np.eye(2),
        "shrinkage": 0.1,
        "degrees": {"1": 8.0},
        "references": {},
    }
    own = load_checkpoint(files.best)
    dependence = Dependence(checkpoint_sha256=own.sha256, num_stamps=9, **fit, **more)
    write_json(files.dependence, to_json(dependence))
    files.horizons.touch()
    proofs = audit_path(files.path, corpus=place / "corpus", config=config, say=said.append)
    assert said == [*OF_CORPUS, *OF_RUN, *LAST]
    assert [proof.notes for proof in proofs[4:]] == [
        [name] for _, name in {**OF_CORPUS, **OF_RUN, **LAST}.values()
    ]
    pipeline, seen, seed = asked["prove_neighbours"]
    stored, none, run = asked["prove_provenance"]
    assert (seen.path, seed, none) == (place / "corpus", 4, None)
    assert stored is seen is run.corpus
    assert (pipeline.model, pipeline.train) == (own.config, experiment_of_checkpoint(own).train)
    assert (pipeline.predictor, pipeline.moved) == (run.model, False)
    found, *rest = asked["prove_dependence"]
    assert to_json(found) == to_json(dependence)
    assert rest == [run.model, seen, config]
    assert asked["prove_figures"] == asked["prove_horizons"] == (run,)
    assert asked["prove_selection"] == (stored, run)
    files.dependence.unlink()
    files.horizons.unlink()
    said.clear()
    audit_path(files.path, corpus=place / "corpus", config=config, say=said.append)
    assert not {"horizons", "the dependence of assets"} & {*said}


def test_a_run_is_audited_under_its_own_boundaries(
    place: Path, asked: dict[str, tuple[Any, ...]]
) -> None:
    corpus = open_corpus(place / "corpus")
    later = replace(corpus.splits, seal=corpus.splits.seal + timedelta(days=1))
    claim_splits(place / "seed17", later)
    audit_path(
        place / "seed17", corpus=place / "corpus", bars=place / "bars", config=AuditConfig(cuts=2)
    )
    stored, seen, _, built = asked["prove_rebuild"]
    assert (stored.splits, seen.splits, built.splits) == (corpus.splits, later, later)
    pipeline, audited = asked["prove_chronology"]
    assert audited is seen
    assert (pipeline.moved, pipeline.config.splits) == (True, later)


def test_what_is_neither_is_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither a corpus nor a run"):
        audit_path(finished / "bars")
    # A run names its corpus itself.
    run = finished / "seed17"
    assert hashes_of(run) == hashes_of(run, finished / "corpus")


def test_every_file_that_a_claim_rests_on_has_a_hash(place: Path) -> None:
    """Of a corpus without reading its arrays: whoever publishes hashes has had it audited."""
    ledger, corpus = place / "corpus/ledger.jsonl", open_corpus(place / "corpus")
    array = next((place / "corpus").rglob("sigma20.npy"))
    array.write_bytes(array.read_bytes()[:-1] + b"\x01")
    of_corpus = {"corpus": corpus.sha256, "ledger.jsonl": sha256_file(ledger)}
    assert hashes_of(place / "corpus") == of_corpus
    run = Run(place / "seed17")
    for file in (
        run.dependence,
        run.horizons,
        run.report,
        run.forecasts / "flat/evaluation-x.json",
    ):
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(file.name)
    names = [
        "config.toml",
        "metrics.jsonl",
        "best.safetensors",
        "dependence.json",
        "horizons.safetensors",
        "report.html",
    ]
    for split in ("test-h1", "test-h2", "validation"):
        names += [f"evaluation-{split}.json", f"events-{split}.parquet"]
    names.append("forecasts/flat/evaluation-x.json")
    expected = of_corpus | {"checkpoint": load_checkpoint(run.best).sha256}
    expected |= {name: sha256_file(run.path / name) for name in names}
    assert hashes_of(run.path, place / "corpus") == expected
    ledger.unlink()
    without: Corpus = open_corpus(place / "corpus", verify=False)
    assert hashes_of(place / "corpus")["corpus"] == without.sha256
