"""`vaiom run` and `vaiom demo`: the whole job, on your files or on a simulated market."""

from __future__ import annotations

import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import vaiom
from vaiom.cli.console import Answer, answers, note, progress_bar
from vaiom.cli.forecast import describe_forecasts
from vaiom.cli.options import Device, Symbol, argument, option
from vaiom.cli.train import Settings
from vaiom.errors import EXTRAS, require_installed
from vaiom.report.tables import Column, Table, bits, signed
from vaiom.run import Run

if TYPE_CHECKING:
    from vaiom.report.contents import RunContents

EARLIER_DEMO = {"run": "config.toml", "baselines": "fits", "corpus": "manifest.json"}
"""What an earlier demo left, by folder: a folder without it is not removed."""


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

    Dates of Train, Validation and tests are chosen to suit the bars, and the experiment to suit the
    machine. Finished parts are kept: run the same command again to go on after an interruption.

    Example: vaiom run EURUSD_1h.csv XAUUSD_1h.csv --out runs/mine
    """
    require_installed(*EXTRAS["train"], *EXTRAS["report"])
    from vaiom.auditing.audit import audit_path
    from vaiom.auditing.proof import FAILED, AuditConfig
    from vaiom.experiments import registry, whole_job
    from vaiom.forecast.bars import newest_bars
    from vaiom.market.check import check_folder
    from vaiom.market.imports import gather_files
    from vaiom.report.verdict import verdict

    # A wrong name or setting is refused before the work.
    registry.experiment(experiment or whole_job.FOR_CPU).with_settings(settings or ())
    start = time.monotonic()
    with progress_bar("importing") as progress:
        bars = gather_files(files, out, symbol=symbol, progress=progress)
    with progress_bar("checking prices") as progress:
        quality = check_folder(bars, progress)
    for asset in quality.assets:
        if asset.problems:
            note(asset.problems)
    contents = _train_and_report(bars, out, experiment, settings or (), device)
    proofs = audit_path(
        contents.run,
        bars=bars,
        config=AuditConfig(cuts=2, rare_cuts=0),
        say=lambda text: note(f"audit: {text}"),
    )
    failed = [proof for proof in proofs if proof.verdict == FAILED]
    audited = [f"Audit: {each.name} FAILED: {'; '.join(each.findings)}" for each in failed]
    if not failed:
        audited = [f"Audit: {len(proofs)} proofs, none failed."]
    sentences = [*verdict(contents), *audited]
    forecaster = vaiom.Forecaster.load(contents.run)
    dists = forecaster.predict(newest_bars(bars))
    forecasts = describe_forecasts(forecaster, list(dists.values()))
    return Answer(
        json={"run": contents.run, "verdict": sentences, "passed": not failed, **forecasts.json},
        shown=[*forecasts.shown, "", *sentences],
        notes=[*forecasts.notes, *_next_steps(contents.run, bars, start)],
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
    """Do the whole job on a simulated market whose best possible score is known.

    It takes minutes on a CPU and needs no data. At its end you see how much of the way from the
    simplest baseline to the true distribution the model has gone.
    """
    require_installed(*EXTRAS["train"], *EXTRAS["report"])
    from vaiom.experiments.whole_job import FOR_CPU, bits_beside_oracle
    from vaiom.report.verdict import describe
    from vaiom.simulation.market import MarketConfig, write_market

    start = time.monotonic()
    for folder, file in EARLIER_DEMO.items():
        if (out / folder / file).exists():
            shutil.rmtree(out / folder)
    bars = out / "bars"
    with progress_bar("simulating a market") as progress:
        write_market(MarketConfig(seed=seed), bars, overwrite=True, progress=progress)
    contents = _train_and_report(bars, out, FOR_CPU, [f"seed={seed}"], device)
    corpus = contents.corpus
    assert corpus
    scores = bits_beside_oracle(contents.run, corpus, bars, device)
    frequency = scores["frequency"]
    share = (frequency - scores["model"]) / (frequency - scores["oracle"])
    columns = [
        Column("predictor"),
        Column("bits/event", bits),
        Column("gain over Frequency", signed),
    ]
    rows = [[name, value, frequency - value] for name, value in scores.items()]
    judged = contents.judged[-1]
    verdict = describe(judged.evaluation, judged.period)
    closed = f"The model closed {share:.0%} of the way from Frequency to the true distribution."
    steps = _next_steps(contents.run, bars, start)
    return Answer(
        json={"run": contents.run, "verdict": verdict, "bits": scores, "closed": share},
        shown=[verdict, Table("Validation", columns, rows)],
        notes=[f"\n{closed}", *steps, "  vaiom run YOUR_FILES --out runs/mine"],
    )


def _train_and_report(
    bars: Path, out: Path, name: str | None, settings: Any, device: str
) -> RunContents:
    """Corpus, training, evaluation and report of a bar folder; finished parts are kept."""
    from vaiom.experiments.whole_job import whole_job
    from vaiom.report.page import write_report

    run = whole_job(
        bars, out, name=name, settings=settings, device=device, progress=progress_bar, say=note
    )
    return write_report(run)


def _next_steps(run: Path, bars: Path, start: float) -> list[str]:
    """The time it took, and the commands to try next."""
    took = timedelta(seconds=round(time.monotonic() - start))
    return [
        f"\nDone in {took}. The report is {Run(run).report}. Next:",
        f"  vaiom predict {run} --bars {bars}",
        f"  vaiom serve {run} --bars {bars}",
        f"  vaiom audit {run} --bars {bars}",
        f"  vaiom card {run}",
    ]
