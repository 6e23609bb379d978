"""Reports as files: the page, and its headline tables for papers and notes.

Enters: a run folder, the corpus if it moved, where to write. Leaves: whole files or none.
"""

from __future__ import annotations

from pathlib import Path

from vaiom.files import write_bytes
from vaiom.report.contents import RunContents, read_run
from vaiom.report.html import page
from vaiom.report.results import headline_tables

REPORT_NAME = "report.html"


def write_report(
    run: Path,
    *,
    corpus: Path | None = None,
    out: Path | None = None,
    markdown: Path | None = None,
    latex: Path | None = None,
) -> RunContents:
    """Write the page (`report.html` in the run unless told) and, where asked for, the tables; returns what they say."""
    contents = read_run(run, corpus)
    files = {out or run / REPORT_NAME: page(contents)}
    tables = headline_tables(contents)
    if markdown:
        files[markdown] = "\n".join(table.to_markdown() for table in tables)
    if latex:
        files[latex] = "\n".join(table.to_latex() for table in tables)
    for file, text in files.items():
        write_bytes(file, text.encode())
    return contents
