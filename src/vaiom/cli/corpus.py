"""`vaiom corpus`: build, append, show, pack and unpack."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

import vaiom
from vaiom.cli.console import Answer, CorpusPath, Overwrite, answers, parse_date, progress_bar
from vaiom.codec import to_json
from vaiom.errors import ConfigError
from vaiom.report import data_tables

app = typer.Typer(help="Bars become a causal, self-describing corpus.", no_args_is_help=True)


@app.command()
@answers
def build(
    bars: Annotated[Path, typer.Argument(metavar="BARS_DIR", help="A folder of <SYMBOL>.parquet bars.")],
    out: Annotated[Path, typer.Option(help="Where the corpus goes.")],
    timeframe: Annotated[str, typer.Option(help="What the bars must be, as in 1h; else what they are.")] = "",
    train_end: Annotated[str, typer.Option(help="End of Train; alone, it moves all boundaries with it.")] = "",
    validation: Annotated[str, typer.Option(help="Validation as D:D, half-open.")] = "",
    test: Annotated[str, typer.Option(help="Test intervals as D:D,D:D; they become test-h1, test-h2, ...")] = "",
    seal: Annotated[str, typer.Option(help="From here on nothing is scored without --unseal.")] = "",
    like: Annotated[Path | None, typer.Option(help="A model: its buckets and, unless named, its boundaries.")] = None,
    classes: Annotated[Path | None, typer.Option(help="TOML or JSON table: symbol = class, such as EQUITY.")] = None,
    overwrite: Overwrite = False,
) -> Answer:
    """Build a corpus: features, masks, targets, buckets fitted on Train, splits by target time."""
    from vaiom.events.corpus import few_train_events
    from vaiom.events.splits import VALIDATION

    options: dict[str, Any] = {"timeframe": timeframe.lower(), "classes": _class_table(classes), "like": like}
    if any((train_end, validation, test, seal)):
        options["splits"] = _splits(train_end, validation, test, seal)
    with progress_bar("building") as progress:
        corpus = vaiom.build_corpus(bars, out, overwrite=overwrite, covered=True, progress=progress, **options)
    empty = [name for name in (VALIDATION, *corpus.splits.test_names) if not corpus.manifest["events"][name]]
    last = max(asset["last"] for asset in corpus.manifest["assets"].values())
    notes = [f"note: no event with full context in {', '.join(empty)}; the bars end {last[:10]}"] if empty else []
    notes += [f"note: {symbol} has {n:,} Train events" for symbol, n in few_train_events(corpus).items()]
    return _answer(corpus, *notes)


@app.command()
@answers
def append(
    corpus: CorpusPath,
    bars: Annotated[Path, typer.Argument(metavar="BARS_DIR", help="New bars, with or without the old ones.")],
) -> Answer:
    """Add new bars; history is not rebuilt, and the result equals a full build."""
    from vaiom.events.build import append_bars

    before = len(vaiom.open_corpus(corpus, verify=False))
    with progress_bar("appending") as progress:
        grown = append_bars(corpus, bars, progress=progress)
    return _answer(grown, f"{len(grown) - before:,} rows added")


@app.command()
@answers
def show(corpus: CorpusPath) -> Answer:
    """Print what a corpus holds: assets, splits, edges, quality, where it came from."""
    return _answer(vaiom.open_corpus(corpus), quality=True)


@app.command()
@answers
def pack(
    corpus: CorpusPath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The zip to write; one that is there is replaced.")],
) -> Answer:
    """Write a corpus into one file that travels."""
    from vaiom.events.pack import pack as pack_corpus

    size = pack_corpus(corpus, file)
    return Answer(json={"file": str(file), "bytes": size}, shown=[f"{file}: {size / 2**20:.1f} MiB"])


@app.command()
@answers
def unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file made by `vaiom corpus pack`.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The corpus folder to make.")],
    overwrite: Overwrite = False,
) -> Answer:
    """Restore a packed corpus; every byte is checked."""
    from vaiom.events.pack import unpack as unpack_corpus

    return _answer(unpack_corpus(file, folder, overwrite=overwrite))


def _splits(train_end: str, validation: str, test: str, seal: str) -> vaiom.SplitConfig:
    changes: dict[str, Any] = {}
    if train_end:
        changes["train_end"] = parse_date(train_end)
    if validation:
        changes["validation"] = _interval(validation)
    if test:
        changes["tests"] = tuple(_interval(part) for part in test.split(","))
    if seal or test:
        changes["seal"] = parse_date(seal) if seal else changes["tests"][-1][1]
    try:
        if list(changes) == ["train_end"]:
            return vaiom.SplitConfig().shifted_to(changes["train_end"])
        return replace(vaiom.SplitConfig(), **changes)
    except ValueError as error:
        given = {"train-end": train_end, "validation": validation, "test": test, "seal": seal}
        raise ConfigError(
            str(error),
            got=" ".join(f"--{name} {value}" for name, value in given.items() if value),
            fix="name --train-end, --validation, --test and --seal together, or --train-end alone to move them all",
        ) from error


def _interval(text: str) -> tuple[datetime, datetime]:
    start, colon, end = text.partition(":")
    if not colon:
        raise ConfigError("not an interval", expected="D:D, as in 2024-07-01:2025-01-01", got=repr(text))
    return parse_date(start), parse_date(end)


def _class_table(file: Path | None) -> dict[str, str]:
    if file is None:
        return {}
    try:
        text = file.read_text(encoding="utf-8")
        table = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError("the class table cannot be read", where=file, got=str(error)) from error
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ConfigError("the class table is not a table", where=file, expected='EURUSD = "FX", one line per symbol')
    return {str(symbol): value.upper() for symbol, value in table.items()}


def _answer(corpus: vaiom.Corpus, *warnings: str, quality: bool = False) -> Answer:
    from vaiom.events.corpus import split_quality

    splits = split_quality(corpus)
    return Answer(
        json={**corpus.manifest, "sha256": corpus.sha256, "quality": to_json(splits)},
        shown=[*data_tables.corpus_tables(corpus), *([data_tables.split_quality(splits)] if quality else [])],
        warnings=warnings,
    )
