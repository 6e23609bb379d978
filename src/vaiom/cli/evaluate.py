"""`vaiom baselines`, `evaluate`, `score`, `report`, `audit`: how good a run is, and why that can be
trusted.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import vaiom
from vaiom.auditing.proof import QUICK_BASELINES, AuditConfig
from vaiom.cli import console
from vaiom.cli.console import Answer, answers
from vaiom.cli.options import (
    CorpusPath,
    Device,
    Every,
    RunCorpus,
    RunPath,
    Split,
    Unseal,
    argument,
    option,
)
from vaiom.errors import ConfigError
from vaiom.report.tables import Column, Table, bits, count, facts, prose, signed
from vaiom.run import Run, find_run

if TYPE_CHECKING:
    from vaiom.evaluation.evaluate import Evaluation

_WIDTH, _NARROW = 80, 5  # of a screen in characters, and of the short headline table in columns
Baselines = Annotated[
    Path | None, option("Folder of `vaiom baselines`; by default, three quick ones.")
]
Context = Annotated[int, option("Rows of history that an event must have; a run has its own.")]
CUTS, RARE_CUTS, QUICK = AuditConfig.cuts, AuditConfig.rare_cuts, ",".join(QUICK_BASELINES)


@answers
def baselines(
    corpus: CorpusPath,
    out: Annotated[Path, option("Folder for fits and per-event losses; later calls add to it.")],
    only: Annotated[str | None, option("Only these, instead of all.", metavar="A,B")] = None,
    split: Split = "validation",
    context: Context = 512,
    horizon: Annotated[int, option("Bars that the return spans, as in `vaiom horizons`.")] = 1,
    run: Annotated[Path | None, option("Take context and splits from this run.", "--for")] = None,
    unseal: Unseal = None,
) -> Answer:
    """Fit the baselines on Train and score them in bits per event."""
    from vaiom.baselines.base import BASELINES, require_known, usual_baselines
    from vaiom.evaluation.predictor import score_baselines

    names = require_known(
        [name.strip() for name in only.split(",")] if only is not None else usual_baselines()
    )
    if skipped := ",".join(name for name in BASELINES if only is None and name not in names):
        console.note(
            f"No GPU here, so these are left out: {skipped}; --only {skipped} trains them all the "
            f"same."
        )
    opened = vaiom.open_corpus(corpus)
    opened = opened if horizon == 1 else opened.with_target(horizon)
    splits = [split]
    if run:
        from vaiom.model.checkpoint import load_model

        context, splits = (
            load_model(run).config.history,
            Run(find_run(run)).evaluated_splits() or splits,
        )
    columns = [Column("baseline"), Column("bits/event", bits), Column("behind best", signed)]
    results, tables = {}, []
    for name in splits:
        opens = (
            unseal if name == unseal or not run else None
        )  # of a run's splits, one may be sealed
        scores = score_baselines(
            opened, names, out, name, context, console.progress_bar, unseal=opens
        )
        events = len(opened.endpoints(name, context, unseal=unseal is not None))
        rows = [
            [baseline, value, value - min(scores.values())] for baseline, value in scores.items()
        ]
        results[name] = {"split": name, "events": events, "bits": scores}
        tables.append(Table(f"{name}: {events:,} events, fitted on Train alone", columns, rows))
    result = results[split if split in results else splits[0]]
    notes = [f"\nFits and per-event losses are in {out}."]
    return Answer(
        json={**result, **({"splits": results} if run else {})}, shown=tables, notes=notes
    )


@answers
def evaluate(
    run: Annotated[Path, argument("RUN", "Run folder, or name of a packaged model.")],
    split: Split = "validation",
    corpus: RunCorpus = None,
    baselines: Baselines = None,
    seed_run: Annotated[
        list[Path] | None, option("Run of another seed, evaluated before; repeatable.")
    ] = None,
    unseal: Unseal = None,
    out: Annotated[Path | None, option("Folder for the results, instead of the run.")] = None,
    every: Every = False,
    device: Device = "auto",
) -> Answer:
    """Score a run on held-out events: bits per event, gains with intervals, calibration; results go
    into the run.
    """
    from vaiom.evaluation.evaluate import evaluate_run

    opened = vaiom.open_corpus(corpus or Run(run).corpus_path())
    options: dict[str, Any] = {
        "baselines": baselines,
        "other_seeds": seed_run or [],
        "unseal": unseal,
        "out": out,
    }
    with console.progress_bar(f"scoring {split}") as progress:
        evaluation = evaluate_run(run, opened, split, **options, device=device, progress=progress)
    model = f"{evaluation.experiment}, seed {evaluation.seed}, step {evaluation.step:,}"
    where = (
        f"Everything else is in {Run(out or run).evaluation(split)}, the loss of each event "
        f"beside it."
    )
    return _describe(evaluation, opened, [model], where, every=every)


@answers
def score(
    forecasts: Annotated[Path, argument("FORECASTS", "Parquet or CSV, as in docs/scoring.md.")],
    corpus: Annotated[Path, option("Corpus folder.")],
    split: Split = "validation",
    name: Annotated[
        str | None, option("Name to show for the forecasts; by default, the file's.")
    ] = None,
    against: Annotated[Path | None, option("Run that was evaluated on this split.")] = None,
    baselines: Baselines = None,
    context: Context = 512,
    save: Annotated[bool, option("Store them in the run, for its report.", "--save")] = False,
    unseal: Unseal = None,
    every: Every = False,
) -> Answer:
    """Score forecasts of any origin (probabilities, quantiles or samples) on the same events as a
    model.
    """
    opened, name = vaiom.open_corpus(corpus), name or forecasts.name.partition(".")[0]
    options: dict[str, Any] = {
        "against": against,
        "baselines": baselines,
        "context": context,
        "unseal": unseal,
    }
    evaluation = vaiom.score(forecasts, opened, split, name=name, save=save, **options)
    stored = (
        [f"Kept in {Run(against).forecasts / name}: vaiom report {against}"]
        if save and against
        else []
    )
    told = f"Calibration and risk are of the buckets made from these {evaluation.form}."
    about = [told] if evaluation.form != "probabilities" else []
    return _describe(evaluation, opened, about, *stored, name=name, every=every)


def _describe(
    evaluation: Evaluation,
    corpus: vaiom.Corpus,
    about: list[str],
    *notes: str,
    name: str | None = None,
    every: bool,
) -> Answer:
    """An evaluation of the model, or of forecasts with a `name`, as sentences, tables and notes."""
    from vaiom.report.contents import period_of
    from vaiom.report.results import tables_of
    from vaiom.report.verdict import describe, describe_states, notes_of

    tables, caveats = (
        tables_of(evaluation, evaluation.split, name or "model"),
        ["", *notes_of(evaluation)],
    )
    caveats += [describe_states(evaluation.mixture)] if evaluation.mixture else []
    if evaluation.looks is not None:
        times = (
            "once, now" if evaluation.looks == 1 else f"{evaluation.looks} times, this one included"
        )
        caveats.append(f"This split of this corpus was looked at {times}.")
    if every:
        wide = ("calibration_by", "all_tests")
        shown = [table for part in tables if part not in wide for table in tables[part]] + tables[
            "all_tests"
        ]
    else:  # what a first look needs, in 80 columns
        top, *_ = tables["headline"]
        shown = [
            replace(top, columns=top.columns[:_NARROW], rows=[row[:_NARROW] for row in top.rows])
        ]
        shown += tables["calibration"][:1]
    verdict = describe(evaluation, period_of(corpus.splits, evaluation.split), name or "the model")
    wrapped = partial(
        fill, width=_WIDTH, break_long_words=False, break_on_hyphens=False
    )  # paths stay whole
    first, *rest = map(wrapped, (verdict, *caveats, "", *notes))
    return Answer(json=asdict(evaluation), shown=[first, *about, *shown], notes=rest)


@answers
def report(
    run: RunPath,
    corpus: RunCorpus = None,
    out: Annotated[
        Path | None, option("File to write; by default, report.html in the run.", metavar="FILE")
    ] = None,
    markdown: Annotated[
        Path | None, option("Also write the main tables as Markdown.", metavar="FILE")
    ] = None,
    latex: Annotated[
        Path | None, option("Also write the main tables as LaTeX.", metavar="FILE")
    ] = None,
) -> Answer:
    """Write the report of a run: one self-contained HTML file."""
    from vaiom.report.page import write_report
    from vaiom.report.verdict import verdict

    contents = write_report(run, corpus=corpus, out=out, markdown=markdown, latex=latex)
    page, sentences, problem = (
        out or Run(run).report,
        verdict(contents),
        contents.inputs.corpus_problem,
    )
    files = {"report": page, "markdown": markdown, "latex": latex}
    without = f"\nWithout the data-quality part, because the corpus could not be read: {problem}"
    written = {name: file for name, file in files.items() if file}
    return Answer(
        json={
            "files": written,
            "splits": [split.name for split in contents.splits],
            "verdict": sentences,
        },
        shown=sentences,
        notes=[*([without] if problem else []), f"\nThe report is {page}: open it in any browser."],
    )


@answers
def audit(
    path: Annotated[Path, argument("CORPUS_OR_RUN", "Corpus folder or run folder.")],
    bars: Annotated[
        Path | None, option("Bar folder of the corpus; some proofs are not run without it.")
    ] = None,
    corpus: RunCorpus = None,
    cuts: Annotated[int, option("Random times after which the bars are changed.", min=1)] = CUTS,
    rare_cuts: Annotated[
        int, option("The same at each hour of the week, gap and holiday.", min=0)
    ] = RARE_CUTS,
    seed: Annotated[
        int | None, option("Random seed; by default, a new one is drawn and printed.", min=0)
    ] = None,
    context: Annotated[
        int | None, option("Rows of a window, to audit a corpus; a run has its own.", min=1)
    ] = None,
    baselines: Annotated[
        str, option("Baselines to fit again; trees and GARCH take minutes.")
    ] = QUICK,
    rescore: Annotated[
        int | None, option("Number of events per split to score again.", min=1)
    ] = None,
    ledger: Annotated[
        Path | None, option("Instead, check a service's ledger; needs --bars.")
    ] = None,
    repeat: Annotated[
        bool, option("Instead, train the run's first steps twice and compare.", "--repeat")
    ] = False,
    full: Annotated[bool, option("With --repeat: all steps.", "--full")] = False,
    device: Annotated[str, option("With --repeat: auto, cpu, cuda or cuda:N.")] = "cpu",
) -> Answer:
    """Prove that nothing leaked from the future and that all figures can be computed again; exit 1
    if a proof fails.
    """
    from vaiom.auditing.audit import audit_path, hashes_of
    from vaiom.auditing.proof import FAILED
    from vaiom.auditing.provenance import prove_repeat
    from vaiom.baselines.base import require_known

    hashes: dict[str, str] = {}
    names, options = baselines.split(","), {} if seed is None else {"seed": seed}
    config = AuditConfig(
        cuts=cuts, rare_cuts=rare_cuts, context=context, rescore=rescore, baselines=names, **options
    )
    if ledger:
        from vaiom.auditing.forecasts import prove_ledger

        if bars is None:
            raise ConfigError(
                "forecasts are made again from bars",
                expected="--bars with those that the service had",
            )
        proofs = [prove_ledger(ledger, path, bars)]
    elif repeat:
        proofs = [
            prove_repeat(
                path, vaiom.open_corpus(corpus or Run(path).corpus_path()), full=full, device=device
            )
        ]
    else:
        require_known(names)
        proofs = audit_path(
            path,
            bars=bars,
            corpus=corpus,
            config=config,
            say=lambda text: console.note(f"audit: {text}"),
        )
        hashes = hashes_of(path, corpus)
    passed = all(proof.verdict != FAILED for proof in proofs)
    columns = [
        *(
            Column("proof", source="name"),
            Column("verdict", source="verdict"),
            Column("checks", count, "count"),
        ),
        Column("seconds", "{:.1f}".format, "seconds"),
        Column(
            "what, and what was found",
            prose,
            lambda p: "\n".join([p.claim.about, *p.notes, *p.findings]),
        ),
    ]
    shown = [Table.of(f"Audit of {path}, --seed {config.seed}", columns, proofs)]
    shown += (
        [facts("What was audited, SHA-256: publish these before anyone asks", hashes)]
        if hashes
        else []
    )
    answer = {"path": str(path), "passed": passed, "seed": config.seed, "hashes": hashes}
    answer["proofs"] = [proof.summary() for proof in proofs]
    return Answer(json=answer, shown=shown, failed=not passed)
