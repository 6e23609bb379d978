"""The report's page beside the files that it was made from.

Enters: a run folder with `report.html`, its corpus, an open proof. Leaves: checks: every table of results on the page
is the one that the run's evaluations give.
"""

from __future__ import annotations

from pathlib import Path

from vaiom.audit.proof import Proof
from vaiom.errors import UserError
from vaiom.events.corpus import Corpus
from vaiom.report.contents import RunContents, read_run
from vaiom.report.results import headline_tables, tables_of
from vaiom.report.tables import Table
from vaiom.run import REPORT_NAME, Run


def check_page(proof: Proof, run: Path, corpus: Corpus) -> None:
    file = Run(run).report
    if not file.is_file():
        proof.notes.append(f"the run has no {REPORT_NAME} (vaiom report)")
        return
    try:
        tables = _tables(read_run(run, corpus.path))
    except UserError as error:
        proof.check(False, f"{REPORT_NAME} cannot be of these files: {error.problem}")
        return
    page = file.read_text()
    for table in tables:
        shown = table.to_html() in page
        proof.check(shown, f"{REPORT_NAME} shows another table, or none: {table.caption}")


def _tables(contents: RunContents) -> list[Table]:
    """Those of results; what the corpus says of itself may have grown since the page was written."""
    out = headline_tables(contents)
    for split in contents.splits:
        tables = tables_of(split.evaluation, split.label)
        out += [table for part in tables if part not in ("headline", "all_tests") for table in tables[part]]
    return out
