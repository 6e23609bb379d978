"""`vaiom reproduce`: the paper's tables, ours beside the published figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaiom.cli.console import note, print_json, progress_bar

if TYPE_CHECKING:
    from vaiom.events.corpus import Corpus
    from vaiom.experiments.plan import Task
    from vaiom.experiments.records import Records


def reproduce(
    tables: Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="Some of them; else all.")] = None,
    corpus: Annotated[
        list[Path] | None, typer.Option(help="A corpus; one per timeframe, told apart by it. None only renders.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Runs, records and the page; finished work there is reused.")] = Path(
        "runs/reproduction"
    ),
    baselines: Annotated[
        Path | None, typer.Option(help="What `vaiom baselines` stored for these splits; else Frequency and Markov.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray: the cluster that `ray start --head` began.")] = "local",
    workers: Annotated[
        int, typer.Option(min=1, help="Local runs at a time, spread over the GPUs; Ray fills its cluster.")
    ] = 1,
    budget: Annotated[str, typer.Option(help="full: the paper's lengths. fast: long runs shortened, and marked.")] = (
        "full"
    ),
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change every run; another experiment claims nothing."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    page: Annotated[Path | None, typer.Option(help="Where the page goes; else into --out.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the runs with their cost, and run nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")] = False,
) -> None:
    """Run the paper's experiments on your corpora and print its tables with both columns."""
    from vaiom.experiments.plan import require_tables, tasks_of
    from vaiom.experiments.records import Records
    from vaiom.experiments.runner import run_tasks
    from vaiom.experiments.work import Place
    from vaiom.report.reproduction import PAGE_NAME, write_page

    chosen = require_tables(tables or [])
    opened = _open(corpus or [])
    tasks = tasks_of(chosen, opened, budget, settings or ())
    if list_:
        _list(chosen, tasks, json)
        return
    place = Place(
        corpora={name: each.path for name, each in opened.items() if each.path},
        out=out,
        baselines=baselines,
        device=device,
    )
    with progress_bar("reproducing") as report:
        failures = run_tasks(tasks, place, engine=engine, workers=workers, report=report)
    records = Records.read(place.records, required=True)
    written = page or out / PAGE_NAME
    write_page(records, written)
    if json:
        failed = [{"task": each.task, "reason": each.reason} for each in failures]
        print_json({"tables": list(chosen), "tasks": len(tasks), "failed": failed, "page": str(written)})
    else:
        _show(chosen, records)
        note(f"\nThe page is {written}, its records are in {place.records}.")
    for failure in failures:
        note(f"\nFailed: {failure.task}\n{failure.reason}")
    if failures:
        raise typer.Exit(1)


def _open(paths: list[Path]) -> dict[str, Corpus]:
    from vaiom.errors import ConfigError
    from vaiom.events.corpus import open_corpus

    out: dict[str, Corpus] = {}
    for path in paths:
        opened = open_corpus(path)
        timeframe = opened.tokenizer.timeframe
        if timeframe in out:
            raise ConfigError("two corpora of one timeframe", where=path, got=timeframe, fix="name one of each")
        out[timeframe] = opened
    return out


def _list(tables: tuple[str, ...], tasks: list[Task], json: bool) -> None:
    from vaiom.cli.tables import show, table
    from vaiom.experiments.paper import COMPARISONS
    from vaiom.experiments.plan import cost_beside_main
    from vaiom.experiments.records import RUN, WALK
    from vaiom.experiments.registry import EXPERIMENTS

    planned = [
        (task.label, cost_beside_main(task.experiment), task.shortened)
        for task in tasks
        if task.experiment and task.kind in (RUN, WALK)
    ]
    names = dict.fromkeys(row.experiment for each in COMPARISONS if each.name in tables for row in each.rows)
    whole = [(name, cost_beside_main(EXPERIMENTS[name]), EXPERIMENTS[name].about) for name in names]
    if json:
        experiments = [{"name": name, "cost": cost, "about": about} for name, cost, about in whole]
        runs = [{"run": label, "cost": cost, "shortened": shortened} for label, cost, shortened in planned]
        print_json({"tables": list(tables), "experiments": experiments, "runs": runs})
        return
    rows = [
        [each.name, each.title, ", ".join(dict.fromkeys(row.experiment for row in each.rows))]
        for each in COMPARISONS
        if each.name in tables
    ]
    rows += [[name, "", "main"] for name in tables if name not in {row[0] for row in rows}]
    show(table("Tables", ["table", "title", "experiments"], rows, left=3, prose=True))
    if planned:
        body = [[label, f"{cost:.2f}", shortened] for label, cost, shortened in planned]
        total = sum(cost for _, cost, _ in planned)
        show(table("Runs, cost in runs of the main model", ["run", "cost", "shortened"], body, prose=True))
        note(f"\nIn all about {total:.0f} runs of the main model.")
    else:
        body = [[name, f"{cost:.2f}", about] for name, cost, about in whole]
        show(table("Experiments, cost in runs of the main model", ["name", "cost", "about"], body, prose=True))
        note("\nName a --corpus to see which runs it takes under a --budget.")


def _show(tables: tuple[str, ...], records: Records) -> None:
    from vaiom.cli.tables import show, table
    from vaiom.report.reproduction import tables_of

    for name in tables:
        for each, comment in tables_of(name, records):
            left = sum(column.words for column in each.columns[:1])
            body = [[cell.text for cell in row] for row in each.rows]
            show(table(each.caption, [column.name.replace(" ", "_") for column in each.columns], body, left=left))
            if comment:
                note(comment)
