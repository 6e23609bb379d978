"""The report of a run as one HTML file that needs nothing else: style, script and figures are inside it.

Enters: the contents of a run. Leaves: the page as text; the same contents give the same text.
Paper: Results and Appendices on period results and inference, in one page; the rest are additions.
"""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass

from vaiom.events.schema import NUM_RETURN_BUCKETS
from vaiom.report import origins, results
from vaiom.report.commands import commands
from vaiom.report.contents import RunContents, Split
from vaiom.report.figures import Picture, calibration, cumulative, forest, heat_maps, training_curve
from vaiom.report.numbers import NOTHING, bits, count, percent
from vaiom.report.style import SCRIPT, style_sheet
from vaiom.report.tables import Table
from vaiom.report.verdict import MEANING, verdict

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The browser itself refuses anything from outside."""


@dataclass(frozen=True, kw_only=True)
class Section:
    key: str
    title: str
    body: str


def page(contents: RunContents) -> str:
    """The whole report."""
    sections = [section for section in _sections(contents) if section.body]
    origin = contents.checkpoint.provenance
    title = f"{origin.experiment}, seed {origin.seed}"
    toc = "\n".join(f'<li><a href="#{each.key}">{html.escape(each.title)}</a></li>' for each in sections)
    body = "\n".join(
        f'<section id="{each.key}" aria-labelledby="{each.key}-title">\n'
        f'<h2 id="{each.key}-title">{html.escape(each.title)}</h2>\n{each.body}\n</section>'
        for each in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{html.escape(title)}: VAIOM report</title>
<style>{style_sheet()}</style>
</head>
<body>
<div class="page">
<nav aria-label="Contents">
<ol>
{toc}
</ol>
<button id="theme" type="button" hidden>Dark page</button>
</nav>
<main>
{_header(contents, title)}
{body}
<footer>Written by <code>vaiom report</code> from the files in the run folder.</footer>
</main>
</div>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _header(contents: RunContents, title: str) -> str:
    origin = contents.checkpoint.provenance
    scored = ", ".join(split.name for split in contents.splits)
    num_assets = len(contents.checkpoint.tokenizer.symbols)
    assets = "1 asset" if num_assets == 1 else f"{num_assets} assets"
    facts = f"Step {count(origin.step)} · {assets} · scored on {scored} · checkpoint {contents.checkpoint.sha256[:12]}"
    said = verdict(contents)
    num_findings = max(sum(split.is_test for split in contents.splits), 1)
    paragraphs = "\n".join(f'<p class="finding">{_prose(text)}</p>' for text in said[:num_findings])
    return f"""<header>
