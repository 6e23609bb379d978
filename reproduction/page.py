"""The page of the reproduction: every table of the paper, ours beside the published figures, from
records alone.

Enters: records. Leaves: Markdown and the figure of the walk-forward. Nothing is typed: what has no
record is a dash.
Paper: Results and Appendices A to F.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduction import paper
from reproduction.cells import Noted, columns, plain
from reproduction.claims import claims
from reproduction.findings import NOT_RUN, Measured, Records, measure, seed_noise
from reproduction.our_tables import walked_baselines
from reproduction.paper import BEST, MAIN, comparison
from reproduction.plan import FLOOR_UPDATES, FLOOR_WINDOWS, TABLES
from reproduction.records import CORPUS, YEAR, Record
from reproduction.tables import SPECIAL
from vaiom.evaluation.scores import MODEL
from vaiom.files import write_bytes
from vaiom.report.drawing import in_style
from vaiom.report.tables import NOTHING, Column, Table, bits, count, signed, text

PAGE_NAME = "reproduction.md"
FIGURE_NAME = "walk-forward.svg"
_GREY = "#7a7a7a"
_GREEN = "#3f9f5f"
_BLUES = ("#9ab8d8", "#5a8fc4", "#1f5f9f")
_GREY_PARTS = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
_GREY_LABELS = ("xtick.labelcolor", "ytick.labelcolor")


def write_page(records: Records, page: Path) -> None:
    """Write the page, and the figure beside it where there is a walk-forward."""
    walked = records.walk_forward()
    if walked:
        write_bytes(
            page.parent / FIGURE_NAME,
            draw_walk_forward(walked, records.walk_forward(BEST)).encode(),
        )
    write_bytes(page, render(records).encode())


def render(records: Records) -> str:
    """The page as Markdown."""
    parts = ["# The paper's tables, ours beside the published figures\n", _preamble(records)]
    for name in ("", *TABLES):
        for table, note in tables_of(name, records) if name else [claims(records)]:
            # The page has the caption as a heading.
            body = table.to_markdown().split("\n\n", 1)[1]
            parts += [f"## {table.caption}\n", *([note + "\n"] if note else []), body]
        if name == "walk-forward" and records.walk_forward():
            parts.append(f"![Gain per test year with intervals]({FIGURE_NAME})\n")
    return "\n".join(parts)


def tables_of(name: str, records: Records) -> list[Noted]:
    """The tables behind one name, each with a note."""
    return SPECIAL[name](records) if name in SPECIAL else _comparison(name, records)


def _preamble(records: Records) -> str:
    """What the page is, which data it is about, and what made it."""
    facts = records.facts(CORPUS)
    runs = [record for record in records.all if record.validation]
    noise = seed_noise(records)
    lines = [
        "This page is written by `vaiom reproduce` from the records beside it; no figure is "
        "typed. *Published* is the "
        "paper's figure, *ours* the mean over our seeds of the best checkpoint on Validation, in "
        "bits per event.",
        "A finding *holds* or *fails* where the sign of our difference is resolved against the "
        "chance of training, "
        f"and is *unresolved* otherwise. A shortened run is claimed from {FLOOR_UPDATES:,} "
        f"updates of {FLOOR_WINDOWS} "
        "windows upwards, one that a time limit stopped once its curve has turned; what was "
        "shortened says so above "
        "its table. Differences of published figures are taken from their four printed digits, "
        "and may be off the "
        "paper's own by the last one.",
        "Where the paper fixes a number of steps and ours are best earlier, both stand: *ours* is "
        "the best checkpoint "
        "up to the published step, *at it* the one of that very step. Claims about inputs, heads "
        "and supervision "
        "compare best checkpoints, as a user would choose them. Claims about checkpoint paths "
        "compare fixed steps, and "
        "our models, on fewer bars, overfit earlier.",
    ]
    if facts:
        assets = facts["assets"]
        lines.append(
            f"Data: {sum(entry['rows'] for entry in assets.values()):,} bars of {len(assets)} "
            f"assets "
            f"({len(set(assets) & set(paper.ASSETS))} of the paper's {len(paper.ASSETS)}), corpus "
            f"`{facts['sha256'][:12]}`; {_boundaries(facts['splits'])}. These are not the paper's "
            f"bars: figures differ "
            "for reasons that are not the system's, signs can be compared."
        )
    if runs:
        devices, versions = (
            sorted({getattr(run, name) for run in runs}) for name in ("device", "vaiom_version")
        )
        lines.append(
            f"Made by {len(runs)} runs on {', '.join(devices)}, "
            f"{sum(run.seconds for run in runs) / 60:.0f} minutes of "
            f"training in all, vaiom {', '.join(versions)}."
            + (
                f" Seed noise of the main model: SD {noise.bits:.4f} bits, {noise.num_seeds} seeds."
                if noise
                else ""
            )
        )
    return "\n\n".join(lines) + "\n"


def _boundaries(splits: Mapping[str, Any]) -> str:
    """The splits in words."""

    def days(pair: Sequence[str]) -> str:
        return " to ".join(moment[:10] for moment in pair)

    tests = ", ".join(days(pair) for pair in splits["tests"])
    return (
        f"Train before {splits['train_end'][:10]}, Validation {days(splits['validation'])}, "
        f"tests {tests}"
    )


def _comparison(name: str, records: Records) -> list[Noted]:
    """A table of Validation bits whose rows are runs."""
    chosen = comparison(name)
    measured = measure(chosen, records)
    notes = [f"Paper: {chosen.label}." if chosen.label else "Not in the paper.", chosen.note]
    shortened: dict[str, list[str]] = {}
    for each in measured:
        if each.shortened:
            shortened.setdefault(each.shortened, []).append(each.row.label)
    if shortened:
        notes.append(
            "Shortened: "
            + "; ".join(f"{how} ({', '.join(who)})" for how, who in shortened.items())
            + "."
        )
    missing = sorted(
        {each.row.timeframe for each in measured if each.verdict == NOT_RUN and not each.records}
    )
    if missing:
        notes.append(f"Not run here: rows of {', '.join(missing)} bars without a record.")
    if name == "supervision":
        notes.append(_exposure(measured))
    heads = [
        Column("row", text, "row.label"),
        Column("published", bits, "row.bits"),
        Column("ours", bits, "bits"),
        Column(
            "difference",
            signed,
            lambda each: None if None in (each.bits, each.row.bits) else each.bits - each.row.bits,
        ),
        Column("seed SD", bits, "seed_sd"),
        Column("seeds", plain, lambda each: len(each.seeds) or None),
        Column("best step", plain, lambda each: ", ".join(map(count, each.best_steps)) or None),
        Column("published step", count, "row.steps"),
        Column("at it", bits, "at_published_step"),
        Column("published Δ", signed, "published_delta"),
        Column("our Δ", signed, "delta_bits"),
        Column("±", bits, "delta_error"),
        Column("finding", text, lambda each: each.verdict or None),
    ]
    table = Table.of(chosen.title, heads, measured)
    out = [(table, " ".join(note for note in notes if note))]
    return [*out, _support(measured, records)] if name == "rungs" else out


def _exposure(measured: Sequence[Measured]) -> str:
    """Targets that each row has seen: optimizer steps of the two scopes do not compare."""

    def millions(targets: float | None) -> str:
        return f"{targets / 1e6:.1f}M" if targets else NOTHING

    rows = []
    for each in measured:
        ours = None
        if each.records:
            record = each.records[0]
            model = record.settings["model"]
            train = record.settings["train"]
            a_window = model["context"] - 1 if train["scope"] == "full" else 1
            ours = min(record.last_step, each.row.steps) * record.windows_per_step * a_window
        label = each.row.label
        rows.append(f"{label} {millions(ours)} ({millions(paper.TARGET_EXPOSURE.get(label))})")
    return (
        f"Supervised targets, ours (published): {', '.join(rows)}. Fewer steps are not fewer "
        f"targets."
    )


def _support(measured: Sequence[Measured], records: Records) -> Noted:
    """What the runs behind a table took: parameters, windows and targets."""
    windows = records.facts(CORPUS).get("events", {}).get("train")
    rows = []
    previous = None
    for each in measured:
        theirs = paper.RUNG_PARAMETERS[each.row.label][1]
        own = (
            each.records[0].num_params - each.records[0].num_params_positional
            if each.records
            else None
        )
        verdict = None
        if previous is not None and each.bits is not None:
            verdict = "supported" if each.bits < previous else "underfed"
            if each.delta_error is not None and abs(each.bits - previous) <= each.delta_error:
                verdict += " (within chance)"
        ratio = windows / own if windows and own else None
        rows.append(
            [
                each.row.label,
                theirs,
                own,
                paper.SPLIT_EVENTS["train"] / theirs,
                ratio,
                each.bits,
                verdict,
            ]
        )
        previous = each.bits if each.bits is not None else previous
    heads = [
        Column("rung"),
        *columns(count, "published N", "our N"),
        *columns(bits, "published R_U", "our R_U", "ours"),
        Column("criterion"),
    ]
    note = "N is the number of non-positional parameters, R_U unique Train windows per parameter."
    return Table(caption="Corpus support of the rungs", columns=heads, rows=rows), note


@in_style()
def draw_walk_forward(walked: Mapping[int, Record], best: Mapping[int, Record]) -> str:
    """SVG in colours that suit light and dark: every baseline of every year; an interval over the
    line is no win.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    names = walked_baselines(walked)
    grey: Any = dict.fromkeys((*_GREY_PARTS, *_GREY_LABELS), _GREY)
    with mpl.rc_context(grey):
        figure = Figure(figsize=(8, 3.4), layout="constrained")
        axis = figure.add_subplot()
        axis.axhline(0, color=_GREY, linewidth=0.8)
        for number, name in enumerate(names):
            gains = [record.scored[YEAR].gains[name] for record in walked.values()]
            places = [year + 0.2 * (number - (len(names) - 1) / 2) for year in walked]
            colour = _BLUES[number % len(_BLUES)]
            axis.plot(
                places,
                [gain.gain_bits for gain in gains],
                "o",
                color=colour,
                markersize=4,
                label=name,
            )
            for place, gain in zip(places, gains, strict=True):
                pair = gain.asset_months.interval
                if pair:
                    axis.plot([place, place], pair, color=colour, linewidth=1.5)
        both = {
            year: walked[year].scored[YEAR].bits[MODEL] - best[year].scored[YEAR].bits[MODEL]
            for year in walked
            if year in best
        }
        if both:
            axis.plot(
                list(both),
                list(both.values()),
                "D",
                color=_GREEN,
                markersize=5,
                label=f"{MAIN}, less {BEST}",
            )
        axis.set_xticks(list(walked))
        axis.set_ylabel("gain, bits/event")
        axis.set_title(
            f"Baseline minus {MAIN} by test year, 95% asset-month intervals", color=_GREY
        )
        axis.legend(frameon=False, ncols=len(names) + bool(both))
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return drawn.getvalue()
