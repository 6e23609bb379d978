"""The page of the reproduction: every table of the paper, ours beside the published figures, from records alone.

Enters: records. Leaves: Markdown and the figure of the walk-forward. Nothing is typed: what has no record is a dash.
Paper: Results and Appendices A to F.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vaiom.experiments import published
from vaiom.experiments.findings import NOT_RUN, Measured, measure, seed_noise
from vaiom.experiments.plan import FLOOR_UPDATES, FLOOR_WINDOWS, TABLES, comparison
from vaiom.experiments.records import CORPUS, Records
from vaiom.files import write_bytes
from vaiom.report.cells import bits_cell, columns_of, count_cell, signed_cell
from vaiom.report.corpus_tables import CORPUS_TABLES
from vaiom.report.heldout_tables import HELDOUT_TABLES
from vaiom.report.numbers import NOTHING, count
from vaiom.report.tables import Cell, Table, number, words
from vaiom.report.walk_forward import walk_forward_figure

PAGE_NAME = "reproduction.md"
FIGURE_NAME = "walk-forward.svg"


def write_page(records: Records, page: Path) -> None:
    """Write the page, and the figure beside it where there is a walk-forward."""
    walked = records.walk_forward()
    if walked:
        write_bytes(page.parent / FIGURE_NAME, walk_forward_figure(walked).encode())
    write_bytes(page, render(records).encode())


def render(records: Records) -> str:
    parts = ["# The paper's tables, ours beside the published figures\n", _preamble(records)]
    for name in TABLES:
        for table, notes in tables_of(name, records):
            parts += [f"## {table.caption}\n", *([notes + "\n"] if notes else []), _without_caption(table)]
            if name == "walk-forward" and records.walk_forward():
                parts.append(f"![Gain per test year with intervals]({FIGURE_NAME})\n")
    return "\n".join(parts)


def tables_of(name: str, records: Records) -> list[tuple[Table, str]]:
    """The tables behind one name, each with a note."""
    special = HELDOUT_TABLES | CORPUS_TABLES
    return special[name](records) if name in special else _comparison(name, records)


def _preamble(records: Records) -> str:
    facts = records.facts(CORPUS)
    runs = [record for record in records.all if record.validation]
    devices = sorted({record.device for record in runs})
    versions = sorted({record.vaiom_version for record in runs})
    noise = seed_noise(records)
    lines = [
        "This page is written by `vaiom reproduce` from the records beside it; no figure is typed. *Published* is the "
        "paper's figure, *ours* the mean over our seeds of the best checkpoint on Validation, in bits per event.",
        "A finding *holds* or *fails* where the sign of our difference is resolved against the chance of training, "
        f"and is *unresolved* otherwise. A shortened run is claimed from {FLOOR_UPDATES:,} updates of {FLOOR_WINDOWS} "
        "windows upwards; what was shortened says so above its table. Differences of published figures are taken from "
        "their four printed digits, and may be off the paper's own by the last one.",
    ]
    if facts:
        assets = facts["assets"]
        num_same = len(set(assets) & set(published.ASSETS))
        lines.append(
            f"Data: {sum(entry['rows'] for entry in assets.values()):,} bars of {len(assets)} assets "
            f"({num_same} of the paper's {len(published.ASSETS)}), corpus `{facts['sha256'][:12]}`; "
            f"{_boundaries(facts['splits'])}. These are not the paper's bars: figures differ for reasons that are not "
            "the system's, signs can be compared."
        )
    if runs:
        lines.append(
            f"Made by {len(runs)} runs on {', '.join(devices)}, {sum(r.seconds for r in runs) / 60:.0f} minutes of "
            f"training in all, vaiom {', '.join(versions)}."
            + (f" Seed noise of the main model: SD {noise.bits:.4f} bits, {noise.num_seeds} seeds." if noise else "")
        )
    return "\n\n".join(lines) + "\n"


def _boundaries(splits: Mapping[str, Any]) -> str:
    def days(pair: Sequence[str]) -> str:
        return " to ".join(moment[:10] for moment in pair)

    tests = ", ".join(days(pair) for pair in splits["tests"])
    return f"Train before {splits['train_end'][:10]}, Validation {days(splits['validation'])}, tests {tests}"


# Tables of Validation bits whose rows are runs.


def _comparison(name: str, records: Records) -> list[tuple[Table, str]]:
    chosen = comparison(name)
    measured = measure(chosen, records)
    columns = columns_of(
        "row",
        "published",
        "ours",
        "difference",
        "seed SD",
        "seeds",
        "best step",
        "published step",
        "at it",
        "published Δ",
        "our Δ",
        "±",
        "finding",
        words=("row", "finding"),
    )
    rows = [_comparison_row(each) for each in measured]
    notes = [f"Paper: {chosen.label}." if chosen.label else "Not in the paper.", chosen.note]
    notes += _shortened(measured)
    missing = sorted({each.row.timeframe for each in measured if each.verdict == NOT_RUN and not each.records})
    if missing:
        notes.append(f"Not run here: rows of {', '.join(missing)} bars without a record.")
    if name == "supervision":
        notes.append(_exposure(measured))
    out = [(Table(caption=chosen.title, columns=columns, rows=rows), " ".join(note for note in notes if note))]
    return [*out, *_support(measured, records)] if name == "rungs" else out


def _shortened(measured: Sequence[Measured]) -> list[str]:
    """What was cut, said once for the rows that it was said of."""
    rows: dict[str, list[str]] = {}
    for each in measured:
        if each.shortened:
            rows.setdefault(each.shortened, []).append(each.row.label)
    return ["Shortened: " + "; ".join(f"{how} ({', '.join(who)})" for how, who in rows.items()) + "."] if rows else []


def _comparison_row(each: Measured) -> list[Cell]:
    row = each.row
    steps = ", ".join(count(step) for step in each.best_steps)
    return [
        words(row.label),
        bits_cell(row.bits),
        bits_cell(each.bits),
        signed_cell(None if each.bits is None or row.bits is None else each.bits - row.bits),
        bits_cell(each.seed_sd),
        number(str(len(each.seeds)) if each.seeds else NOTHING, len(each.seeds)),
        words(NOTHING if row.at_step or not steps else steps),
        number(count(row.steps), row.steps),
        bits_cell(each.at_published_step),
        signed_cell(each.published_delta),
        signed_cell(each.delta_bits),
        bits_cell(each.delta_error),
        words(each.verdict or NOTHING),
    ]


def _exposure(measured: Sequence[Measured]) -> str:
    """Targets that each row has seen: optimizer steps of the two scopes do not compare."""
    said = []
    for each in measured:
        theirs = published.TARGET_EXPOSURE.get(each.row.label)
        ours = NOTHING
        for record in each.records[:1]:
            context = record.settings["model"]["context"]
            full = record.settings["train"]["scope"] == "full"
            steps = min(record.last_step, each.row.steps)
            ours = _millions(steps * record.windows_per_step * (context - 1 if full else 1))
        said.append(f"{each.row.label} {ours} ({_millions(theirs) if theirs else NOTHING})")
    return f"Supervised targets, ours (published): {', '.join(said)}. Fewer steps are not fewer targets."


def _millions(targets: float) -> str:
    return f"{targets / 1e6:.1f}M"


def _support(measured: Sequence[Measured], records: Records) -> list[tuple[Table, str]]:
    windows = records.facts(CORPUS).get("events", {}).get("train")
    rows, previous = [], None
    for each in measured:
        _, theirs = published.RUNG_PARAMETERS[each.row.label]
        non_positional = None
        for record in each.records[:1]:
            non_positional = record.num_params - record.num_params_positional
        ratio = windows / non_positional if windows and non_positional else None
        supported = NOTHING
        if previous is not None and each.bits is not None:
            supported = "supported" if each.bits < previous else "underfed"
        rows.append(
            [
                words(each.row.label),
                count_cell(theirs),
                count_cell(non_positional),
                bits_cell(published.SPLIT_EVENTS["train"] / theirs),
                bits_cell(ratio),
                bits_cell(each.bits),
                words(supported),
            ]
        )
        previous = each.bits if each.bits is not None else previous
    columns = columns_of(
        "rung", "published N", "our N", "published R_U", "our R_U", "ours", "criterion", words=("rung", "criterion")
    )
    note = "N is the number of non-positional parameters, R_U unique Train windows per parameter."
    return [(Table(caption="Corpus support of the rungs", columns=columns, rows=rows), note)]


def _without_caption(table: Table) -> str:
    """The page has it as a heading."""
    return table.to_markdown().split("\n\n", 1)[1]