<p class="kicker">VAIOM: the distribution of the next return</p>
<h1>{html.escape(title)}</h1>
<p class="facts">{html.escape(facts)}</p>
<div class="verdict">
{paragraphs}
<p>{_prose(" ".join(said[num_findings:]))}</p>
</div>
</header>"""


def _sections(contents: RunContents) -> list[Section]:
    splits = contents.splits
    return [
        Section(key="headline", title="Bits per event, and how sure the gains are", body=_headline(contents)),
        Section(key="gains", title="Gains with their intervals", body=_figures(forest(splits))),
        Section(key="assets", title="Asset by asset, month by month", body=_figures(*map(heat_maps, splits))),
        Section(key="time", title="Gain over time", body=_figures(*map(cumulative, splits))),
        Section(key="calibration", title="Do the probabilities mean what they say?", body=_calibration(splits)),
        Section(key="states", title="Latent states", body=_states(splits)),
        Section(key="seeds", title="Seeds together", body=_seeds(splits)),
        Section(key="training", title="Training, and the checkpoint that was chosen", body=_training(contents)),
        Section(key="quality", title="Data quality", body=_quality(contents)),
        Section(key="provenance", title="Where the figures come from", body=_provenance(contents)),
        Section(key="meaning", title="What the figures do and do not mean", body=_meaning()),
    ]


def _headline(contents: RunContents) -> str:
    parts = [
        "<p>A prediction costs minus the base-2 logarithm of the probability that it gave to what came; fewer bits are "
        f"better, and a uniform guess over {NUM_RETURN_BUCKETS} buckets costs {math.log2(NUM_RETURN_BUCKETS):g}. The "
        "gain is baseline minus model on the same events. Headers sort.</p>"
    ]
    for split in contents.splits:
        found = split.evaluation
        parts += [results.likelihood(split).to_html(), results.sureness(split).to_html()]
        notes = [*found.caveats]
        if found.confidence_set:
            size, inside = found.confidence_set.size, ", ".join(found.confidence_set.included)
            notes.append(f"The {1 - size:.0%} model confidence set, the predictors that no other has beaten: {inside}.")
        notes.append(
            f"{percent(found.zero_share, 2)} of the next returns in this split were exactly zero and are no events."
        )
        parts.append(f'<p class="note">{_prose(" ".join(notes))}</p>')
    together = results.all_tests(contents)
    if together:
        parts.append(together.to_html())
    return "\n".join(parts)


def _calibration(splits: list[Split]) -> str:
    parts = []
    for split in splits:
        found = split.evaluation
        parts.append(f"<h3>{html.escape(_name(split))}</h3>")
        parts.append(_figures(calibration(split)))
        parts.append(results.calibration_summary(split).to_html())
        parts.append(results.backtests(split, found.backtests).to_html())
        for by in found.calibration_by:
            table = results.calibration_by(split, by)
            risk = results.backtests(split, found.backtests_by[by], by)
            parts.append(_folded(f"By {table.columns[0].name}: scores and tail coverage, risk backtests", table, risk))
    parts.append(
        '<p class="note">Assets of one hour exceed their limits together, so with many assets the p-values of the '
        "backtests are too small: compare them between models rather than against a threshold.</p>"
    )
    return "\n".join(parts)


def _states(splits: list[Split]) -> str:
    parts = []
    for split in splits:
        mixture = split.evaluation.mixture
        if mixture is None:
            continue
        stays = NOTHING if mixture.persistence is None else percent(mixture.persistence)
        parts += [
            results.states(split, mixture).to_html(),
            f'<p class="note">{mixture.effective_states:.2f} of {len(mixture.mean_weight)} states are in effective '
            f"use; knowing the state would add {bits(mixture.separation_bits)} bits per event. The heaviest state "
            f"stays from one event of an asset to the next in {stays} of the cases, against "
            f"{percent(mixture.persistence_if_independent)} if it were drawn anew. "
            f"Measured on {count(mixture.num_events)} events; the numbers of states mean nothing across runs.</p>",
        ]
    return "\n".join(parts)


def _seeds(splits: list[Split]) -> str:
    tables = [results.seeds(split, split.evaluation.seeds) for split in splits if split.evaluation.seeds]
    if not tables:
        return ""
    words = (
        "<p>The standard deviation over seeds is the chance of training; the sampling error and the interval of the "
        "average gain are the chance of the sample.</p>"
    )
    return "\n".join([words, *(table.to_html() for table in tables)])


def _training(contents: RunContents) -> str:
    if not contents.metrics:
        return ""
    return _figures(training_curve(contents.metrics, contents.checkpoint.provenance.step))


def _quality(contents: RunContents) -> str:
    if contents.corpus is None:
        return (
            f"<p>The corpus could not be read, so this part is missing: {html.escape(contents.corpus_problem or '')}. "
            "<code>vaiom report RUN --corpus CORPUS</code> names it.</p>"
        )
    return (
        "<p>Exact-zero next returns are dropped by their outcome, which no forecast can know: the larger their share, "
        "the more the figures speak of moving markets alone.</p>"
        + origins.data_quality(contents.corpus.quality).to_html()
    )


def _provenance(contents: RunContents) -> str:
    parts = [f'<div class="facts-table">{origins.provenance(contents).to_html()}</div>']
    corpus = contents.corpus
    if corpus and corpus.looks:
        parts.append(
            f"<p>Test is evidence only as long as nobody chose anything by it. Its splits were scored "
            f"{_times(len(corpus.looks))} on this corpus, by any model:</p>"
        )
        parts.append(origins.looks_at_test(corpus.looks, contents.checkpoint.sha256).to_html())
    elif corpus:
        parts.append("<p>No test split of this corpus was ever scored.</p>")
    else:
        parts.append("<p>How often Test was looked at is recorded in the corpus, which could not be read.</p>")
    lines = html.escape("\n".join(commands(contents)))
    parts += ["<h3>To repeat it</h3>", f"<pre>{lines}</pre>"]
    return "\n".join(parts)


def _meaning() -> str:
    return (
        "<dl>" + "".join(f"<div><dt>{html.escape(a)}</dt><dd>{html.escape(b)}</dd></div>" for a, b in MEANING) + "</dl>"
    )


def _figures(*pictures: Picture) -> str:
    return "\n".join(
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="Figure">{each.svg}</div>'
        f"<figcaption>{html.escape(each.caption)}</figcaption></figure>"
        for each in pictures
    )


def _folded(summary: str, *tables: Table) -> str:
    inside = "\n".join(table.to_html() for table in tables)
    return f"<details><summary>{html.escape(summary)}</summary>\n{inside}\n</details>"


def _name(split: Split) -> str:
    return f"{split.name}: {split.period}"


def _prose(text: str) -> str:
    """Escaped text in which `code` is set as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
