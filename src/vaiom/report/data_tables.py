"""Tables of data and of where figures come from.

Bar folders, reports on their prices, corpora, ledgers of looks and runs enter; tables and the
commands that repeat a run leave. Paper: "Corpus Construction and Split Protocol".
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaiom import __version__
from vaiom.report.tables import NOTHING, Column, Table, count, facts, moment, percent2, prose, text

if TYPE_CHECKING:
    from vaiom.corpus.split_quality import SplitQuality
    from vaiom.corpus.store import Corpus
    from vaiom.evaluation.access_ledger import TestAccess
    from vaiom.market.check import QualityReport
    from vaiom.report.contents import RunContents

BASELINES_FOLDER = "baselines"
"""Where the commands that repeat a run store the losses of baselines."""
SHOWN_OF_HASH = 12
"""Characters of a checkpoint's hash that tell it from others in a table."""

ASSET = Column("asset", text, "symbol")
ROWS = Column("rows", count, "rows")

VALID_EVENTS = Column(
    "valid events",
    count,
    "events",
    "Rows that may be trained on or scored, before any demand on context",
)
ZERO_NEXT = Column("zero next", percent2, "zero_share", "Next returns that are exactly zero")
DROPPED = Column(
    "target dropped", percent2, "dropped_share", "For any reason, exact zeros included"
)
LOW_TAIL = Column(
    "low tail",
    percent2,
    lambda each: sum(each.occupancy[:4]),
    "Events that ended in buckets 1 to 4",
)
HIGH_TAIL = Column(
    "high tail",
    percent2,
    lambda each: sum(each.occupancy[-4:]),
    "Events that ended in buckets 13 to 16",
)


def bar_folder(manifest: Mapping[str, Any], folder: Path) -> list[Table]:
    """The bars of a folder by its manifest, and what its import dropped or repaired.

    The second table is left out where nothing was changed.
    """
    bars = []
    changes = []
    for symbol, entry in manifest["symbols"].items():
        bars.append([symbol, entry["rows"], moment(entry["first"]), moment(entry["last"])])
        by_import = {key: entry.get(key) for key in ("flat_dropped", "filled_from_close")}
        repairs = {**by_import, **entry.get("repairs", {})}
        for name, number in repairs.items():
            if number:
                changes.append([symbol, name.replace("_", " "), number])
    columns = [Column("asset"), Column("rows", count), Column("first"), Column("last")]
    tables = [Table(f"Bars in {folder}", columns, bars)]
    if changes:
        columns = [Column("asset"), Column("what"), Column("rows", count)]
        tables.append(Table("Changed on the way", columns, changes))
    return tables


def price_quality(report: QualityReport) -> list[Table]:
    """What a check of prices found: the bars, their clock, and each finding with an example.

    The clock is what the weekly opening and close tell of the stamps: which time zone they are in,
    and whether they follow summer time.
    """
    bars = (
        ASSET,
        ROWS,
        Column("first bar", _stamp, "first"),
        Column("last bar", _stamp, "last"),
        Column("timeframe", _span, "timeframe_seconds"),
        Column("missing bars", count, "gaps.missing_bins"),
        Column("unmoved closes", percent2, "zero_return_share"),
    )
    clock = (ASSET, Column("statement", prose, "clock.statement"))
    findings = []
    for asset in report.assets:
        for each in asset.findings:
            what = "\n".join([each.summary, *each.examples[:1]])
            findings.append([asset.symbol, each.severity, each.kind, each.count, what])
    columns = (
        Column("asset"),
        Column("severity"),
        Column("kind"),
        Column("rows", count),
        Column("what, and the first of them", prose),
    )
    return [
        Table.of("Bars", bars, report.assets),
        Table.of("Clock, as the weekly opening and close show it", clock, report.assets),
        Table("Findings", columns, findings) if findings else Table("Findings: none", [], []),
    ]


def _stamp(value: object) -> str:
    """A date and time, or a dash where there is no bar."""
    return moment(text(value))


