"""The whole audit, in the order of the data: nothing is written, and no test is scored that was not scored before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vaiom.audit import figures, leakage, provenance
from vaiom.audit.pipeline import AuditedRun, Pipeline, widest_model
from vaiom.audit.proof import AuditConfig, Proof
from vaiom.errors import DataError
from vaiom.evaluation.ledger import ledger_heads
from vaiom.events.corpus import DEFAULT_CONTEXT, LEDGER_NAME, MANIFEST_NAME, open_corpus
from vaiom.events.dependence import Dependence
from vaiom.files import sha256_file
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import CONFIG_NAME, Run
from vaiom.training.experiment import experiment_of_checkpoint


def audit_path(
    path: Path,
    *,
    bars: Path | None = None,
    corpus: Path | None = None,
    config: AuditConfig | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Proof]:
    """Audit a corpus folder or a run folder; what needs bars is left out, and said so, where none are given."""
    config, is_run = config or AuditConfig(), Run(path).config.is_file()
    if not is_run and not (path / MANIFEST_NAME).is_file():
        raise DataError("neither a corpus nor a run", where=path, expected=f"{MANIFEST_NAME} or {CONFIG_NAME} in it")
    opened = open_corpus((corpus or Run(path).corpus_path()) if is_run else path)
    run = AuditedRun(path, opened, config) if is_run else None
    reads: dict[str, Any] = {"model": widest_model(config.context or DEFAULT_CONTEXT)}
    if run:
        train = experiment_of_checkpoint(run.checkpoint).train
        reads = {"model": run.checkpoint.config, "train": train, "predictor": run.model}
    seen = run.corpus if run else opened
    reads |= {"baselines": config.baselines, "moved": seen is not opened}
    pipeline = Pipeline(provenance.config_of(seen) if bars else None, **reads)
    moves = leakage.returns_of_corpus(seen)
    need_bars = (provenance.prove_rebuild, leakage.prove_prices, leakage.prove_future, leakage.prove_refit)
    proofs, steps = [], dict[str, Callable[[], Proof]]()
    if bars:
        from vaiom.market.folder import read_bars  # a machine without a dataframe library audits the rest

        frames = read_bars(bars)
        say("fitting the pipeline")
        built = pipeline.corpus(frames)
        steps = {
            "rebuilding the corpus": lambda: provenance.prove_rebuild(opened, seen, bars, built),
            "the prices": lambda: leakage.prove_prices(frames),
            f"the future after {config.cuts} cuts": lambda: leakage.prove_future(pipeline, frames, built, config),
            "fitting again without what came after Train": lambda: leakage.prove_refit(
                pipeline, frames, built, config.seed
            ),
        }
    else:
        proofs = [Proof(claim=each, notes=["not run: needs --bars"]) for each in need_bars]
    steps |= {
        "copies of held-out stretches": lambda: leakage.prove_duplicates(
            moves, leakage.spans_of(seen, pipeline.splits(seen))
        ),
        "assets that run ahead of others": lambda: leakage.prove_lead_lag(moves),
        "the splits and the sampler's stream": lambda: leakage.prove_chronology(pipeline, seen),
    }
    if run:
        steps["batch neighbours"] = lambda: leakage.prove_neighbours(pipeline, seen, config.seed)
        if run.files.dependence.is_file():
            fit = Dependence.read(run.files.dependence, run.checkpoint.sha256)
            steps["the dependence of assets"] = lambda: figures.prove_dependence(fit, run.model, seen, config)
        steps["the figures of its evaluations"] = lambda: figures.prove_figures(run)
        if run.files.horizons.is_file():
            steps["horizons"] = lambda: figures.prove_horizons(run)
    steps["provenance"] = lambda: provenance.prove_provenance(opened, bars, run)
    steps["the selection"] = lambda: provenance.prove_selection(opened, run)
    for text, prove in steps.items():
        say(text)
        proofs.append(prove())
    return proofs


def hashes_of(path: Path, corpus: Path | None = None) -> dict[str, str]:
    """SHA-256 of everything that a claim rests on: whoever has published them cannot rewrite it unnoticed."""
    run = Run(path) if Run(path).config.is_file() else None
    opened = open_corpus((corpus or run.corpus_path()) if run else path, verify=False)
    found = {"corpus": opened.sha256, LEDGER_NAME: ledger_heads(opened)[-1]}
    if run:
        found |= {"checkpoint": load_checkpoint(run.best).sha256}
        files = (run.config, run.metrics, run.best, *sorted(path.glob("evaluation-*")), *sorted(path.glob("events-*")))
        files = (*files, run.dependence, run.horizons, run.report, *sorted(run.forecasts.glob("*/*")))
        found |= {str(each.relative_to(path)): sha256_file(each) for each in files if each.is_file()}
    return found
