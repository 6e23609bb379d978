"""VAIOM: the distribution of the next volatility-normalised return, from continuous market events.

The whole job from Python: `read_bars` or `simulate`, `build_corpus`, `train`, `fit_baselines`,
`evaluate`, `score`, `audit`, `Forecaster`. Rooms are imported when used, so that `import vaiom`
costs nothing and needs no heavy library.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaiom.errors import require_installed

if TYPE_CHECKING:
    from vaiom.auditing.proof import Proof
    from vaiom.corpus.splits import SplitConfig
    from vaiom.corpus.store import Corpus, open_corpus
    from vaiom.distribution.returns import ReturnDistribution
    from vaiom.evaluation.forecasts import score
    from vaiom.evaluation.record import Evaluation
    from vaiom.forecast.forecaster import Forecaster
    from vaiom.market.folder import BarFrames
    from vaiom.market.imports import read_bars
    from vaiom.training.experiment import Experiment
    from vaiom.training.loop import TrainResult

__version__ = "0.3.0"

# Virtual processors may advertise matrix units that trap: PyTorch stays below them, at no cost in
# FP32.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# Waiting threads spin only briefly: on busy machines, spinning threads block those with work to do.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

_LAZY = {
    "Corpus": "vaiom.corpus.store",
    "Forecaster": "vaiom.forecast.forecaster",
    "ReturnDistribution": "vaiom.distribution.returns",
    "SplitConfig": "vaiom.corpus.splits",
    "open_corpus": "vaiom.corpus.store",
    "read_bars": "vaiom.market.imports",
    "score": "vaiom.evaluation.forecasts",
}
__all__ = [
    "Corpus",
    "Forecaster",
    "ReturnDistribution",
    "SplitConfig",
    "__version__",
    "audit",
    "build_corpus",
    "evaluate",
    "fit_baselines",
    "open_corpus",
    "read_bars",
    "score",
    "simulate",
    "train",
    "whole_job",
]


def simulate(out: str | Path, *, overwrite: bool = False, **options: Any) -> BarFrames:
    """Simulate a market into a bar folder, with its true distributions beside the bars.

    Returns the bars by symbol. Options are those of `vaiom.simulation.market.MarketConfig`: assets,
    bars, seed, end and others.
    """
    from vaiom.market.folder import read_bars
    from vaiom.simulation.market import MarketConfig, write_market

    write_market(MarketConfig(**options), Path(out), overwrite=overwrite)
    return read_bars(out)


def build_corpus(
    bars: str | Path,
    out: str | Path,
    *,
    timeframe: str = "",
    splits: SplitConfig | None = None,
    classes: Mapping[str, str] | None = None,
    like: str | Path | None = None,
    **options: Any,
) -> Corpus:
    """Build a corpus folder from a bar folder: causal events, buckets fitted on Train, splits.

    The timeframe is that of the bars, which must match one that is given. With `like`, a run or a
    packaged model's name, the timeframe and buckets are that model's, and so are its splits unless
    given: the model can then be scored and trained on it.  Options are those of
    `vaiom.corpus.build.build_corpus`: overwrite, covered, runner, progress.
    """
    from vaiom.corpus.build import CorpusConfig, build_corpus

    wanted: dict[str, Any] = {"timeframe": timeframe, "classes": classes or {}}
    if like is not None:
        from vaiom.model.checkpoint import load_model

        wanted |= load_model(like).corpus_options()
    if splits:
        wanted["splits"] = splits
    return build_corpus(Path(bars), Path(out), CorpusConfig(**wanted), **options)


def train(
    corpus: Corpus | str | Path,
    out: str | Path,
    *,
    experiment: Experiment | str = "main",
    start: str | Path | None = None,
    against: Sequence[Path] = (),
    settings: Sequence[str] = (),
    device: str = "auto",
    resume: bool = False,
    report: Callable[[dict[str, Any]], None] | None = None,
    **changes: Any,
) -> TrainResult:
    """Train an experiment into a run folder and keep the model with the fewest Validation bits.

    `changes` are settings such as seed and steps, `settings` are strings such as `steps=100`. With
    `start`, a run or a packaged model's name, training continues from its weights, and the result
    has a `verdict`: whether that helped, also against other runs (`against`).
    """
    require_installed("torch")
    from vaiom.experiments.adapt import adapt
    from vaiom.experiments.registry import experiment as named
    from vaiom.experiments.registry import stopping_early
    from vaiom.training.loop import train

    opened = _opened(corpus)
    out = Path(out)
    how: dict[str, Any] = {"device": device, "resume": resume, "report": report}
    if start is not None:
        changed = [f"{key}={value}" for key, value in changes.items()]
        words = [*settings, *changed]
        return adapt(opened, Path(start), out, settings=words, against=against, **how)
    if isinstance(experiment, str):
        experiment = stopping_early(named(experiment))
    chosen = experiment.with_settings(settings).with_changes(**changes)
    return train(opened, chosen, out, **how)


def fit_baselines(
    corpus: Corpus | str | Path,
    out: str | Path,
    *,
    only: Sequence[str] | None = None,
    split: str = "validation",
    context: int = 512,
    unseal: str | None = None,
) -> dict[str, float]:
    """Fit baselines on Train and score them: mean bits per event by name.

    `out` keeps the fits, and the loss of each event that `evaluate` reads.
    """
    require_installed("torch")
    from vaiom.baselines.base import usual_baselines
    from vaiom.evaluation.predictor import score_baselines

    names = usual_baselines() if only is None else only
    silent = nullcontext(lambda *progress: None)
    return score_baselines(
        _opened(corpus), names, Path(out), split, context, lambda _: silent, unseal=unseal
    )


def evaluate(
    run: TrainResult | str | Path,
    *,
    split: str = "validation",
    corpus: Corpus | str | Path | None = None,
    baselines: str | Path | None = None,
    unseal: str | None = None,
    out: str | Path | None = None,
    device: str = "auto",
) -> Evaluation:
    """Score a run's selected model on a split, with baselines on the same events.

    Every use of a test split is recorded in the corpus.
    """
    require_installed("torch")
    from vaiom.evaluation.evaluate import evaluate_run
    from vaiom.run import Run

    folder = _folder(run)
    return evaluate_run(
        folder,
        _opened(Run(folder).corpus_path() if corpus is None else corpus),
        split,
        baselines=_path(baselines),
        unseal=unseal,
        out=_path(out),
        device=device,
    )


def audit(
    path: Corpus | TrainResult | str | Path,
    *,
    bars: str | Path | None = None,
    corpus: str | Path | None = None,
    **options: Any,
) -> list[Proof]:
    """Prove that a corpus or a run does not see the future and matches its records.

    With the bars that it was built from there are more proofs. Options are those of
    `vaiom.auditing.proof.AuditConfig`: cuts, seed, baselines and others.
    """
    require_installed("torch")
    from vaiom.auditing.audit import audit_path
    from vaiom.auditing.proof import AuditConfig

    config = AuditConfig(**options)
    return audit_path(_folder(path), bars=_path(bars), corpus=_path(corpus), config=config)


def whole_job(bars: str | Path, out: str | Path, **options: Any) -> Path:
    """Build a corpus from a bar folder, train, and evaluate beside baselines; returns the run.

    `out` gets the folders `corpus`, `baselines` and `run`, and a second call goes on there. Options
    are those of `vaiom.experiments.whole_job.whole_job`: name, settings, baselines, device.
    """
    require_installed("torch")
    from vaiom.experiments.whole_job import whole_job

    return whole_job(Path(bars), Path(out), **options)


def _opened(corpus: Corpus | str | Path) -> Corpus:
    from vaiom.corpus.store import open_corpus

    return open_corpus(corpus) if isinstance(corpus, str | Path) else corpus


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def _folder(given: Any) -> Path:
    """The folder of a run, a finished training or a corpus."""
    if isinstance(given, str | Path):
        return Path(given)
    return Path(getattr(given, "run", None) or given.path)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    offered = ", ".join(__all__)
    raise AttributeError(f"module 'vaiom' has no attribute {name!r}; it offers {offered}")


def __dir__() -> list[str]:
    return __all__
