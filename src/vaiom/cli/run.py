"""`vaiom run` and `vaiom demo`: the whole job, on your files or on the built-in simulated
market.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import vaiom
from vaiom.cli.console import Answer, answers, note, progress_bar
from vaiom.cli.forecast import describe_forecasts, describe_quality
from vaiom.cli.options import Device, Symbol, argument, option
from vaiom.cli.train import Settings, training_report
from vaiom.errors import EXTRAS, ConfigError, require_installed
from vaiom.files import Progress, ensure_folder, read_json, sha256_file, write_json
from vaiom.report.tables import Column, Table, bits, count, signed
from vaiom.run import Run

if TYPE_CHECKING:
    from vaiom.baselines.base import Baseline
    from vaiom.report.contents import RunContents
    from vaiom.training.experiment import Experiment

BASELINES = ("frequency", "markov", "hour_of_week", "ewma_t", "garch_t", "lightgbm")
FOR_CPU, FOR_GPU = "demo", "best"


@answers
def run(
    files: Annotated[list[Path], argument("FILE", "Price files that `vaiom data import` reads.")],
    out: Annotated[Path, option("Folder for all results; run it again to continue there.")],
    symbol: Symbol = None,
    experiment: Annotated[
        str | None, option("Experiment to train; by default, one for this machine.")
    ] = None,
    settings: Settings = None,
    device: Device = "auto",
) -> Answer:
    """Do the whole job on your files: import, check, corpus, train, baselines, evaluate, report,
    audit, forecast.
    """
    require_installed(*EXTRAS["train"], *EXTRAS["report"])
    from vaiom.auditing.audit import audit_path
    from vaiom.auditing.proof import FAILED, AuditConfig
    from vaiom.experiments import registry
    from vaiom.forecast.bars import newest_bars
    from vaiom.report.verdict import verdict

    registry.experiment(experiment or FOR_CPU).with_settings(
        settings or ()
    )  # a wrong one is refused before the work
    start, bars = time.monotonic(), _import(files, out, symbol)
    contents = _judge(bars, out, experiment, settings or (), device)
    proofs = audit_path(
        contents.run,
        bars=bars,
        config=AuditConfig(cuts=2, rare_cuts=0),
        say=lambda text: note(f"audit: {text}"),
    )
    failed = [
        f"Audit: {proof.name} FAILED: {'; '.join(proof.findings)}"
        for proof in proofs
        if proof.verdict == FAILED
    ]
    forecaster = vaiom.Forecaster.load(contents.run)
    forecasts = describe_forecasts(forecaster, list(forecaster.predict(newest_bars(bars)).values()))
    sentences = [*verdict(contents), *(failed or [f"Audit: {len(proofs)} proofs, none failed."])]
    return Answer(
        json={"run": contents.run, "verdict": sentences, "passed": not failed, **forecasts.json},
        shown=[*forecasts.shown, "", *sentences],
        notes=[*forecasts.notes, *_next(contents.run, bars, start)],
        failed=bool(failed),
    )


@answers
def demo(
    out: Annotated[Path, option("Folder for all results; an earlier demo is replaced.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, option("Random seed of market and model.", min=0)] = 17,
    device: Device = "auto",
) -> Answer:
    """Do the whole job on a simulated market whose best possible score is known."""
    require_installed(*EXTRAS["train"], *EXTRAS["report"])
    from vaiom.baselines.counts import Frequency, Markov
    from vaiom.corpus.splits import VALIDATION
    from vaiom.evaluation.predictor import ModelPredictor
    from vaiom.evaluation.scores import losses_of
    from vaiom.report.verdict import describe
    from vaiom.simulation.market import MarketConfig, write_market
    from vaiom.simulation.oracle import Oracle

    start, bars, config = time.monotonic(), out / "bars", MarketConfig(seed=seed)
    for part, file in (("run", "config.toml"), ("baselines", "fits"), ("corpus", "manifest.json")):
        if (out / part / file).exists():  # an earlier demo; anything else there stops the work
            shutil.rmtree(out / part)
    with progress_bar("simulating a market") as progress:
        write_market(config, bars, overwrite=True, progress=progress)
    contents = _judge(bars, out, FOR_CPU, [f"seed={seed}"], device)
    corpus, checkpoint = contents.corpus, contents.checkpoint
    assert corpus
    model, history = ModelPredictor(checkpoint, device), checkpoint.config.history
    rows = corpus.endpoints(VALIDATION, history)
    losses = losses_of([Frequency(), Markov(), model, Oracle.load(bars)], corpus, rows, history)
    scores = {name: float(each.mean()) for name, each in losses.items()}
    share = (scores["frequency"] - scores["model"]) / (scores["frequency"] - scores["oracle"])
    columns = [
        Column("predictor"),
        Column("bits/event", bits),
        Column("gain over Frequency", signed),
    ]
    gains = [[name, value, scores["frequency"] - value] for name, value in scores.items()]
    closed = (
        f"\nThe model closed {100 * share:.0f}% of the way from Frequency to the true distribution."
    )
    verdict = describe(contents.judged[-1].evaluation, contents.judged[-1].period)
    return Answer(
        json={"run": contents.run, "verdict": verdict, "bits": scores, "closed": share},
        shown=[verdict, Table("Validation", columns, gains)],
        notes=[closed, *_next(contents.run, bars, start), "  vaiom run YOUR_FILES --out runs/mine"],
    )


def _import(files: Sequence[Path], out: Path, symbol: str | None) -> Path:
    """Import the files into a bar folder, unless they are one; an earlier run here must have had
    the same files.
    """
    from vaiom.market.folder import holds_bars
    from vaiom.market.imports import import_files, list_files

    bars, record, listed = out / "bars", out / "files.json", list_files(files)
    is_folder = len(files) == 1 and all(
        file.parent == files[0] and holds_bars(file) for file in listed
    )
    hashes = {str(file.resolve()): sha256_file(file) for file in listed}
    if not record.exists():
        if not is_folder:
            with progress_bar("importing") as progress:
                import_files(
                    files,
                    bars,
                    symbol=symbol,
                    utc=True,
                    repair=True,
                    replace=True,
                    progress=progress,
                )
        write_json(ensure_folder(out) / record.name, hashes)
    elif read_json(record) != hashes:
        fix = "choose another --out, or remove that one"
        raise ConfigError(
            "another run was started here", where=out, expected="the files that it had", fix=fix
        )
    return files[0] if is_folder else bars


def _judge(
    bars: Path, out: Path, name: str | None, settings: Sequence[str], device: str
) -> RunContents:
    """Check, corpus, training, baselines, evaluation and report; finished parts are kept."""
    from vaiom.corpus.splits import VALIDATION
    from vaiom.evaluation.evaluate import Evaluation, evaluate_run
    from vaiom.evaluation.predictor import score_baselines
    from vaiom.market.check import check_folder
    from vaiom.model.checkpoint import load_model
    from vaiom.report.page import write_report
    from vaiom.training.loop import train

    with progress_bar("checking prices") as progress:
        quality = check_folder(bars, progress)
    for asset in quality.assets:
        if problems := describe_quality(asset.symbol, asset.findings, {}):
            note(problems)
    corpus, run = _corpus(bars, out / "corpus"), out / "run"
    chosen = _experiment(corpus, name, settings, device)
    with training_report("training") as report:
        train(corpus, chosen, run, device=device, resume=True, report=report)
    history, best = chosen.model.history, load_model(run).sha256
    for split in (VALIDATION, *corpus.splits.test_names):
        is_done = (
            Run(run).evaluation(split).is_file()
            and Evaluation.read(run, split).checkpoint_sha256 == best
        )
        if is_done or not len(corpus.endpoints(split, history)):
            continue
        with progress_bar(f"baselines on {split}") as bar:

            def of(name: str) -> Any:
                return nullcontext(lambda done, total, what: bar(done, total, f"{name} {what}"))

            score_baselines(
                corpus, BASELINES, out / "baselines", split, history, of, _quick_baseline
            )
        with progress_bar(f"judging the model on {split}") as progress:
            evaluate_run(
                run, corpus, split, baselines=out / "baselines", device=device, progress=progress
            )
    return write_report(run)


def _corpus(bars: Path, folder: Path) -> vaiom.Corpus:
    """Open or build the corpus, with split dates that suit the bars."""
    from vaiom.corpus.build import CorpusConfig, build_corpus, propose_splits
    from vaiom.corpus.store import MANIFEST_NAME

    if (folder / MANIFEST_NAME).exists():
        return vaiom.open_corpus(folder)
    with progress_bar("building the corpus") as progress:
        corpus = build_corpus(
            bars, folder, CorpusConfig(splits=propose_splits(bars)), progress=progress
        )
    note(
        f"{folder}: {count(len(corpus))} bars of {corpus.tokenizer.timeframe}; "
        f"{', '.join(corpus.asset_slices)}"
    )
    return corpus


def _experiment(
    corpus: vaiom.Corpus, name: str | None, settings: Sequence[str], device: str
) -> Experiment:
    """The named experiment, or the largest one that this machine trains and the bars have windows
    for.
    """
    from vaiom.corpus.splits import TRAIN, VALIDATION
    from vaiom.experiments.registry import experiment, stopping_early
    from vaiom.model.vaiom import count_parameters
    from vaiom.training.devices import resolve_device

    kind = resolve_device(device).type
    large = kind == "cuda" and len(corpus.endpoints(TRAIN, experiment(FOR_GPU).model.context)) > 0
    chosen = stopping_early(experiment(name or (FOR_GPU if large else FOR_CPU))).with_settings(
        settings
    )
    size = count_parameters(chosen.model, corpus.tokenizer.vocabulary_sizes)
    steps = f"{count(size)} parameters, {count(chosen.train.steps)} steps at most"
    splits = corpus.splits
    until = f"{splits.validation[0]:%Y-%m-%d} to {splits.validation[1]:%Y-%m-%d}"
    events = {
        split: len(corpus.endpoints(split, chosen.model.history))
        for split in (TRAIN, VALIDATION, *splits.test_names)
    }
    counts = ", ".join(f"{split} {count(number)}" for split, number in events.items() if number)
    note(f"Train before {splits.train_end:%Y-%m-%d}, Validation {until}; events: {counts}")
    note(f"training `{chosen.name}` on a {kind.upper()}: {steps}")
    return chosen


def _next(run: Path, bars: Path, start: float) -> list[str]:
    """The time it took, and the commands to try next."""
    return [
        f"\nDone in {timedelta(seconds=round(time.monotonic() - start))}. The report is "
        f"{Run(run).report}. Next:",
        f"  vaiom predict {run} --bars {bars}",
        f"  vaiom serve {run} --bars {bars}",
        f"  vaiom audit {run} --bars {bars}",
        f"  vaiom card {run}",
    ]


def _quick_baseline(name: str, progress: Progress | None) -> Baseline:
    """A baseline by name; LightGBM takes seconds, with fewer events and a higher learning rate than
    the paper's.
    """
    from vaiom.baselines.base import baseline
    from vaiom.baselines.lightgbm import LightGBM, TreeConfig

    if name != "lightgbm":
        return baseline(name, progress)
    return LightGBM(
        name, TreeConfig(rounds=80, learning_rate=0.1, patience=10, max_events=200_000), progress
    )
