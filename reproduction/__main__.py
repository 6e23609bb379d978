"""`python -m reproduction [TABLE...]`, which is `vaiom reproduce`: the paper's tables, ours beside the published."""

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
from vaiom.errors import ConfigError
from vaiom.events.corpus import Corpus, open_corpus
from vaiom.experiments.engine import Engine
from vaiom.experiments.registry import EXPERIMENTS
from vaiom.files import read_json, write_bytes
from vaiom.report.tables import Column, Table, prose

ROOT = Path(__file__).parents[1]


def parse(words: Sequence[str] | None, program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        program,
        usage="%(prog)s [OPTIONS] [TABLE]...",
        description="Run the paper's experiments on your corpora and print its tables with both columns.",
    )
    add = parser.add_argument
    add("tables", nargs="*", metavar="TABLE", help="Some of them; else all.")
    add("--corpus", type=Path, action="append", default=[], help="One per timeframe, told apart by it; none renders.")
    out = Path("runs/reproduction")
    add("--out", type=Path, default=out, help=f"Runs, records and the page; finished work is reused. [{out}]")
    add("--baselines", type=Path, help="What `vaiom baselines` stored for these splits; else three quick ones.")
    add("--engine", default="local", help="local, or ray: the cluster that `ray start --head` began.")
    add("--workers", type=int, default=1, help="Local runs at a time, spread over the GPUs; Ray fills its cluster.")
    add("--budget", default="full", help="full: the paper's lengths. fast: long runs shortened, and marked.")
    few = "Runs of this seed alone; may be repeated. Else the paper's three."
    add("--seed", type=int, action="append", dest="seeds", help=few)
    change = "Change every run; another experiment claims nothing."
    add("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help=change)
    add(
        "--time-limit",
        type=float,
        default=math.inf,
        help="Seconds after which runs stop at a checkpoint, and go on later.",
    )
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
    add("--page", type=Path, help="Where the page goes; else into --out.")
    add("--list", action="store_true", help="Show the runs with their cost, and run nothing.")
    add("--docs", action="store_true", help="Only write the pages of docs/ again, from docs/results.")
    add("--json", action="store_true", help="One JSON object on stdout, nothing else there.")
    asked = parser.parse_args(words)
    if asked.workers < 1:
        parser.error("--workers: at least 1")
    return asked


def main(words: Sequence[str] | None = None, program: str = "python -m reproduction") -> None:
    """Parse, run what is missing, write the page, print."""
    asked = parse(words, program)
    if asked.docs:
        write_docs(ROOT / "docs" / "results", ROOT / "docs")
        return
    tables = require_tables(asked.tables)
    opened = _open(asked.corpus)
    tasks = plan_tasks(tables, opened, asked.budget, asked.settings, asked.seeds or SEEDS)
    if asked.list:
        _list(tables, tasks, asked.json)
        return
    corpora = {timeframe: corpus.path for timeframe, corpus in opened.items() if corpus.path}
    place = Place(corpora=corpora, out=asked.out, baselines=asked.baselines, deadline=time.time() + asked.time_limit)
    engine = Engine(name=asked.engine, workers=asked.workers, device=asked.device)
    with progress_bar("reproducing") as report:
        failures = finish_tasks(tasks, place, engine, report)
    records = Records.read(place.records)
    page = asked.page or asked.out / PAGE_NAME
    write_page(records, page)
    if asked.json:
        failed = [{"task": task, "reason": reason} for task, reason in failures.items()]
        print_json({"tables": list(tables), "tasks": len(tasks), "failed": failed, "page": str(page)})
    else:
        _show(tables, records)
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
    out: dict[str, Corpus] = {}
    for path in paths:
        opened = open_corpus(path)
        timeframe = opened.tokenizer.timeframe
        if timeframe in out:
            raise ConfigError("two corpora of one timeframe", where=path, got=timeframe, fix="name one of each")
        out[timeframe] = opened
    return out


def _list(tables: tuple[str, ...], tasks: list[Task], json: bool) -> None:
    planned = [
        (task.label, cost_beside_main(task.experiment), task.shortened)
        for task in tasks
        if task.experiment and task.kind in (RUN, WALK)
    ]
    compared = {each: dict.fromkeys(row.experiment for row in each.rows) for each in COMPARISONS if each.name in tables}
    names = dict.fromkeys(name for experiments in compared.values() for name in experiments)
    whole = [(name, cost_beside_main(EXPERIMENTS[name]), EXPERIMENTS[name].about) for name in names]
    if json:
        experiments = [{"name": name, "cost": cost, "about": about} for name, cost, about in whole]
        runs = [{"run": label, "cost": cost, "shortened": shortened} for label, cost, shortened in planned]
        print_json({"tables": list(tables), "experiments": experiments, "runs": runs})
        return
    rows = [[each.name, each.title, ", ".join(experiments)] for each, experiments in compared.items()]
    rows += [[name, "", "main"] for name in tables if name not in {row[0] for row in rows}]
    columns = [Column("table"), Column("title"), Column("experiments", prose)]
    show(Table(caption="Tables", columns=columns, rows=rows))
    what, about = ("Runs", "shortened") if planned else ("Experiments", "about")
    costs = [Column("name"), Column("cost", "{:.2f}".format), Column(about, prose)]
    show(Table(caption=f"{what}, cost in runs of the main model", columns=costs, rows=planned or whole))
    if planned:
        note(f"\nIn all about {sum(cost for _, cost, _ in planned):.0f} runs of the main model.")
    else:
        note("\nName a --corpus to see which runs it takes under a --budget.")


def _show(tables: tuple[str, ...], records: Records) -> None:
    for name in tables:
        for each, comment in tables_of(name, records):
            show(each)
            if comment:
                note(comment)


if __name__ == "__main__":
    with user_errors("reproduction"):
        main()
