"""The whole audit of a pipeline, a corpus or a run.

Enters: paths. Leaves: a list of `Proof`, in the order of the data. Nothing is written, and no test split is scored that
was not scored before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vaiom.audit import figures, leakage, provenance, returns, selection
from vaiom.audit.pipeline import Bars, MovedPipeline, Pipeline, ProductPipeline, seen_by, widest_model
from vaiom.audit.proof import AuditConfig, Proof, not_run
from vaiom.audit.rescoring import Rescorer
from vaiom.errors import DataError
from vaiom.evaluation.ledger import ledger_heads
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.events.corpus import DEFAULT_CONTEXT, LEDGER_NAME, MANIFEST_NAME, Corpus, open_corpus
from vaiom.files import sha256_file
from vaiom.model.checkpoint import USE, load_checkpoint
from vaiom.run import CONFIG_NAME, Run
from vaiom.training.experiment import experiment_of_checkpoint

if TYPE_CHECKING:
    from vaiom.events.build import CorpusConfig

Say = Callable[[str], None]

_FOR_USE = "a refit is for use, and nothing was held out of it"
_NOT_EVALUATED = "the run has no evaluation (vaiom evaluate)"


def audit_pipeline(pipeline: Pipeline, bars: Bars, config: AuditConfig | None = None) -> list[Proof]:
    """Everything that bars and a pipeline can prove."""
    config = config or AuditConfig()
    fitted = pipeline.fit(bars)
    events = pipeline.transform(bars, fitted)
    proofs = [
        leakage.prove_prices(bars),
        returns.prove_lead_lag(returns.returns_of_bars(bars)),
        returns.prove_duplicates(returns.returns_of_bars(bars), returns.spans_of(events)),
        leakage.prove_future(pipeline, bars, fitted, cuts=config.cuts, seed=config.seed, rare_cuts=config.rare_cuts),
        leakage.prove_refit(pipeline, bars, fitted, seed=config.seed),
        leakage.prove_chronology(events, pipeline.train_end),
    ]
    if events.predict is not None:
        proofs.append(leakage.prove_neighbours(events, seed=config.seed))
    return proofs


def audit_path(
    path: Path,
    *,
    bars: Path | None = None,
    corpus: Path | None = None,
    config: AuditConfig | None = None,
    say: Say | None = None,
) -> list[Proof]:
    """Audit a corpus folder or a run folder; what needs bars is left out, and said so, where none are given."""
    config, say = config or AuditConfig(), say or (lambda text: None)
    run = path if Run(path).config.is_file() else None
    if run is None and not (path / MANIFEST_NAME).is_file():
        raise DataError("neither a corpus nor a run", where=path, expected=f"{MANIFEST_NAME} or {CONFIG_NAME} in it")
    opened = open_corpus((corpus or Run(run).corpus_path()) if run else path)
    model = ModelPredictor.load(Run(run).best, "cpu") if run else None
    seen = opened if model is None else seen_by(model.checkpoint, opened)
    built = provenance.config_of(seen) if bars else seen
    pipeline = _pipeline_of(built, model, config, moved=seen is not opened)
    rescorer: Rescorer | None = None
    steps: dict[str, Callable[[], Proof]] = {}
    if bars:
        from vaiom.market.folder import read_bars  # a machine without a dataframe library audits the rest

        frames = read_bars(bars)
        say("fitting the pipeline")
        fitted = pipeline.fit(frames)
        steps = {
            "rebuilding the corpus": lambda: provenance.prove_rebuild(opened, seen, bars, frames, pipeline, fitted),
            "the prices": lambda: leakage.prove_prices(frames),
            f"the future after {config.cuts} cuts": lambda: leakage.prove_future(
                pipeline, frames, fitted, cuts=config.cuts, seed=config.seed, rare_cuts=config.rare_cuts
            ),
            "fitting again without what came after Train": lambda: leakage.prove_refit(
                pipeline, frames, fitted, seed=config.seed
            ),
        }
    events, moves = pipeline.events(seen), returns.returns_of_corpus(seen)
    steps["copies of held-out stretches"] = lambda: returns.prove_duplicates(moves, returns.spans_of(events))
    steps["assets that run ahead of others"] = lambda: returns.prove_lead_lag(moves)
    steps["the splits and the sampler's stream"] = lambda: leakage.prove_chronology(events, pipeline.train_end)
    if model is not None and run is not None:
        steps["batch neighbours"] = lambda: leakage.prove_neighbours(events, seed=config.seed)
        rescorer = Rescorer(model, seen, rescore=config.rescore, seed=config.seed)
        steps["the figures of its evaluations"] = lambda: _figures(run, rescorer, config)
    steps["provenance"] = lambda: provenance.prove_provenance(opened, bars, model, run, seen)
    steps["the selection"] = lambda: selection.prove_selection(opened, rescorer, run)
    need_bars = () if bars else (provenance.REBUILD, leakage.PRICES, leakage.FUTURE, leakage.REFIT)
    proofs = [not_run(claim, "needs --bars") for claim in need_bars]
    for text, prove in steps.items():
        say(text)
        proofs.append(prove())
    return proofs


def _figures(run: Path, rescorer: Rescorer, config: AuditConfig) -> Proof:
    if Run(run).evaluated_splits():
        return figures.prove_figures(run, rescorer, baselines=config.baselines)
    for_use = rescorer.model.checkpoint.provenance.purpose == USE
    return not_run(figures.FIGURES, _FOR_USE if for_use else _NOT_EVALUATED)


def hashes_of(path: Path, corpus: Path | None = None) -> dict[str, str]:
    """SHA-256 of everything that a claim rests on: whoever has published them cannot rewrite it unnoticed."""
    run = Run(path) if Run(path).config.is_file() else None
    opened = open_corpus((corpus or run.corpus_path()) if run else path, verify=False)
    found = {"corpus": opened.sha256, LEDGER_NAME: ledger_heads(opened)[-1]}
    if run:
        found |= {"checkpoint": load_checkpoint(run.best).sha256}
        files = (run.config, run.metrics, run.best, *sorted(path.glob("evaluation-*")), *sorted(path.glob("events-*")))
        found |= {file.name: sha256_file(file) for file in (*files, run.report) if file.is_file()}
    return found


def _pipeline_of(
    built: CorpusConfig | Corpus, model: ModelPredictor | None, config: AuditConfig, *, moved: bool
) -> ProductPipeline:
    """The pipeline that the folder says it was built with, and the model's own windows where there is one."""
    if model is None:
        return ProductPipeline(built, model=widest_model(config.context or DEFAULT_CONTEXT), baselines=config.baselines)
    return (MovedPipeline if moved else ProductPipeline)(
        built,
        model=model.checkpoint.model.config,
        train=experiment_of_checkpoint(model.checkpoint).train,
        predictor=model,
        baselines=config.baselines,
    )
