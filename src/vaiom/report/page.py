"""The report of a run as one HTML file that needs nothing else, and its headline tables for papers and notes.

The same run gives the same bytes.
"""

from __future__ import annotations

import math
import re
from importlib.resources import files
from pathlib import Path

from vaiom.evaluation.inference import LEVEL
from vaiom.events.corpus import split_quality
from vaiom.events.fields import NUM_RETURN_BUCKETS
from vaiom.files import write_bytes
from vaiom.report import data_tables, figures, results
from vaiom.report.contents import RunContents, read_run
from vaiom.report.tables import count
from vaiom.run import Run


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
    texts = {out or Run(run).report: render(contents)}
    tables = results.headline_tables(contents)
    if markdown:
        texts[markdown] = "\n".join(table.to_markdown() for table in tables)
    if latex:
        texts[latex] = "\n".join(table.to_latex() for table in tables)
    for file, text in texts.items():
        write_bytes(file, text.encode())
    return contents


def render(contents: RunContents) -> str:
    """The page as text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    def asset(name: str) -> Markup:
        return Markup((files("vaiom.report") / "assets" / name).read_text(encoding="utf-8"))

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters["count"] = count
    environment.filters["code"] = lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
    tables = {split.name: results.tables_of(split.evaluation, split.label) for split in contents.splits}
    return environment.from_string(asset("report.html")).render(
        contents=contents,
        tables=tables,
        all_tests=[table for each in tables.values() for table in each["all_tests"]][-1:],
        measure_quality=split_quality,
        num_buckets=NUM_RETURN_BUCKETS,
        uniform_bits=f"{math.log2(NUM_RETURN_BUCKETS):g}",
        level=f"{LEVEL:.0%}",
        figures=figures,
        results=results,
        data=data_tables,
        asset=asset,
    )
