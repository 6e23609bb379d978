"""The tables of where the figures come from: data quality, looks at Test, hashes and versions.

Enters: what the corpus says of itself, the contents of a run. Leaves: `Table`s.
"""

from __future__ import annotations

from collections.abc import Sequence

from vaiom import __version__
from vaiom.evaluation.ledger import Look
from vaiom.events.quality import SplitQuality
from vaiom.report.contents import RunContents
from vaiom.report.numbers import NOTHING, count, percent
from vaiom.report.tables import Column, Table, facts, number, words

_KEY_LENGTH = 12


def data_quality(quality: Sequence[SplitQuality]) -> Table:
    """What was masked and dropped, by asset and split."""
    masks = list(quality[0].mask_share) if quality else []
    rows = [
        [
            words(each.symbol),
            words(each.split),
            number(count(each.rows), each.rows),
            number(count(each.events), each.events),
            number(percent(each.zero_share, 2), each.zero_share),
            number(percent(each.dropped_share, 2), each.dropped_share),
            *(number(percent(each.mask_share[name], 2), each.mask_share[name]) for name in masks),
        ]
        for each in quality
    ]
    columns = [
        Column(name="asset", words=True),
        Column(name="split", words=True),
        Column(name="rows"),
        Column(name="valid events", about="Rows that may be trained on or scored, before any demand on context"),
        Column(name="zero next", about="Next returns that are exactly zero"),
        Column(name="target dropped", about="For any reason, exact zeros included"),
        *(Column(name=name.removeprefix("mask_").replace("_", " "), about="Share of rows masked") for name in masks),
    ]
    return Table(caption="What was masked and dropped, by asset and split of the target", columns=columns, rows=rows)


def looks_at_test(looks: Sequence[Look], own: str) -> Table:
    """The ledger: when a test split was scored, and by what."""
    rows = [
        [
            words(look.when.replace("T", " ").removesuffix("+00:00")),
            words(look.split),
            words(look.run),
            words(look.checkpoint_sha256[:_KEY_LENGTH] + (" (this one)" if look.checkpoint_sha256 == own else "")),
            number(count(look.num_events), look.num_events),
        ]
        for look in looks
    ]
    names = ["when (UTC)", "split", "run", "checkpoint"]
    return Table(
        caption="Looks at test splits of this corpus",
        columns=[*(Column(name=name, words=True) for name in names), Column(name="events")],
        rows=rows,
    )


def provenance(contents: RunContents) -> Table:
    """What the figures were made from, by hash."""
    origin, tokenizer = contents.checkpoint.provenance, contents.checkpoint.tokenizer
    now = contents.corpus
    grown = " (the corpus has grown or changed since)" if now and now.sha256 != origin.corpus_sha256 else ""
    rows = [
        ["experiment, seed, step", f"{origin.experiment}, {origin.seed}, {count(origin.step)}"],
        ["checkpoint", contents.checkpoint.sha256],
        ["corpus at training", origin.corpus_sha256],
        ["corpus now", f"{now.sha256}{grown}" if now else f"not reachable: {contents.corpus_problem}"],
        ["tokenizer", tokenizer.sha256],
        ["assets", ", ".join(tokenizer.symbols)],
        ["timeframe", now.timeframe if now else NOTHING],
        ["Train ends before", str(origin.splits["train_end"]).replace("T", " ")],
        ["input files", f"{len(origin.inputs)}, each with its hash in the checkpoint"],
        ["trained with", f"vaiom {origin.vaiom_version}"],
        ["reported with", f"vaiom {__version__}"],
    ]
    return facts("Hashes and versions", [[words(what), words(value)] for what, value in rows])
