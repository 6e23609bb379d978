"""The report of a run as one HTML file that needs nothing else, its headline tables, and the model
card.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from vaiom.codec import to_json
from vaiom.corpus.store import read_manifest, split_quality
from vaiom.errors import UserError
from vaiom.evaluation.evaluate import Evaluation
from vaiom.evaluation.inference import LEVEL
from vaiom.features.fields import NUM_RETURN_BUCKETS
from vaiom.files import read_json, write_bytes
from vaiom.model.checkpoint import USE, load_model
from vaiom.model.vaiom import count_parameters
from vaiom.report import data_tables, figures, results
from vaiom.report.contents import RunContents, read_run
from vaiom.report.tables import bits, count, escape_markdown, moment
from vaiom.run import EVIDENCE_SUFFIX, Run, packaged_models


def write_report(
    run: Path,
    *,
    corpus: Path | None = None,
    out: Path | None = None,
    markdown: Path | None = None,
    latex: Path | None = None,
) -> RunContents:
    """Write the page (`report.html` in the run unless named) and, where named, the tables; returns
    their contents.
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
    """The page as text."""
    from markupsafe import Markup, escape

    def code(text: str) -> Markup:
        return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))

    tables = {
        split.name: results.tables_of(split.evaluation, split.label) for split in contents.splits
    }
    return _fill(
        "report.html",
        filters={"code": code},
        contents=contents,
        tables=tables,
        all_tests=[table for each in tables.values() for table in each["all_tests"]][-1:],
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
    """The card of a run's model or of a model file; a packaged model for use has the figures of its
    evidence.
    """
    model, name = load_model(run), run.stem if run.is_file() else run.name
    for_use = model.provenance.purpose == USE
    judged = packaged_models().get(f"{name}{EVIDENCE_SUFFIX}", run) if for_use else run
    splits = [] if judged.is_file() else Run(judged).evaluated_splits()
    return _fill(
        "card.md",
        filters={"cell": escape_markdown, "bits": bits},
        name=name,
        model=model,
        for_use=for_use,
        judged=name if judged == run else judged.name,
        found=[Evaluation.read(judged, split, load_model(judged).sha256) for split in splits],
        num_params=count_parameters(model.config, model.tokenizer.vocabulary_sizes),
        about=_about(Run(run)),
    )


def _about(run: Run) -> dict[str, Any]:
    """First and last bars, clock, source and cost of training, as far as they are known."""
    if run.about.is_file():
        return dict(read_json(run.about))
    about: dict[str, Any] = {"clock": "", "source": "", "cost": "", "bars": {}}
    if metrics := run.read_metrics():
        about["cost"] = f"{metrics[-1]['seconds']:,.0f} s, teachers and compilation apart"
    with suppress(UserError):  # a model file, or a corpus that has moved
        assets = read_manifest(run.corpus_path())["assets"]
        about["bars"] = {
            symbol: [moment(each[end]) for end in ("first", "last")]
            for symbol, each in assets.items()
        }
    return about


def _asset(name: str) -> str:
    return (files("vaiom.report") / "assets" / name).read_text(encoding="utf-8")


def _fill(template: str, filters: dict[str, Callable[[Any], str]], **values: Any) -> str:
    """A template with its values; only HTML is escaped."""
    from jinja2 import Environment, StrictUndefined

    escapes = template.endswith(".html")
    environment = Environment(
        autoescape=escapes, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters |= {"count": count, **filters}
    return environment.from_string(_asset(template)).render(results=results, **values)
