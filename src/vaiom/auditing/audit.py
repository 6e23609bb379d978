"""The whole audit, in the order of the data: what is proved, and from what.

A corpus folder or a run folder enters, with its bars where they are there; a `Proof` of each claim
leaves. Nothing is written, and no test is scored that was not scored before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vaiom.auditing.again import prove_evaluation
from vaiom.auditing.audited_run import AuditedRun
from vaiom.auditing.chronology import prove_chronology, prove_neighbours
from vaiom.auditing.copies import prove_duplicates, prove_lead_lag, returns_of_corpus, spans_of
from vaiom.auditing.leakage import prove_future, prove_prices, prove_refit
from vaiom.auditing.pipeline import Pipeline, widest_model
from vaiom.auditing.proof import AuditConfig, Proof
from vaiom.auditing.provenance import config_of, prove_provenance, prove_rebuild
from vaiom.auditing.selection import prove_selection
from vaiom.corpus.manifest import LEDGER_NAME, MANIFEST_NAME
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.corpus.targets import DEFAULT_CONTEXT
from vaiom.errors import DataError
from vaiom.evaluation.access_ledger import ledger_heads
from vaiom.files import sha256_file
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import CONFIG_NAME, Run
from vaiom.training.experiment import TrainConfig, experiment_of_checkpoint

Say = Callable[[str], None]
"""Tells what is examined next."""


def audit_path(
    path: Path,
    *,
    bars: Path | None = None,
    corpus: Path | None = None,
    config: AuditConfig | None = None,
    say: Say = lambda text: None,
) -> list[Proof]:
    """Audit a corpus folder or a run folder.

    Without bars the proofs that need them are listed as not run. A run names its corpus itself,
    unless `corpus` says where it lies now.
    """
    config = config or AuditConfig()
    is_run = Run(path).config.is_file()
    if not is_run and not (path / MANIFEST_NAME).is_file():
        raise DataError(
            "neither a corpus nor a run",
            where=path,
            expected=f"{MANIFEST_NAME} or {CONFIG_NAME} in it",
        )
    stored = open_corpus((corpus or Run(path).corpus_path()) if is_run else path)
    run = AuditedRun(path, stored, config) if is_run else None
    # A run may have other split boundaries than its corpus was built with.
    seen = run.corpus if run else stored
    pipeline = _pipeline_of(seen, stored, run, bars, config)
    proofs = _prove_from_bars(pipeline, stored, seen, bars, config, say)
    returns = returns_of_corpus(seen)
    say("copies of held-out stretches")
    proofs.append(prove_duplicates(returns, spans_of(seen, pipeline.splits(seen))))
    say("assets that run ahead of others")
    proofs.append(prove_lead_lag(returns))
    say("the splits and the sampler's stream")
    proofs.append(prove_chronology(pipeline, seen))
    if run:
        say("batch neighbours")
        proofs.append(prove_neighbours(pipeline, seen, config.seed))
        say("its evaluations, made again")
        proofs.append(prove_evaluation(run))
    say("provenance")
    proofs.append(prove_provenance(stored, bars, run))
    say("the selection")
    proofs.append(prove_selection(stored, run))
    return proofs


def _pipeline_of(
    seen: Corpus, stored: Corpus, run: AuditedRun | None, bars: Path | None, config: AuditConfig
) -> Pipeline:
    """The pipeline of a run, or one that reads every field of a corpus."""
    if run:
        model = run.checkpoint.config
        train = experiment_of_checkpoint(run.checkpoint).train
    else:
        model = widest_model(config.context or DEFAULT_CONTEXT, stored)
        train = TrainConfig()
    return Pipeline(
        config=config_of(seen) if bars else None,
        model=model,
        train=train,
        predictor=run.model if run else None,
        baselines=config.baselines,
        moved=seen is not stored,
    )


def _prove_from_bars(
    pipeline: Pipeline,
    stored: Corpus,
    seen: Corpus,
    bars: Path | None,
    config: AuditConfig,
    say: Say,
) -> list[Proof]:
    """The proofs that build the corpus again from its bars, or from damaged ones."""
    if bars is None:
        need_bars = (prove_rebuild, prove_prices, prove_future, prove_refit)
        return [claim.proof("not run: needs --bars") for claim in need_bars]
    # A machine without a dataframe library audits the rest.
    from vaiom.market.folder import read_bars

    say("fitting the pipeline")
    frames = read_bars(bars)
    built = pipeline.corpus(frames)
    say("rebuilding the corpus")
    rebuild = prove_rebuild(stored, seen, bars, built)
    say("the prices")
    prices = prove_prices(frames)
    say(f"the future after {config.cuts} cuts")
    future = prove_future(pipeline, frames, built, config)
    say("refitting without bars after Train")
    refit = prove_refit(pipeline, frames, built, config.seed)
    return [rebuild, prices, future, refit]


def hashes_of(path: Path, corpus: Path | None = None) -> dict[str, str]:
    """SHA-256 of everything that a claim rests on, by file.

    Once they are published, none of it can be rewritten unnoticed.
    """
    run = Run(path) if Run(path).config.is_file() else None
    opened = open_corpus((corpus or run.corpus_path()) if run else path, verify=False)
    hashes = {"corpus": opened.sha256, LEDGER_NAME: ledger_heads(opened)[-1]}
    if run is None:
        return hashes
    hashes["checkpoint"] = load_checkpoint(run.best).sha256
    files = [run.config, run.metrics, run.best]
    files += sorted(path.glob("evaluation-*"))
    files += sorted(path.glob("events-*"))
    files += [run.dependence, run.horizons, run.report]
    files += sorted(run.forecasts.glob("*/*"))
    for file in files:
        if file.is_file():
            hashes[str(file.relative_to(path))] = sha256_file(file)
    return hashes