def _span(seconds: int | None) -> str:
    """The length of a bar, such as 1h."""
    from vaiom.market.timeframes import format_span

    return format_span(timedelta(seconds=seconds)) if seconds else NOTHING


def corpus_tables(corpus: Corpus) -> list[Table]:
    """The assets of a corpus with their events, the bucket edges, and where it comes from.

    Events are counted per split with the paper's context of 512 bars.
    """
    manifest = corpus.manifest
    origin = {
        "data": corpus.sha256,
        "tokenizer": manifest["tokenizer_sha256"],
        "Train ends": moment(manifest["splits"]["train_end"]),
        "sealed from": moment(manifest["splits"]["seal"]),
        "inputs": f"{len(manifest['inputs'])} files, SHA-256 of each in the manifest",
    }
    return [_assets(corpus), _edges(corpus), facts("Provenance", origin)]


def _assets(corpus: Corpus) -> Table:
    """Rows of each asset and its events in each split, and the sums over all assets."""
    from vaiom.corpus.split_quality import count_events

    manifest = corpus.manifest
    events = count_events(corpus)
    rows = []
    for symbol, asset in manifest["series"].items():
        bars = [asset["class"], moment(asset["first"]), moment(asset["last"]), asset["rows"]]
        rows.append([symbol, *bars, *(counts[symbol] for counts in events.values())])
    totals = [sum(counts.values()) for counts in events.values()]
    rows.append(["all", "", "", "", manifest["rows"], *totals])
    columns = [Column(name) for name in ("asset", "class", "first bar", "last bar")]
    columns += [Column(name, count) for name in ("rows", *events)]
    bars_of = f"{corpus.tokenizer.timeframe} bars, events with 512 bars of context"
    return Table(f"Corpus {corpus.path}: {bars_of}", columns, rows)


def _edges(corpus: Corpus) -> Table:
    """The inner edges of each map from values to buckets; the outer ones are infinite."""
    columns = [Column("map"), Column("buckets", count), Column("inner edges", prose)]
    rows = []
    for name, values in corpus.edges.items():
        inner = "  ".join(f"{edge:.4f}" for edge in values[1:-1])
        rows.append([name, len(values) - 1, inner])
    origin = "of a model" if corpus.like else "fitted on Train"
    return Table(f"Bucket edges, {origin}", columns, rows)


def split_quality(quality: Sequence[SplitQuality]) -> Table:
    """Shares of masked rows and dropped targets, by asset and split of the target.

    Exact zeros among the next returns are dropped by their outcome, which no forecast can know;
    shares of the tails show whether buckets that were fitted on Train fit later splits.
    """
    columns = [ASSET, Column("split", text, "split"), ROWS, VALID_EVENTS, ZERO_NEXT, DROPPED]
    masks = quality[0].mask_share if quality else {}
    columns += map(_masked, masks)
    columns += [LOW_TAIL, HIGH_TAIL]
    caption = "What was masked and dropped, by asset and split of the target"
    return Table.of(caption, columns, quality)


def _masked(mask: str) -> Column:
    """A column with the share of rows that have one mask, such as bad data or a gap."""
    name = mask.removeprefix("mask_").replace("_", " ")
    return Column(name, percent2, lambda each: each.mask_share[mask], "Share of rows masked")


def looks_at_test(looks: Sequence[TestAccess], own: str) -> Table:
    """When each test split was scored and by what; `own` is the hash of the report's checkpoint.

    Test is evidence only as long as nobody chose anything by it, so every look is told.
    """

    def when(look: TestAccess) -> str:
        return look.when.replace("T", " ").removesuffix("+00:00")

    def checkpoint(look: TestAccess) -> str:
        shown = look.checkpoint_sha256[:SHOWN_OF_HASH]
        return f"{shown} (this one)" if look.checkpoint_sha256 == own else shown

    columns = [
        Column("when (UTC)", text, when),
        Column("split", text, "split"),
        Column("run", text, "run"),
        Column("checkpoint", text, checkpoint),
        Column("events", count, "num_events"),
    ]
    return Table.of("Looks at test splits of this corpus", columns, looks)


