"""The whole audit of a pipeline, a corpus or a run.

Enters: paths. Leaves: a list of `Proof`, in the order of the data. Nothing is written, and no test split is scored that
was not scored before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vaiom.audit import figures, leakage, provenance
from vaiom.audit.pipeline import Bars, MovedPipeline, Pipeline, ProductPipeline, seen_by, widest_model
from vaiom.audit.proof import AuditConfig, Proof, not_run
from vaiom.errors import DataError
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.events.corpus import DEFAULT_CONTEXT, MANIFEST_NAME, Corpus, open_corpus
from vaiom.market.folder import read_bars
from vaiom.model.checkpoint import USE
from vaiom.run import CONFIG_NAME, Run
from vaiom.training.experiment import experiment_of_checkpoint

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
        leakage.prove_future(pipeline, bars, fitted, cuts=config.cuts, seed=config.seed),
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
    config = config or AuditConfig()
    run = path if Run(path).config.is_file() else None
    if run is None and not (path / MANIFEST_NAME).is_file():
        raise DataError("neither a corpus nor a run", where=path, expected=f"{MANIFEST_NAME} or {CONFIG_NAME} in it")
    opened = open_corpus((corpus or Run(run).corpus_path()) if run else path)
    model = ModelPredictor.load(Run(run).best, "cpu") if run else None
    return _Audit(opened, run, model, bars, config, say or (lambda text: None)).proofs()


class _Audit:
    def __init__(
        self,
        corpus: Corpus,
        run: Path | None,
        model: ModelPredictor | None,
        bars: Path | None,
        config: AuditConfig,
        say: Say,
    ) -> None:
        self.corpus, self.run, self.model, self.bars, self.config, self.say = corpus, run, model, bars, config, say
        self.seen = corpus if model is None else seen_by(model.checkpoint, corpus)
        self.pipeline = _pipeline_of(self.seen, model, config, moved=self.seen is not corpus)

    def proofs(self) -> list[Proof]:
        out = self._with_bars(self.bars) if self.bars else self._without_bars()
        events = self.pipeline.events(self.seen)
        self.say("the splits and the sampler's stream")
        out.append(leakage.prove_chronology(events, self.pipeline.train_end))
        if self.model is not None:
            self.say("batch neighbours")
            out.append(leakage.prove_neighbours(events, seed=self.config.seed))
        if self.run is not None and self.model is not None:
            out.append(self._figures(self.run, self.model))
        self.say("provenance")
        out.append(provenance.prove_provenance(self.corpus, self.bars, self.model, self.run, self.seen))
        return out

    def _with_bars(self, folder: Path) -> list[Proof]:
        bars = read_bars(folder)
        self.say("rebuilding the corpus")
        fitted = self.pipeline.fit(bars)
        out = [provenance.prove_rebuild(self.corpus, self.seen, folder, bars, self.pipeline, fitted)]
        self.say("the prices")
        out.append(leakage.prove_prices(bars))
        self.say(f"the future after {self.config.cuts} cuts")
        out.append(leakage.prove_future(self.pipeline, bars, fitted, cuts=self.config.cuts, seed=self.config.seed))
        self.say("fitting again without what came after Train")
        out.append(leakage.prove_refit(self.pipeline, bars, fitted, seed=self.config.seed))
        return out

    def _without_bars(self) -> list[Proof]:
        return [
            not_run(claim, "needs --bars")
            for claim in (provenance.REBUILD, leakage.PRICES, leakage.FUTURE, leakage.REFIT)
        ]

    def _figures(self, run: Path, model: ModelPredictor) -> Proof:
        if not Run(run).evaluated_splits():
            for_use = model.checkpoint.provenance.purpose == USE
            why = _FOR_USE if for_use else _NOT_EVALUATED
            return not_run(figures.FIGURES, why)
        self.say("the figures of its evaluations")
        return figures.prove_figures(run, self.seen, model, rescore=self.config.rescore)


def _pipeline_of(corpus: Corpus, model: ModelPredictor | None, config: AuditConfig, *, moved: bool) -> ProductPipeline:
    """The pipeline that the folder says it was built with, and the model's own windows where there is one."""
    built = provenance.config_of(corpus)
    if model is None:
        widest = widest_model(config.context or DEFAULT_CONTEXT)
        return ProductPipeline(built, model=widest, baselines=config.baselines)
    return (MovedPipeline if moved else ProductPipeline)(
        built,
        model=model.checkpoint.model.config,
        train=experiment_of_checkpoint(model.checkpoint).train,
        predictor=model,
        baselines=config.baselines,
    )
