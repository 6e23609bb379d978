"""The whole audit, in the order of the data: nothing is written, and no test is scored that was not
scored before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vaiom.auditing import figures, leakage, provenance
from vaiom.auditing.pipeline import AuditedRun, Pipeline, widest_model
from vaiom.auditing.proof import AuditConfig, Claim, P, Proof
from vaiom.corpus.manifest import LEDGER_NAME, MANIFEST_NAME
from vaiom.corpus.store import open_corpus
from vaiom.corpus.targets import DEFAULT_CONTEXT
from vaiom.distribution.dependence import Dependence
from vaiom.errors import DataError
from vaiom.evaluation.ledger import ledger_heads
from vaiom.files import sha256_file
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import CONFIG_NAME, Run
from vaiom.training.experiment import TrainConfig, experiment_of_checkpoint


def audit_path(
    path: Path,
    *,
    bars: Path | None = None,
    corpus: Path | None = None,
    config: AuditConfig | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Proof]:
    """Audit a corpus folder or a run folder; without bars, the proofs that need them are marked as
    not run.
    """
    config, is_run = config or AuditConfig(), Run(path).config.is_file()
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
    context = config.context or DEFAULT_CONTEXT
    pipeline = Pipeline(
        provenance.config_of(seen) if bars else None,
        model=run.checkpoint.config if run else widest_model(context, stored),
        train=experiment_of_checkpoint(run.checkpoint).train if run else TrainConfig(),
        predictor=run.model if run else None,
        baselines=config.baselines,
        moved=seen is not stored,
    )
    proofs: list[Proof] = []

    def prove(text: str, claim: Claim[P], *args: P.args, **options: P.kwargs) -> None:
        say(text)
        proofs.append(claim(*args, **options))

    if bars:
        from vaiom.market.folder import (
            read_bars,  # a machine without a dataframe library audits the rest
        )

        say("fitting the pipeline")
        frames = read_bars(bars)
        built = pipeline.corpus(frames)
        prove("rebuilding the corpus", provenance.prove_rebuild, stored, seen, bars, built)
        prove("the prices", leakage.prove_prices, frames)
        prove(
            f"the future after {config.cuts} cuts",
            leakage.prove_future,
            pipeline,
            frames,
            built,
            config,
        )
        prove(
            "refitting without bars after Train",
            leakage.prove_refit,
            pipeline,
            frames,
            built,
            config.seed,
        )
    else:
        need_bars = (
            provenance.prove_rebuild,
            leakage.prove_prices,
            leakage.prove_future,
            leakage.prove_refit,
        )
        proofs += [Proof(claim=claim, notes=["not run: needs --bars"]) for claim in need_bars]
    returns, spans = leakage.returns_of_corpus(seen), leakage.spans_of(seen, pipeline.splits(seen))
    prove("copies of held-out stretches", leakage.prove_duplicates, returns, spans)
    prove("assets that run ahead of others", leakage.prove_lead_lag, returns)
    prove("the splits and the sampler's stream", leakage.prove_chronology, pipeline, seen)
    if run:
        prove("batch neighbours", leakage.prove_neighbours, pipeline, seen, config.seed)
        if run.files.dependence.is_file():
            fit = Dependence.read(run.files.dependence, run.checkpoint.sha256)
            prove(
                "the dependence of assets", figures.prove_dependence, fit, run.model, seen, config
            )
        prove("the figures of its evaluations", figures.prove_figures, run)
        if run.files.horizons.is_file():
            prove("horizons", figures.prove_horizons, run)
    prove("provenance", provenance.prove_provenance, stored, bars, run)
    prove("the selection", provenance.prove_selection, stored, run)
    return proofs


def hashes_of(path: Path, corpus: Path | None = None) -> dict[str, str]:
    """SHA-256 of everything that a claim rests on: once published, none of it can be rewritten
    unnoticed.
    """
    run = Run(path) if Run(path).config.is_file() else None
    opened = open_corpus((corpus or run.corpus_path()) if run else path, verify=False)
    hashes = {"corpus": opened.sha256, LEDGER_NAME: ledger_heads(opened)[-1]}
    if run:
        hashes["checkpoint"] = load_checkpoint(run.best).sha256
        files = (
            run.config,
            run.metrics,
            run.best,
            *sorted(path.glob("evaluation-*")),
            *sorted(path.glob("events-*")),
        )
        files = (
            *files,
            run.dependence,
            run.horizons,
            run.report,
            *sorted(run.forecasts.glob("*/*")),
        )
        hashes |= {
            str(file.relative_to(path)): sha256_file(file) for file in files if file.is_file()
        }
    return hashes
