"""What the report and the commands show of data and origin, cell by cell."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace as Of
from typing import Any

from judged_runs import Judged

from vaiom import __version__
from vaiom.corpus.split_quality import SplitQuality, count_events
from vaiom.corpus.store import open_corpus
from vaiom.evaluation.access_ledger import ledger_heads, record_access
from vaiom.report.contents import read_run
from vaiom.report.data_tables import (
    bar_folder,
    commands,
    corpus_tables,
    looks_at_test,
    price_quality,
    provenance,
    split_quality,
)
from vaiom.report.tables import NOTHING, Table


def heads(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def test_a_folder_of_bars_shows_what_its_import_changed() -> None:
    entry = {"rows": 1_200, "first": "2024-01-01T00:00:00", "last": "2024-03-01T12:30:15"}
    repairs = {"rows_reordered": 3, "repeated_stamps_dropped": 0}
    manifest = {
        "symbols": {"EURUSD": {**entry, "flat_dropped": 7, "repairs": repairs}, "XAUUSD": entry}
    }
    bars, changed = bar_folder(manifest, Path("bars"))
    assert (bars.caption, heads(bars)) == ("Bars in bars", ["asset", "rows", "first", "last"])
    assert bars.formatted() == [
        [symbol, "1,200", "2024-01-01 00:00", "2024-03-01 12:30:15"]
        for symbol in ("EURUSD", "XAUUSD")
    ]
    assert (changed.caption, heads(changed)) == ("Changed on the way", ["asset", "what", "rows"])
    assert changed.formatted() == [
        ["EURUSD", "flat dropped", "7"],
        ["EURUSD", "rows reordered", "3"],
    ]
    assert len(bar_folder({"symbols": {"XAUUSD": entry}}, Path("bars"))) == 1


def test_a_check_of_prices_shows_bars_clock_and_the_first_of_each_finding() -> None:
    found = Of(
        severity="error",
        kind="spike",
        count=2_000,
        summary="rows that jump",
        examples=["first", "second"],
    )
    asset: Any = Of(
        symbol="EURUSD",
        rows=5_000,
        first=datetime(2024, 1, 1),
        last=datetime(2024, 1, 2, 3, 4, 5),
        timeframe_seconds=3_600,
        gaps=Of(missing_bins=12),
        zero_return_share=0.0125,
        clock=Of(statement="opens on Sunday"),
        findings=[found],
    )
    empty: Any = Of(
        **{
            **vars(asset),
            "first": None,
            "last": None,
            "timeframe_seconds": None,
            "zero_return_share": None,
            "findings": [],
        }
    )
    report: Any = Of(assets=[asset, empty])
    bars, clock, findings = price_quality(report)
    assert heads(bars) == [
        *("asset", "rows", "first bar", "last bar", "timeframe", "missing bars", "unmoved closes")
    ]
    assert bars.formatted() == [
        ["EURUSD", "5,000", "2024-01-01 00:00", "2024-01-02 03:04:05", "1h", "12", "1.25%"],
        ["EURUSD", "5,000", NOTHING, NOTHING, NOTHING, "12", NOTHING],
    ]
    assert clock.formatted() == [["EURUSD", "opens on Sunday"]] * 2
    assert heads(findings) == ["asset", "severity", "kind", "rows", "what, and the first of them"]
    assert findings.formatted() == [["EURUSD", "error", "spike", "2,000", "rows that jump\nfirst"]]
    none: Any = Of(assets=[empty])
    assert (price_quality(none)[2].caption, price_quality(none)[2].rows) == ("Findings: none", [])


def test_a_corpus_shows_its_events_edges_and_origin(judged: Judged) -> None:
    corpus = open_corpus(judged.corpus)
    assets, edges, origin = corpus_tables(corpus)
    splits, counts = list(corpus.splits.names), count_events(corpus)
    assert assets.caption == f"Corpus {judged.corpus}: 1h bars, events with 512 bars of context"
    assert heads(assets) == ["asset", "class", "first bar", "last bar", "rows", *splits]
    for row, symbol in zip(assets.rows, ("EURUSD", "XAUUSD"), strict=False):
        own = corpus.manifest["series"][symbol]
        first, last = (own[end].replace("T", " ")[:16] for end in ("first", "last"))
        assert row == [
            symbol,
            own["class"],
            first,
            last,
            own["rows"],
            *(counts[split][symbol] for split in splits),
        ]
    totals = [sum(counts[split].values()) for split in splits]
    assert assets.rows[-1] == ["all", "", "", "", len(corpus), *totals]
    assert (edges.caption, heads(edges)) == (
        "Bucket edges, fitted on Train",
        ["map", "buckets", "inner edges"],
    )
    [row] = [row for row in edges.formatted() if row[0] == "return"]
    assert row[1:] == ["16", "  ".join(f"{edge:.4f}" for edge in corpus.edges["return"][1:-1])]
    assert dict(origin.rows) == {
        "data": corpus.sha256,
        "tokenizer": corpus.manifest["tokenizer_sha256"],
        "Train ends": "2023-12-10 00:00",
        "sealed from": "2024-02-03 00:00",
        "inputs": "2 files, SHA-256 of each in the manifest",
    }


def test_shares_of_what_was_masked_and_dropped_are_percentages() -> None:
    quality = SplitQuality(
        symbol="EURUSD",
        split="train",
        rows=2_000,
        first="",
        last="",
        mask_share={"mask_bad_data": 0.01, "mask_gap": 0.02},
        zero_share=0.03,
        dropped_share=0.04,
        events=1_900,
        occupancy=[0.001, 0.002, 0.003, 0.004, *[0.1] * 8, 0.01, 0.02, 0.03, 0.04],
    )
    table = split_quality([quality])
    assert dict(zip(heads(table), table.formatted()[0], strict=True)) == {
        "asset": "EURUSD",
        "split": "train",
        "rows": "2,000",
        "valid events": "1,900",
        "zero next": "3.00%",
        "target dropped": "4.00%",
        "bad data": "1.00%",
        "gap": "2.00%",
        "low tail": "1.00%",
        "high tail": "10.00%",
    }
    assert split_quality([]).rows == []


def test_looks_and_hashes_are_those_of_the_corpus_and_the_run(
    judged: Judged, tmp_path: Path
) -> None:
    here = judged.copy_to(tmp_path)
    contents = read_run(here.run, here.corpus)
    assert contents.corpus is not None
    own, corpus = contents.checkpoint, contents.corpus
    record_access(corpus, "sealed", run="other", checkpoint_sha256="ab" * 32, num_events=1_234)
    assert len(contents.looks) == 2, "looks after the report are none of its own"
    later = read_run(here.run, here.corpus)
    table = looks_at_test(later.looks, own.sha256)
    assert heads(table) == ["when (UTC)", "split", "run", "checkpoint", "events"]
    assert [row[1:4] for row in table.formatted()] == [
        ["test-h1", "run", f"{own.sha256[:12]} (this one)"],
        ["test-h2", "run", f"{own.sha256[:12]} (this one)"],
        ["sealed", "other", "ab" * 6],
    ]
    assert table.formatted()[2][4] == "1,234"
    assert table.formatted()[2][0] == later.looks[2].when[:19].replace("T", " ")
    shown = dict(provenance(later).rows)
    assert shown == {
        "experiment, seed, step": f"tiny, 17, {own.provenance.step}",
        "checkpoint": own.sha256,
        "corpus at training": corpus.sha256,
        "corpus now": corpus.sha256,
        "tokenizer": own.tokenizer.sha256,
        "ledger of looks": ledger_heads(corpus)[-1],
        "assets": "EURUSD, XAUUSD",
        "timeframe": "1h",
        "Train ends before": "2023-12-10 00:00:00",
        "input files": "2, each with its hash in the checkpoint",
        "trained with": f"vaiom {__version__}",
        "reported with": f"vaiom {__version__}",
    }
    changed: Any = Of(**{**vars(later), "corpus": Of(sha256="other", tokenizer=Of(timeframe="4h"))})
    assert (
        dict(provenance(changed).rows)["corpus now"]
        == "other (the corpus has grown or changed since)"
    )
    inputs = replace(later.inputs, corpus=None, corpus_problem="gone", ledger_sha256=None)
    lost = replace(later, corpus=None, inputs=inputs)
    assert lost.looks == []
    shown = dict(provenance(lost).rows)
    assert (shown["corpus now"], shown["ledger of looks"], shown["timeframe"]) == (
        *("not reachable: gone", NOTHING, NOTHING),
    )


def test_commands_repeat_the_run(judged: Judged, lonely: Judged) -> None:
    contents = read_run(judged.run)
    found = [shlex.split(line) for line in commands(contents)]
    run, corpus = str(judged.run), str(judged.corpus)
    names = "frequency,markov,hour_of_week,ewma_t,lightgbm"
    expected = [["vaiom", "train", corpus, "--experiment", "tiny", "--seed", "17", "--out", run]]
    for split in ("validation", "test-h1", "test-h2"):
        words = ["--out", "baselines", "--only", names, "--context", "16", "--split", split]
        expected.append(["vaiom", "baselines", corpus, *words])
        words = ["--corpus", corpus, "--split", split, "--baselines", "baselines"]
        expected.append(["vaiom", "evaluate", run, *words])
    assert found == [*expected, ["vaiom", "report", run, "--corpus", corpus]]
    # A setting of a known experiment that was changed; a split that is sealed; plain baselines,
    # which need no store.
    alone = read_run(lonely.run)
    origin = replace(alone.checkpoint.provenance, experiment="best")
    [split] = alone.splits
    sealed = replace(split, evaluation=replace(split.evaluation, split="sealed"))
    known = replace(
        alone,
        splits=[sealed],
        checkpoint=replace(alone.checkpoint, provenance=origin),
        inputs=replace(alone.inputs, corpus=None),
    )
    train, evaluate, report = commands(known)
    assert train.startswith("vaiom train CORPUS --experiment best --seed 17 --set ")
    assert "--set num_layers=1" in train
    assert "--set seed=" not in train
    assert "[" not in train
    assert evaluate == f"vaiom evaluate {lonely.run} --corpus CORPUS --split sealed --unseal sealed"
    assert report == f"vaiom report {lonely.run} --corpus CORPUS"
