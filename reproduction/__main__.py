"""`python -m reproduction [TABLE...]`, which is `vaiom reproduce`: the paper's tables, ours beside
the published.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

from reproduction.findings import Records
from reproduction.log import LOG_NAME, render_log
from reproduction.page import PAGE_NAME, tables_of, write_page
from reproduction.paper import COMPARISONS, SEEDS
from reproduction.plan import cost_beside_main, plan_tasks, require_tables
from reproduction.records import RUN, WALK
from reproduction.tasks import Place, Task, finish_tasks
from reproduction.transfer import write_transfer_page
from vaiom.cli.console import note, print_json, progress_bar, show, user_errors
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.errors import ConfigError
from vaiom.experiments.registry import EXPERIMENTS
from vaiom.experiments.tasks import TaskRunner
from vaiom.files import read_json, write_bytes
from vaiom.report.tables import Column, Table, prose

ROOT = Path(__file__).parents[1]


def parse(words: Sequence[str] | None, program: str) -> argparse.Namespace:
    """Read the command line; a user's slip ends the program with a message."""
    parser = argparse.ArgumentParser(
        program,
        usage="%(prog)s [OPTIONS] [TABLE]...",
        description="Run the paper's experiments on your corpora and print the results beside the "
        "published ones.",
    )
    add = parser.add_argument
    out = Path("runs/reproduction")
    add("tables", nargs="*", metavar="TABLE", help="Tables to make; by default, all.")
    add(
        "--corpus",
        type=Path,
        action="append",
        default=[],
        help="Corpus folder, one per timeframe; none: no new runs.",
    )
    add(
        "--out",
        type=Path,
        default=out,
        help=f"Folder for runs, records and the page; finished work is reused. [{out}]",
    )
    add(
        "--baselines",
        type=Path,
        help="Folder of `vaiom baselines` for these splits; by default, three quick ones.",
    )
    add("--engine", default="local", help="local, or ray for a cluster started by `ray start`.")
    add(
        "--workers",
        type=int,
        default=1,
        help="Local runs at a time, spread over the GPUs; Ray uses its whole cluster.",
    )
    add(
        "--budget",
        default="full",
        help="full: the paper's lengths. fast: long runs are shortened, and marked.",
    )
    seeds = "Only runs of this seed; repeatable. By default, the paper's three."
    add("--seed", type=int, action="append", dest="seeds", help=seeds)
    change = "Change a setting of every run; repeatable. Changed experiments support no claim."
    add("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help=change)
    limit = "Seconds after which runs stop at a checkpoint, to be continued later."
    add("--time-limit", type=float, default=math.inf, help=limit)
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
    add("--page", type=Path, help="File of the page; by default, in --out.")
    add("--list", action="store_true", help="Only show the runs and their cost.")
    add(
        "--docs",
        action="store_true",
        help="Only write the pages of docs/ again, from docs/results.",
    )
    add(
        "--json",
        action="store_true",
        help="Print one JSON object on stdout, and nothing else there.",
    )
    args = parser.parse_args(words)
    if args.workers < 1:
        parser.error("--workers: at least 1")
    return args


def main(words: Sequence[str] | None = None, program: str = "python -m reproduction") -> None:
    """Parse, run what is missing, write the page, print."""
    args = parse(words, program)
    if args.docs:
        write_docs(ROOT / "docs" / "results", ROOT / "docs")
        return
    tables = require_tables(args.tables)
    opened = _open(args.corpus)
    tasks = plan_tasks(tables, opened, args.budget, args.settings, args.seeds or SEEDS)
    if args.list:
        _list(tables, tasks, args.json)
        return
    corpora = {timeframe: corpus.path for timeframe, corpus in opened.items() if corpus.path}
    place = Place(
        corpora=corpora,
        out=args.out,
        baselines=args.baselines,
        deadline=time.time() + args.time_limit,
    )
    engine = TaskRunner(name=args.engine, workers=args.workers, device=args.device)
    with progress_bar("reproducing") as report:
        failures = finish_tasks(tasks, place, engine, report)
    records = Records.read(place.records)
    page = args.page or args.out / PAGE_NAME
    write_page(records, page)
    if args.json:
        failed = [{"task": task, "reason": reason} for task, reason in failures.items()]
        print_json(
            {"tables": list(tables), "tasks": len(tasks), "failed": failed, "page": str(page)}
        )
    else:
        for name in tables:
            for table, comment in tables_of(name, records):
                show(table)
                if comment:
                    note(comment)
        note(f"\nThe page is {page}, its records are in {place.records}.")
    for task, reason in failures.items():
        note(f"\nFailed: {task}\n{reason}")
    if failures:
        raise SystemExit(1)


def write_docs(results: Path, docs: Path) -> None:
    """The page, its figure and the log of the search, from what is stored beside them."""
    records = Records.read(results / "records")
    write_page(records, docs / PAGE_NAME)
    write_transfer_page(results / "transfer", docs)
    write_bytes(docs / LOG_NAME, render_log(read_json(results / "search.json"), records).encode())


def _open(paths: Sequence[Path]) -> dict[str, Corpus]:
    """The corpora by timeframe."""
    corpora: dict[str, Corpus] = {}
    for path in paths:
        corpus = open_corpus(path)
        timeframe = corpus.tokenizer.timeframe
        if timeframe in corpora:
            raise ConfigError(
                "two corpora of one timeframe", where=path, got=timeframe, fix="name one of each"
            )
        corpora[timeframe] = corpus
    return corpora


def _list(tables: tuple[str, ...], tasks: list[Task], json: bool) -> None:
    """Show the chosen tables, the runs that they need, and what these cost."""
    trained = [task for task in tasks if task.kind in (RUN, WALK)]
    planned = [
        (task.label, cost_beside_main(task.experiment), task.shortened)
        for task in trained
        if task.experiment
    ]
    compared = {
        each: dict.fromkeys(row.experiment for row in each.rows)
        for each in COMPARISONS
        if each.name in tables
    }
    names = dict.fromkeys(name for experiments in compared.values() for name in experiments)
    whole = [(name, cost_beside_main(EXPERIMENTS[name]), EXPERIMENTS[name].about) for name in names]
    if json:
        experiments = [{"name": name, "cost": cost, "about": about} for name, cost, about in whole]
        runs = [
            {"run": label, "cost": cost, "shortened": shortened}
            for label, cost, shortened in planned
        ]
        print_json({"tables": list(tables), "experiments": experiments, "runs": runs})
        return
    rows = [
        [each.name, each.title, ", ".join(experiments)] for each, experiments in compared.items()
    ]
    rows += [[name, "", "main"] for name in tables if name not in {row[0] for row in rows}]
    columns = [Column("table"), Column("title"), Column("experiments", prose)]
    show(Table(caption="Tables", columns=columns, rows=rows))
    what, about = ("Runs", "shortened") if planned else ("Experiments", "about")
    costs = [Column("name"), Column("cost", "{:.2f}".format), Column(about, prose)]
    show(
        Table(
            caption=f"{what}, cost in runs of the main model", columns=costs, rows=planned or whole
        )
    )
    if planned:
        note(f"\nIn all about {sum(cost for _, cost, _ in planned):.0f} runs of the main model.")
    else:
        note("\nName a --corpus to see which runs it takes under a --budget.")


if __name__ == "__main__":
    with user_errors("reproduction"):
        main()
