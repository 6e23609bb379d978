"""The report of a run as one HTML file that needs nothing else, and the model card in Markdown.

A run folder enters; text leaves. Both are filled by Jinja from the templates in `assets`, which
hold every sentence that no figure decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from vaiom.codec import to_json
from vaiom.corpus.split_quality import split_quality
from vaiom.evaluation.inference import LEVEL
from vaiom.evaluation.record import Evaluation
from vaiom.experiments.package import read_origin
from vaiom.features.fields import NUM_RETURN_BUCKETS
from vaiom.files import write_bytes
from vaiom.model.checkpoint import USE, load_model
from vaiom.model.vaiom import count_parameters
from vaiom.report import data_tables, figures, results, verdict
from vaiom.report.contents import RunContents, read_run
from vaiom.report.tables import Table, bits, count, escape_markdown, moment
from vaiom.run import EVIDENCE_SUFFIX, Run, packaged_models


def write_report(
    run: Path,
    *,
    corpus: Path | None = None,
    out: Path | None = None,
    markdown: Path | None = None,
    latex: Path | None = None,
) -> RunContents:
    """Write the page of a run, and its headline tables as Markdown or LaTeX where they are named.

    The page is `report.html` in the run unless `out` names another file. Returns what it shows.
    """
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
    """The page as text; the same contents give the same bytes."""
    from markupsafe import Markup, escape

    def code(text: str) -> Markup:
        return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))

    tables = {}
    all_tests: list[Table] = []
    for split in contents.splits:
        tables[split.name] = results.tables_of(split.evaluation, split.label)
        all_tests = tables[split.name]["all_tests"] or all_tests
    return _fill(
        "report.html",
        filters={"code": code},
        contents=contents,
        tables=tables,
        all_tests=all_tests,
        measure_quality=split_quality,
        num_buckets=NUM_RETURN_BUCKETS,
        uniform_bits=f"{math.log2(NUM_RETURN_BUCKETS):g}",
        level=f"{LEVEL:.0%}",
        inputs=to_json(contents.inputs),
        figures=figures,
        data=data_tables,
        asset=lambda name: Markup(_asset(name)),
    )


def render_card(run: Path) -> str:
    """The card of a run's model or of a model file, in Markdown.

    A packaged model for use, which nothing is left to judge on, shows the figures of its evidence
    model: the same settings, trained and selected on less.
    """
    model = load_model(run)
    name = run.stem if run.is_file() else run.name
    for_use = model.provenance.purpose == USE
    judged = packaged_models().get(f"{name}{EVIDENCE_SUFFIX}", run) if for_use else run
    found = []
    if not judged.is_file():
        own = load_model(judged).sha256
        splits = Run(judged).evaluated_splits()
        found = [Evaluation.read(judged, split, own) for split in splits]
    return _fill(
        "card.md",
        filters={"cell": escape_markdown, "bits": bits, "moment": moment},
        name=name,
        model=model,
        for_use=for_use,
        judged=name if judged == run else judged.name,
        found=found,
        num_params=count_parameters(model.config, model.tokenizer.vocabulary_sizes),
        about=read_origin(run),
    )


def _asset(name: str) -> str:
    """The text of a file in `assets`."""
    return (files("vaiom.report") / "assets" / name).read_text(encoding="utf-8")


def _fill(template: str, filters: dict[str, Callable[[Any], str]], **values: Any) -> str:
    """A template with its values; only HTML is escaped, and a missing value is an error."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=template.endswith(".html"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"count": count, **filters}
    filled = environment.from_string(_asset(template))
    return filled.render(results=results, words=verdict, **values)
