"""`vaiom report`: one page that says what a run is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vaiom.cli.console import note, print_json


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `vaiom evaluate` has judged.")],
    corpus: Annotated[Path | None, typer.Option(help="Its corpus, where it moved; else where it was.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Instead of report.html in the run.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="The headline tables as Markdown too.")] = None,
    latex: Annotated[Path | None, typer.Option(metavar="FILE", help="The headline tables as LaTeX too.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")] = False,
) -> None:
    """Write the report of a run: one HTML file with everything inside, for a browser, paper or the archive."""
    from vaiom.report.page import REPORT_NAME, write_report
    from vaiom.report.verdict import verdict

    contents = write_report(run, corpus=corpus, out=out, markdown=markdown, latex=latex)
    page, said = out or run / REPORT_NAME, verdict(contents)
    if json:
        splits = [split.name for split in contents.splits]
        files = {"report": page, "markdown": markdown, "latex": latex}
        print_json({"files": {name: file for name, file in files.items() if file}, "splits": splits, "verdict": said})
        return
    for sentence in said:
        print(sentence)
    if contents.corpus_problem:
        note(f"\nWithout the data-quality part, because the corpus could not be read: {contents.corpus_problem}")
    note(f"\nThe report is {page}: open it in any browser.")
