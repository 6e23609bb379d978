"""Short texts that people type or servers send: dates, spans, intervals, settings, symbols, paths,
small files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from vaiom.cli import data as corpus_command
from vaiom.cli import options
from vaiom.market.day_ledger import DayLedger
from vaiom.market.folder import check_symbol, open_manifest
from vaiom.market.formats.dukascopy import parse_path
from vaiom.market.formats.stamps import parse_stamps
from vaiom.market.symbols import find_pair
from vaiom.training.experiment import Experiment
from verification.fuzz.mutations import Mutate, spoil_json, spoil_text

Entry = tuple[Sequence[bytes], Mutate, Callable[[bytes], object], int]

STAMPS = (
    *(
        "2019-02-04 12:30",
        "2019-02-04 12:30:00.5",
        "2019.02.04 12:30",
        "04.02.2019 12:30",
        "20190204 123000",
    ),
    *(
        "201902041230",
        "1549283400",
        "1549283400000",
        "2019-02-04T12:30:00Z",
        "2019-02-04 12:30 UTC",
        "2019-02-04",
    ),
)
SETTINGS = (
    *(
        "learning_rate=1e-3",
        "steps=7",
        "auxiliaries=gap,ordinal",
        "fields=ret_z,gap_z",
        "width=32",
        "input=disc",
    ),
    *(
        "dropout=0.2",
        "seed=3",
        "scope=last",
        "num_layers=2",
        "context=16",
        "precision=fp32",
        "schedule=cosine",
    ),
)
LEDGER_LINE = (
    b'{"bytes":9,"day":"2019-02-04","rows":2,"sha256":"ab","status":"bars","symbol":"EURUSD"}\n'
)
CLASSES = b'EURUSD = "FX"\nXAUUSD = "SPOT"\n'
MANIFEST = b'{"symbols": {"EURUSD": {"rows": 3, "source": "dukascopy BID 1min"}}}'
CANDLES = "EURUSD/2019/01/04/BID_candles_min_1.bi5"


def targets(scratch: Path) -> dict[str, Entry]:
    def texts(*seeds: str) -> list[bytes]:
        return [seed.encode() for seed in seeds]

    return {
        "span": (texts("2h", "-30min", "1d", "+90m"), spoil_text, _of(options.parse_span), 120),
        "date": (
            texts("2024-01-01", "2024-01-01T12:30:00", "20240101"),
            spoil_text,
            _of(options.parse_date),
            120,
        ),
        "splits": (texts("2024-07-01:2025-01-01", "2024-01-01"), spoil_text, _of(_splits), 80),
        "setting": (
            texts(*SETTINGS),
            spoil_text,
            _of(lambda text: Experiment(name="x").with_settings([text])),
            120,
        ),
        "symbol": (texts("EURUSD", "BRK.B", "EUR/USD"), spoil_text, _of(_symbol), 100),
        "bi5 path": (
            texts(CANDLES, "a/EURUSD_2019_01_04_22h_ticks.bi5"),
            spoil_text,
            _of(parse_path),
            100,
        ),
        "stamps": (
            ["\n".join([text] * 3).encode() for text in STAMPS],
            spoil_text,
            _of(_stamps),
            20,
        ),
        "class table": (
            [CLASSES],
            spoil_text,
            _file(scratch / "classes.toml", corpus_command._class_table),
            20,
        ),
        "bar manifest": (
            [MANIFEST],
            spoil_json,
            _file(scratch / "bars" / "manifest.json", _bar_manifest),
            15,
        ),
        "download ledger": (
            [LEDGER_LINE * 2],
            spoil_text,
            _file(scratch / "raw" / "ledger.jsonl", _ledger),
            15,
        ),
    }


def _of(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    """As the command line hands it over: bytes that are no UTF-8 arrive as surrogates."""
    return lambda data: parse(data.decode(errors="surrogateescape"))


def _file(file: Path, parse: Callable[[Path], object]) -> Callable[[bytes], object]:
    file.parent.mkdir(parents=True, exist_ok=True)

    def write_and_parse(data: bytes) -> object:
        file.write_bytes(data)
        return parse(file)

    return write_and_parse


def _splits(text: str) -> object:
    return (
        corpus_command._splits(text, text, "", "")
        if ":" in text
        else corpus_command._splits(text, "", "", "")
    )


def _symbol(text: str) -> object:
    return find_pair(text), check_symbol(text)


def _stamps(text: str) -> object:
    values = pl.Series("stamp", text.encode(errors="replace").decode().split("\n"))
    return parse_stamps(values, lambda row: f"table.csv, line {row + 1}", utc=len(text) % 2 == 0)


def _bar_manifest(file: Path) -> object:
    return open_manifest(file.parent)


def _ledger(file: Path) -> object:
    ledger = DayLedger(file.parent)
    return [ledger.is_finished(day) for day in ledger.records("EURUSD")]
