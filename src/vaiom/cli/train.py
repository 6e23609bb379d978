"""`vaiom experiments`, `train`, `refit`, `horizons`, `dependence`, `package`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import vaiom
from vaiom.cli.console import Answer, answers, progress_bar
from vaiom.cli.options import (
    CorpusPath,
    Device,
    Every,
    ModelPath,
    Resume,
    RunCorpus,
    RunPath,
    argument,
    date,
    option,
)
from vaiom.codec import to_json
from vaiom.errors import ConfigError
from vaiom.files import read_json
from vaiom.report.tables import Column, Table, bits, count, facts, prose
from vaiom.run import MODELS, Run
from vaiom.training.progress import training_progress

if TYPE_CHECKING:
    from vaiom.training.loop import TrainResult

NOTED_RISE = 0.001
"""Bits by which the last Validation may exceed the best without a note."""

Settings = Annotated[
    list[str] | None, option("Change a setting; repeatable.", "--set", metavar="KEY=VALUE")
]


@answers
def experiments(
    name: Annotated[str, argument("[NAME]", "Show this experiment in full.")] = "",
    corpus: Annotated[
        Path | None, option("Count parameters for this corpus, not for the paper's.")
    ] = None,
    every: Every = False,
) -> Answer:
    """List the main experiments; with a name, show its configuration and exact number of
    parameters.

    An experiment is a model, its training and their settings under one name. Any setting can be
    changed by --set of `vaiom train`.

    Example: vaiom experiments main
    """
    from vaiom.experiments.registry import EXPERIMENTS, SHOWN, experiment
    from vaiom.model.config import PAPER_VOCABULARY
    from vaiom.model.vaiom import count_parameters

    if not name:
        listed = [{"name": each.name, "about": each.about} for each in EXPERIMENTS.values()]
        rows = [list(entry.values()) for entry in listed if every or entry["name"] in SHOWN]
        table = Table("Experiments", [Column("name"), Column("about", prose)], rows)
        num_more = len(listed) - len(rows)
        notes = [f"\n{num_more} more, variants of these: vaiom experiments --all"]
        return Answer(json={"experiments": listed}, shown=[table], notes=notes if num_more else [])
    chosen = experiment(name)
    vocabulary = PAPER_VOCABULARY
    if corpus:
        vocabulary = vaiom.open_corpus(corpus, verify=False).tokenizer.vocabulary_sizes
    num_params = count_parameters(chosen.model, vocabulary)
    source = corpus or "the paper's corpus"
    settings = to_json(chosen)
    shown = {"about": chosen.about, "num_params": f"{num_params:,} with the vocabulary of {source}"}
    for part in ("model", "train"):
        for key, value in settings[part].items():
            shown[f"{part}.{key}"] = ", ".join(value) if isinstance(value, list) else str(value)
    return Answer(
        json={**settings, "about": chosen.about, "num_params": num_params},
        shown=[facts(f"Experiment {name}", shown)],
    )


@answers
def train(
    corpus: CorpusPath,
    out: Annotated[Path, option("Run folder to write.")],
    experiment: Annotated[str | None, option("Name from `vaiom experiments`.")] = None,
    start: Annotated[
        Path | None, option("Run or model to continue from instead.", "--from", metavar="MODEL")
    ] = None,
    against: Annotated[
        list[Path] | None, option("With --from: run to compare with; repeatable.")
    ] = None,
    seed: Annotated[int | None, option("Random seed, instead of the experiment's.")] = None,
    steps: Annotated[int | None, option("Number of steps, instead of the experiment's.")] = None,
    device: Device = "auto",
    settings: Settings = None,
    resume: Resume = False,
) -> Answer | None:
    """Train an experiment and keep the model with the fewest Validation bits per event.

    With --from, build the corpus with --like and the same model. Training then takes few, small
    steps, assets that the model does not know start as unknown, and the last line says whether it
    helped.

    To train on several processes: `torchrun --nproc-per-node N --no-python vaiom train ...`. Each
    process draws its own dropout and mirrored windows, so that another number of processes gives
    another model, as another seed does.
    """
    _require_one_source(experiment, start, against)
    words = list(settings or [])
    if seed is not None:
        words.append(f"seed={seed}")
    if steps is not None:
        words.append(f"steps={steps}")
    with progress_bar("training") as progress:
        result = vaiom.train(
            corpus,
            out,
            experiment=experiment or "",
            start=start,
            against=against or (),
            settings=words,
            device=device,
            resume=resume,
            report=training_progress(progress),
        )
    return _answer(result, *getattr(result, "verdict", ()))


def _require_one_source(
    experiment: str | None, start: Path | None, against: list[Path] | None
) -> None:
    """An experiment or a model to continue from is trained, and only the latter is compared."""
    if start is None and against:
        got = "--against alone"
    elif experiment is None and start is None:
        got = "neither"
    elif experiment is not None and start is not None:
        got = "both"
    else:
        return
    expected = "--experiment NAME or --from MODEL_OR_RUN"
    raise ConfigError("name one thing to train", expected=expected, got=got)


@answers
def refit(
    run: RunPath,
    corpus: Annotated[Path, option("Corpus with the newest bars.")],
    out: Annotated[Path, option("Run folder to write.")],
    until: Annotated[datetime | None, date("Use only bars before this date.")] = None,
    yes: Annotated[bool, option("Confirm that held-out data may be used.", "--yes")] = False,
    device: Device = "auto",
    resume: Resume = False,
) -> Answer | None:
    """Train a run's configuration again through the newest bars; the last half-year selects, and no
    test is left.

    The result is a model for use, not for evidence: judge the configuration by the run that it
    comes from. The look at held-out data is recorded in the corpus, and --yes says that you accept
    it.

    Example: vaiom refit runs/main --corpus corpus-1h --out runs/newest --yes
    """
    from vaiom.experiments.refit import refit as run_refit

    if not yes:
        problem = (
            "a refit learns from Validation and the tests, selects on the newest half-year and "
            "records a look"
        )
        raise ConfigError(problem, where=corpus, expected="your consent", fix="--yes")
    opened = vaiom.open_corpus(corpus)
    with progress_bar("refitting") as progress:
        result = run_refit(
            run,
            opened,
            out,
            until=until,
            device=device,
            resume=resume,
            report=training_progress(progress),
        )
    return _answer(
        result,
        "It has learned from all bars but the last half-year's, which selected it: for use, not "
        "for evidence.",
    )


@answers
def horizons(
    run: RunPath,
    horizons: Annotated[str, option("Numbers of bars, as in 4,8,24.", metavar="A,B")] = "",
    corpus: RunCorpus = None,
    seed: Annotated[int, option("Random seed of the heads.", min=0, max=2**63 - 1)] = 17,
    device: Device = "auto",
) -> Answer:
    """Train small extra heads for the return over several bars, 4, 8 and 24 by default; the model
    does not change.

    Forecasts, risk and the service then take --horizon. The heads are fitted on Train and stored
    beside the model.

    Example: vaiom horizons runs/main --horizons 4,24
    """
    from vaiom.corpus.targets import HORIZONS
    from vaiom.experiments.refit import fit_horizons

    try:
        numbers = [int(text) for text in horizons.split(",")] if horizons else HORIZONS
    except ValueError as error:
        expected = "numbers of bars, as in 4,8,24"
        raise ConfigError("not horizons", expected=expected, got=horizons) from error
    opened = vaiom.open_corpus(corpus or Run(run).corpus_path())
    with progress_bar("hidden states") as progress:
        heads = fit_horizons(run, opened, numbers, seed=seed, device=device, progress=progress)
    columns = [Column("bars", count), Column("Validation bits/event", bits)]
    rows = [[int(bars), value] for bars, value in heads.validation_bits.items()]
    return Answer(
        json={
            "horizons": [fit.bars for fit in heads.fits],
            "validation_bits": heads.validation_bits,
            "seed": seed,
        },
        shown=[Table("Horizons", columns, rows)],
        notes=[f"\nThe heads are {Run(run).horizons}."],
    )


@answers
def dependence(run: RunPath, corpus: RunCorpus = None, device: Device = "auto") -> Answer:
    """Fit the dependence between a run's assets on Train, for `vaiom risk`; the model does not
    change.

    It joins the model's distributions of single assets to one of all together, and `vaiom evaluate`
    judges it on portfolios.
    """
    from vaiom.evaluation.copula_fit import fit_dependence
    from vaiom.evaluation.predictor import ModelPredictor
    from vaiom.files import write_json

    folder = Run(run)
    opened = vaiom.open_corpus(corpus or folder.corpus_path())
    with progress_bar("forecasts of Train") as progress:
        model = ModelPredictor.load(folder.best, device, progress)
        fit = fit_dependence(model, opened)
    write_json(folder.dependence, to_json(fit))
    about = {name: getattr(fit, name) for name in ("decay", "shrinkage", "degrees", "num_stamps")}
    shown = {name: str(value) for name, value in about.items()}
    return Answer(
        json={"symbols": fit.symbols, **about, "references": to_json(fit.references)},
        shown=[facts("The dependence of assets", shown)],
        notes=[f"\nIt is {folder.dependence}; `vaiom evaluate` judges it from now on."],
    )


@answers
def package(
    run: ModelPath,
    name: Annotated[str, argument("NAME", "Name of the new model.")],
    out: Annotated[
        Path | None, option("Folder to put it in; by default, where `vaiom models` finds it.")
    ] = None,
    clock: Annotated[str | None, option("Time zone and edge of the bars, for its card.")] = None,
    source: Annotated[str | None, option("Where the bars came from, for its card.")] = None,
    cost: Annotated[str | None, option("What training took, for its card.")] = None,
) -> Answer:
    """Make a packaged model of a run: its weights, horizons, dependence and evaluations.

    Every command takes its name from then on where it takes a run. Packaging the same run again
    gives the same files, byte for byte.

    Example: vaiom package runs/main my-model
    """
    from vaiom.experiments.package import package as make

    folder = make(run, name, out or MODELS, clock=clock, source=source, cost=cost)
    return Answer(
        json={"name": name, "path": str(folder), "files": read_json(Run(folder).about)["files"]},
        shown=[f"The model {name} is {folder}."],
    )


def _answer(result: TrainResult, *notes: str) -> Answer | None:
    """The result of a training, with a note if Validation rose at the end.

    Of several processes, only the first prints it.
    """
    from vaiom.training.devices import is_rank_0

    if not is_rank_0():
        return None
    rows = {
        "best step": f"{result.best_step:,}",
        "best Validation bits/event": f"{result.best_bits:.4f}",
        "last step": f"{result.last_step:,}",
        "Validation bits/event there": f"{result.last_bits:.4f}",
        "seconds, compilation apart": f"{result.seconds:.1f}",
    }
    if result.peak_gpu_mib is not None:
        rows["peak GPU memory"] = f"{result.peak_gpu_mib:,.0f} MiB"
    told = [f"\nThe model is {Run(result.run).best}."]
    risen = result.last_bits - result.best_bits
    if risen > NOTED_RISE:
        told.append(
            f"\nValidation has risen by {risen:.4f} bits since step {result.best_step:,}: more "
            "steps do not help."
        )
    return Answer(
        json=asdict(result),
        shown=[facts(f"Run {result.run}", rows)],
        notes=[*told, *notes],
    )