def provenance(contents: RunContents) -> Table:
    """The hashes and versions of everything that the figures depend on.

    A corpus that cannot be read, or that has grown since the training, is named as such.
    """
    origin = contents.checkpoint.provenance
    tokenizer = contents.checkpoint.tokenizer
    corpus = contents.corpus
    corpus_now = f"not reachable: {contents.inputs.corpus_problem}"
    timeframe = NOTHING
    if corpus is not None:
        timeframe = corpus.tokenizer.timeframe
        corpus_now = corpus.sha256
        if corpus.sha256 != origin.corpus_sha256:
            corpus_now += " (the corpus has grown or changed since)"
    rows = {
        "experiment, seed, step": f"{origin.experiment}, {origin.seed}, {count(origin.step)}",
        "checkpoint": contents.checkpoint.sha256,
        "corpus at training": origin.corpus_sha256,
        "corpus now": corpus_now,
        "tokenizer": tokenizer.sha256,
        "ledger of looks": contents.inputs.ledger_sha256 or NOTHING,
        "assets": ", ".join(tokenizer.symbols),
        "timeframe": timeframe,
        "Train ends before": str(origin.splits["train_end"]).replace("T", " "),
        "input files": f"{len(origin.inputs)}, each with its hash in the checkpoint",
        "trained with": f"vaiom {origin.vaiom_version}",
        "reported with": f"vaiom {__version__}",
    }
    return facts("Hashes and versions", rows)


def commands(contents: RunContents) -> list[str]:
    """The command lines that lead from the corpus to the report.

    Training comes first, with each setting in which the run differs from its named experiment,
    then the baselines and the evaluation of each split, then the report. Losses that somebody
    stored under a name of their own cannot be repeated so, and are left out.
    """
    run = contents.inputs.run
    corpus = contents.inputs.corpus or "CORPUS"
    lines = [_train_command(contents, corpus)]
    for split in contents.splits:
        lines += _evaluate_commands(contents, split.name, [*split.evaluation.bits], corpus)
    lines.append(["vaiom", "report", run, "--corpus", corpus])
    return [shlex.join(words) for words in lines]


def _train_command(contents: RunContents, corpus: str) -> list[str]:
    """Training, with each setting in which the run differs from its named experiment."""
    from vaiom.experiments.registry import EXPERIMENTS
    from vaiom.training.experiment import changed, experiment_of_checkpoint

    origin = contents.checkpoint.provenance
    named = EXPERIMENTS.get(origin.experiment)
    words = ["vaiom", "train", corpus, "--experiment", origin.experiment]
    words += ["--seed", str(origin.seed)]
    settings = changed(named, experiment_of_checkpoint(contents.checkpoint)) if named else {}
    for key, (value, _) in settings.items():
        if key != "seed":
            shown = ",".join(value) if isinstance(value, list) else value
            words += ["--set", f"{key}={shown}"]
    return [*words, "--out", contents.inputs.run]


def _evaluate_commands(
    contents: RunContents, split: str, predictors: Sequence[str], corpus: str
) -> list[list[str]]:
    """Evaluation of a split, after its baselines where more than the plain ones were compared."""
    from vaiom.baselines.base import BASELINES, PLAIN
    from vaiom.corpus.splits import SEALED

    evaluate = ["vaiom", "evaluate", contents.inputs.run, "--corpus", corpus, "--split", split]
    if split == SEALED:
        evaluate += ["--unseal", SEALED]
    # Losses that somebody stored under a name of their own cannot be repeated so.
    names = [name for name in predictors if name in BASELINES]
    if set(names) <= set(PLAIN):
        return [evaluate]
    context = str(contents.checkpoint.model.config.history)
    fit = ["vaiom", "baselines", corpus, "--out", BASELINES_FOLDER, "--only", ",".join(names)]
    fit += ["--context", context, "--split", split]
    return [fit, [*evaluate, "--baselines", BASELINES_FOLDER]]
