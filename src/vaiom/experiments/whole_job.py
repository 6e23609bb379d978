"""The whole job: a bar folder becomes a corpus, a trained model and its evaluation.

Parts that are finished are kept, so that a job that was stopped goes on where it was. The command
line, the Python facade and the reproduction of the paper call what stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from vaiom.baselines.base import QUICK, Predictor
from vaiom.baselines.counts import Frequency, Markov
from vaiom.baselines.stored_losses import losses_file
from vaiom.corpus.manifest import MANIFEST_NAME
from vaiom.corpus.splits import TRAIN, VALIDATION
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.predictor import ModelPredictor, score_baselines
from vaiom.evaluation.record import Evaluation
from vaiom.evaluation.scores import losses_of
from vaiom.experiments.registry import experiment, stopping_early
from vaiom.files import Progress
from vaiom.model.checkpoint import load_model
from vaiom.model.vaiom import count_parameters
from vaiom.run import Run
from vaiom.simulation.oracle import Oracle
from vaiom.training import devices
from vaiom.training.experiment import Experiment
from vaiom.training.loop import train
from vaiom.training.progress import training_progress

BASELINES = (*QUICK, "lightgbm_quick")
"""Fitted beside the model where none is named."""
FOR_CPU, FOR_GPU = "demo", "best"
"""Experiments that are trained where none is named."""

ProgressBar = Callable[[str], AbstractContextManager[Progress]]
"""Shows the progress of a piece of work with this title."""
Say = Callable[[str], object]


@contextmanager
def silent(title: str) -> Iterator[Progress]:
    """A progress bar that shows nothing."""
    del title
    yield lambda done, total, what: None


def whole_job(
    bars: Path,
    out: Path,
    *,
    name: str | None = None,
    settings: Sequence[str] = (),
    baselines: Sequence[str] = BASELINES,
    device: str = "auto",
    progress: ProgressBar = silent,
    say: Say = lambda text: None,
) -> Path:
    """Build a corpus from a bar folder, train, and evaluate on Validation and all tests.

    Parameters
    ----------
    bars : bar folder
    out : folder for `corpus`, `baselines` and `run`; call again to go on after an interruption
    name : experiment; without one, the largest that this machine trains and the bars allow
    settings : changes of the experiment, as `key=value`
    baselines : what is fitted and scored beside the model
    device : auto, cpu, cuda or cuda:N

    Returns the run folder.
    """
    corpus = _open_or_build(bars, out / "corpus", progress, say)
    chosen = choose_experiment(corpus, name, settings, device)
    _describe(corpus, chosen, device, say)
    run = out / "run"
    with progress("training") as report:
        train(corpus, chosen, run, device=device, resume=True, report=training_progress(report))
    splits = (VALIDATION, *corpus.splits.test_names)
    evaluate_splits(
        run,
        corpus,
        [split for split in splits if not _is_evaluated(run, corpus, split)],
        baselines=out / "baselines",
        fit=baselines,
        device=device,
        progress=progress,
    )
    return run


def evaluate_splits(
    run: Path,
    corpus: Corpus,
    splits: Iterable[str],
    *,
    baselines: Path | None,
    fit: Sequence[str] = (),
    device: str = "auto",
    progress: ProgressBar = silent,
) -> dict[str, Evaluation]:
    """Evaluate a run on several splits, beside the baselines that were scored on each.

    `baselines` is a folder with the losses of baselines; those named in `fit` are fitted and scored
    there before.
    """
    evaluations = {}
    for split in splits:
        if baselines and fit:
            history = load_model(run).config.history

            def bar(name: str, split: str = split) -> AbstractContextManager[Progress]:
                return progress(f"{name} on {split}")

            score_baselines(corpus, fit, baselines, split, history, bar)
        stored = baselines if baselines and losses_file(baselines, split).exists() else None
        with progress(f"scoring {split}") as report:
            evaluations[split] = evaluate_run(
                run, corpus, split, baselines=stored, device=device, progress=report
            )
    return evaluations


def choose_experiment(
    corpus: Corpus, name: str | None, settings: Sequence[str], device: str
) -> Experiment:
    """The named experiment, or the largest that this machine trains and the bars have windows for.

    It stops when Validation no longer falls.
    """
    if name is None:
        has_gpu = devices.resolve_device(device).type == "cuda"
        has_windows = len(corpus.endpoints(TRAIN, experiment(FOR_GPU).model.context)) > 0
        name = FOR_GPU if has_gpu and has_windows else FOR_CPU
    return stopping_early(experiment(name)).with_settings(settings)


def bits_beside_oracle(run: Path, corpus: Corpus, bars: Path, device: str) -> dict[str, float]:
    """Validation bits per event of a run, two baselines and the true distribution, by name.

    `bars` is a simulated market, whose truth is known.
    """
    checkpoint = load_model(run)
    history = checkpoint.config.history
    predictors: list[Predictor] = [
        Frequency(),
        Markov(),
        ModelPredictor(checkpoint, device),
        Oracle.load(bars),
    ]
    rows = corpus.endpoints(VALIDATION, history)
    losses = losses_of(predictors, corpus, rows, history)
    return {name: float(each.mean()) for name, each in losses.items()}


def _open_or_build(bars: Path, folder: Path, progress: ProgressBar, say: Say) -> Corpus:
    """The corpus, built with split dates that suit the bars unless it is there."""
    if (folder / MANIFEST_NAME).exists():
        return open_corpus(folder)
    from vaiom.corpus.build import CorpusConfig, build_corpus, propose_splits

    config = CorpusConfig(splits=propose_splits(bars))
    with progress("building the corpus") as report:
        corpus = build_corpus(bars, folder, config, progress=report)
    symbols = ", ".join(corpus.asset_slices)
    say(f"{folder}: {len(corpus):,} bars of {corpus.tokenizer.timeframe}; {symbols}")
    return corpus


def _describe(corpus: Corpus, chosen: Experiment, device: str, say: Say) -> None:
    """Say what is trained, on what, and what it is judged on."""
    splits = corpus.splits
    first, end = splits.validation
    counts = []
    for split in (TRAIN, VALIDATION, *splits.test_names):
        num_events = len(corpus.endpoints(split, chosen.model.history))
        if num_events:
            counts.append(f"{split} {num_events:,}")
    say(
        f"Train before {splits.train_end:%Y-%m-%d}, Validation {first:%Y-%m-%d} to "
        f"{end:%Y-%m-%d}; events: {', '.join(counts)}"
    )
    num_params = count_parameters(chosen.model, corpus.tokenizer.vocabulary_sizes)
    kind = devices.resolve_device(device).type.upper()
    say(
        f"training `{chosen.name}` on a {kind}: {num_params:,} parameters, "
        f"{chosen.train.steps:,} steps at most"
    )


def _is_evaluated(run: Path, corpus: Corpus, split: str) -> bool:
    """Whether the best checkpoint was evaluated on the split, or the split has no events."""
    checkpoint = load_model(run)
    if not len(corpus.endpoints(split, checkpoint.config.history)):
        return True
    if not Run(run).evaluation(split).is_file():
        return False
    return Evaluation.read(run, split).checkpoint_sha256 == checkpoint.sha256
