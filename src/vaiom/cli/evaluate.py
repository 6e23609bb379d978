"""`vaiom baselines`, `evaluate`, `score`, `report`, `audit`: how good a run is, with proofs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import vaiom
from vaiom.auditing.proof import QUICK_BASELINES, AuditConfig
from vaiom.cli.console import Answer, answers, note, progress_bar
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
    from vaiom.auditing.proof import Proof
    from vaiom.evaluation.record import Evaluation

SCREEN_WIDTH = 80
"""Sentences and the short tables fit into it."""
HEADLINE_COLUMNS = 5
Baselines = Annotated[
    Path | None, option("Folder of `vaiom baselines`; by default, three quick ones.")
]
Context = Annotated[int, option("Rows of history that an event must have; a run has its own.")]
QUICK = ",".join(QUICK_BASELINES)


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
    """Fit the baselines on Train and score them in bits per event.

    They range from counts of buckets to GARCH, trees and small networks, and are scored on exactly
    the events that a model is. Fits and the loss of each event stay in the folder, for `vaiom
    evaluate --baselines`.

    Example: vaiom baselines corpus-1h --out baselines --only frequency,garch_t
    """
    from vaiom.baselines.base import BASELINES, SHORTENED, require_known, usual_baselines
    from vaiom.evaluation.predictor import score_baselines

    if only is None:
        names = usual_baselines()
        skipped = ",".join(name for name in BASELINES if name not in (*names, *SHORTENED))
        if skipped:
            note(
                f"No GPU here, so these are left out: {skipped}; --only {skipped} trains them all "
                "the same."
            )
    else:
        names = require_known([name.strip() for name in only.split(",")])
    opened = vaiom.open_corpus(corpus)
    if horizon > 1:
        opened = opened.with_target(horizon)
    splits = [split]
    if run:
        from vaiom.model.checkpoint import load_model

        context = load_model(run).config.history
        splits = Run(find_run(run)).evaluated_splits() or splits
    columns = [Column("baseline"), Column("bits/event", bits), Column("behind best", signed)]
    results = {}
    tables = []
    for name in splits:
        # Of a run's splits, one may be sealed.
        key = unseal if not run or name == unseal else None
        scores = score_baselines(opened, names, out, name, context, progress_bar, unseal=key)
        num_events = len(opened.endpoints(name, context, unseal=unseal is not None))
        best = min(scores.values())
        rows = [[baseline, value, value - best] for baseline, value in scores.items()]
        caption = f"{name}: {num_events:,} events, fitted on Train alone"
        tables.append(Table(caption, columns, rows))
        results[name] = {"split": name, "events": num_events, "bits": scores}
    answer = dict(results.get(split, results[splits[0]]))
    if run:
        answer["splits"] = results
    notes = [f"\nFits and per-event losses are in {out}."]
    return Answer(json=answer, shown=tables, notes=notes)


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

    Gains are over baselines on the same events, with intervals by asset and month. Every use of a
    test split is recorded in the corpus, because a test that is looked at often is no test.

    Example: vaiom evaluate runs/main --split test-h1 --baselines baselines
    """
    from vaiom.evaluation.evaluate import evaluate_run

    opened = vaiom.open_corpus(corpus or Run(run).corpus_path())
    with progress_bar(f"scoring {split}") as progress:
        evaluation = evaluate_run(
            run,
            opened,
            split,
            baselines=baselines,
            other_seeds=seed_run or [],
            unseal=unseal,
            out=out,
            device=device,
            progress=progress,
        )
    model = f"{evaluation.experiment}, seed {evaluation.seed}, step {evaluation.step:,}"
    file = Run(out or run).evaluation(split)
    where = f"Everything else is in {file}, the loss of each event beside it."
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

    Forecasts are matched to events by symbol and target time, and every event of the split must
    have one. With --against, they are compared with a run that was evaluated there.

    Example: vaiom score theirs.parquet --corpus corpus-1h --against runs/main
    """
    opened = vaiom.open_corpus(corpus)
    name = name or forecasts.name.partition(".")[0]
    evaluation = vaiom.score(
        forecasts,
        opened,
        split,
        name=name,
        save=save,
        against=against,
        baselines=baselines,
        context=context,
        unseal=unseal,
    )
    stored = []
    if save and against:
        stored = [f"Kept in {Run(against).forecasts / name}: vaiom report {against}"]
    about = []
    if evaluation.form != "probabilities":
        about = [f"Calibration and risk are of the buckets made from these {evaluation.form}."]
    return _describe(evaluation, opened, about, *stored, name=name, every=every)


def _describe(
    evaluation: Evaluation,
    corpus: vaiom.Corpus,
    about: list[str],
    *notes: str,
    name: str | None = None,
    every: bool,
) -> Answer:
    """An evaluation of the model, or of forecasts with a `name`, as sentences, tables and notes.

    Without `every` it is what a first look needs, in 80 columns.
    """
    from vaiom.report.contents import period_of
    from vaiom.report.results import tables_of
    from vaiom.report.verdict import describe, describe_states, notes_of

    split = evaluation.split
    tables = tables_of(evaluation, split, name or "model")
    if every:
        last = ("calibration_by", "all_tests")
        shown = [table for part in tables if part not in last for table in tables[part]]
        shown += tables["all_tests"]
    else:
        top = tables["headline"][0]
        columns = top.columns[:HEADLINE_COLUMNS]
        rows = [row[:HEADLINE_COLUMNS] for row in top.rows]
        shown = [replace(top, columns=columns, rows=rows), *tables["calibration"][:1]]
    caveats = notes_of(evaluation)
    if evaluation.mixture:
        caveats = [*caveats, describe_states(evaluation.mixture)]
    if evaluation.looks is not None:
        times = f"{evaluation.looks} times, this one included"
        if evaluation.looks == 1:
            times = "once, now"
        caveats = [*caveats, f"This split of this corpus was looked at {times}."]
    verdict = describe(evaluation, period_of(corpus.splits, split), name or "the model")
    sentences = [_wrap(text) for text in ("", *caveats, "", *notes)]
    return Answer(json=asdict(evaluation), shown=[_wrap(verdict), *about, *shown], notes=sentences)


def _wrap(text: str) -> str:
    """A text in lines that fit a screen; paths stay whole."""
    return fill(text, width=SCREEN_WIDTH, break_long_words=False, break_on_hyphens=False)


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
    """Write the report of a run: one self-contained HTML file.

    It holds everything that was evaluated, with tables, figures, the quality of the data and the
    limits of what was shown.

    Example: vaiom report runs/main
    """
    from vaiom.report.page import write_report
    from vaiom.report.verdict import verdict

    contents = write_report(run, corpus=corpus, out=out, markdown=markdown, latex=latex)
    page = out or Run(run).report
    files = {"report": page, "markdown": markdown, "latex": latex}
    sentences = verdict(contents)
    notes = []
    problem = contents.inputs.corpus_problem
    if problem:
        notes.append(
            f"\nWithout the data-quality part, because the corpus could not be read: {problem}"
        )
    notes.append(f"\nThe report is {page}: open it in any browser.")
    return Answer(
        json={
            "files": {name: file for name, file in files.items() if file},
            "splits": [split.name for split in contents.splits],
            "verdict": sentences,
        },
        shown=sentences,
        notes=notes,
    )


@answers
def audit(
    path: Annotated[Path, argument("CORPUS_OR_RUN", "Corpus folder or run folder.")],
    bars: Annotated[
        Path | None, option("Bar folder of the corpus; some proofs are not run without it.")
    ] = None,
    corpus: RunCorpus = None,
    cuts: Annotated[
        int, option("Random times after which the bars are changed.", min=1)
    ] = AuditConfig.cuts,
    rare_cuts: Annotated[
        int, option("The same at each hour of the week, gap and holiday.", min=0)
    ] = AuditConfig.rare_cuts,
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

    A corpus is built again from its bars and from bars that were changed after random times; a run
    is scored again, and its baselines are fitted again. The bars that the corpus was built from
    make most of the proofs possible.

    Example: vaiom audit runs/main --bars bars-1h
    """
    from vaiom.auditing.audit import audit_path, hashes_of
    from vaiom.auditing.proof import FAILED
    from vaiom.auditing.repeat import prove_repeat
    from vaiom.baselines.base import require_known

    names = baselines.split(",")
    drawn = {} if seed is None else {"seed": seed}
    config = AuditConfig(
        cuts=cuts, rare_cuts=rare_cuts, context=context, rescore=rescore, baselines=names, **drawn
    )
    hashes: dict[str, str] = {}
    model = find_run(path)
    if not (ledger or repeat) and Run(model).about.is_file():
        from vaiom.auditing.packaged import prove_package

        proofs = [prove_package(model)]
    elif ledger:
        from vaiom.auditing.service_ledger import prove_ledger

        if bars is None:
            problem = "forecasts are made again from bars"
            raise ConfigError(problem, expected="--bars with those that the service had")
        proofs = [prove_ledger(ledger, path, bars)]
    elif repeat:
        opened = vaiom.open_corpus(corpus or Run(path).corpus_path())
        proofs = [prove_repeat(path, opened, full=full, device=device)]
    else:
        require_known(names)
        proofs = audit_path(
            path, bars=bars, corpus=corpus, config=config, say=lambda text: note(f"audit: {text}")
        )
        hashes = hashes_of(path, corpus)
    passed = all(proof.verdict != FAILED for proof in proofs)
    columns = [
        Column("proof", source="name"),
        Column("verdict", source="verdict"),
        Column("checks", count, "count"),
        Column("seconds", "{:.1f}".format, "seconds"),
        Column("what, and what was found", prose, _found),
    ]
    shown = [Table.of(f"Audit of {path}, --seed {config.seed}", columns, proofs)]
    if hashes:
        caption = "What was audited, SHA-256: publish these before anyone asks"
        shown.append(facts(caption, hashes))
    return Answer(
        json={
            "path": str(path),
            "passed": passed,
            "seed": config.seed,
            "hashes": hashes,
            "proofs": [proof.summary() for proof in proofs],
        },
        shown=shown,
        failed=not passed,
    )


def _found(proof: Proof) -> str:
    """What a proof claims, and what it found."""
    return "\n".join([proof.about, *proof.notes, *proof.first_findings])
