"""Bad input through the command line: exit 2, a message that names file, row and way out, and
nothing left behind.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_line import Vaiom, listing, require_refusal

from market.feed_server import made_up_day
from strategies import random_bars
from vaiom.market.folder import write_symbol
from vaiom.simulation.market import MarketConfig

HEADER = "time,open,high,low,close,volume\n"
FIRST = "2019-02-04 00:00,1.1,1.2,1.0,1.1,5\n"
SECOND = "2019-02-04 00:01,1.1,1.2,1.0,1.1,5\n"
BI5 = "EURUSD_2019_01_04_BID_candles_min_1.bi5"


def zipped(name: str, text: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, text)
    return buffer.getvalue()


# Files to import: (name, content, what the message says)
FILES: dict[str, tuple[str, str | bytes, tuple[str, ...]]] = {
    "a missing column": (
        "EURUSD.csv",
        "time,open,high,low\n2019-02-04 00:00,1,1,1\n",
        ("'Close'", "--column Close="),
    ),
    "a repeated stamp": ("EURUSD.csv", HEADER + FIRST + FIRST, ("repeated", "line 3", "--repair")),
    "a truncated .bi5": (
        BI5,
        made_up_day(datetime(2019, 2, 4).date())[:-20],
        ("truncated", "try:"),
    ),
    "an offset": (
        "EURUSD.csv",
        HEADER + FIRST.replace("00:00,", "00:00:00+02:00,"),
        ("line 2", "+02:00", "--utc"),
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_cannot_be_imported(vaiom: Vaiom, tmp_path: Path, case: str) -> None:
    name, content, says = FILES[case]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "GBPJPY.csv").write_text(HEADER + FIRST)
    before = listing(tmp_path)
    # The good file first: it must not be written either.
    for asked in (["GBPJPY.csv", name], [name]):
        ran = vaiom(
            "data",
            "import",
            *(tmp_path / file for file in asked),
            "--out",
            tmp_path / "out",
            "--json",
        )
        require_refusal(ran, name, *says)
    assert listing(tmp_path) == before


def test_a_symbol_that_leads_out_of_the_folder_is_refused(vaiom: Vaiom, tmp_path: Path) -> None:
    (tmp_path / "EURUSD.csv").write_text(HEADER + FIRST)
    before = listing(tmp_path)
    ran = vaiom(
        "data",
        "import",
        tmp_path / "EURUSD.csv",
        "--symbol",
        "../EURUSD",
        "--out",
        tmp_path / "out",
    )
    require_refusal(ran, "not usable as a symbol", "'../EURUSD'")
    assert listing(tmp_path) == before


# Bar folders: what is done to good bars, and what the message says

BARS = random_bars(400)
FOLDERS: dict[str, tuple[pl.DataFrame | bytes, tuple[str, ...]]] = {
    "a missing column": (BARS.drop("Open"), ("'Open'", "data import")),
    "stamps with a zone": (
        BARS.with_columns(pl.col("Datetime").dt.replace_time_zone("UTC")),
        ("UTC", "--utc"),
    ),
    "a repeated stamp": (pl.concat([BARS[:7], BARS[6:]]), ("repeated", "row 8", "--repair")),
    "not Parquet": (b"PAR1 and no more", ("not readable as Parquet",)),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_bar_folders_that_cannot_be_used(vaiom: Vaiom, tmp_path: Path, case: str) -> None:
    content, says = FOLDERS[case]
    bars, out = tmp_path / "bars", tmp_path / "out"
    write_symbol(bars, "AUDUSD", BARS)
    if isinstance(content, bytes):
        (bars / "EURUSD.parquet").write_bytes(content)
    else:
        content.write_parquet(bars / "EURUSD.parquet")
    before = listing(tmp_path)
    for command in (
        ["corpus", "build", bars, "--out", out],
        ["data", "resample", bars, "--to", "4h", "--out", out],
    ):
        require_refusal(vaiom(*command, "--json"), str(bars / "EURUSD.parquet"), *says)
    assert listing(tmp_path) == before


def test_prices_that_are_no_prices_are_masked_not_refused(
    vaiom: Vaiom, tmp_path: Path, market: Path
) -> None:
    bars = pl.read_parquet(market / "SIM01USD.parquet").with_row_index()
    bad = (
        pl.when(pl.col("index") == 900)
        .then(-1.0)
        .when(pl.col("index") == 901)
        .then(np.nan)
        .otherwise("Close")
    )
    write_symbol(tmp_path / "bars", "EURUSD", bars.with_columns(Close=bad).drop("index"))
    built = vaiom(
        "corpus", "build", tmp_path / "bars", "--out", tmp_path / "corpus", "--json"
    ).json()
    [train] = [row for row in built["quality"] if row["split"] == "train"]
    assert train["mask_share"]["missing"] * train["rows"] >= 2


# Corpora


def test_a_corpus_of_another_format_version(
    vaiom: Vaiom, corpus: Path, market: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    manifest = json.loads((copy / "manifest.json").read_text()) | {"format_version": 99}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    before = listing(tmp_path)
    for command in (["show", copy], ["append", copy, market], ["pack", copy, tmp_path / "c.zip"]):
        require_refusal(
            vaiom("corpus", *command), "another format version", "manifest.json", "99", "try:"
        )
    assert listing(tmp_path) == before


def one_byte_changed(data: bytes, is_json: bool) -> list[bytes]:
    """The last byte, and in JSON, which stays readable so, the last digit; white space may not
    change either.
    """
    digit = max(place for place, byte in enumerate(data) if chr(byte).isdigit())
    changed = [data[:-1] + (b" " if is_json else bytes([data[-1] ^ 1]))]
    return changed + [data[:digit] + bytes([data[digit] ^ 1]) + data[digit + 1 :]] * is_json


def test_a_corpus_with_one_byte_changed(
    vaiom: Vaiom, corpus: Path, market: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    for file in sorted(path for path in copy.rglob("*") if path.is_file()):
        original = file.read_bytes()
        for damaged in one_byte_changed(original, file.suffix == ".json"):
            file.write_bytes(damaged)
            before = listing(tmp_path)
            for command in (
                ["show", copy],
                ["append", copy, market],
                ["pack", copy, tmp_path / "c.zip"],
            ):
                require_refusal(vaiom("corpus", *command), "damaged", str(file), "try:")
            assert listing(tmp_path) == before
        file.write_bytes(original)
    assert vaiom("corpus", "show", copy).code == 0


def test_a_packed_corpus_that_is_cut_hostile_or_none(
    vaiom: Vaiom, corpus: Path, tmp_path: Path
) -> None:
    file = tmp_path / "corpus.zip"
    assert vaiom("corpus", "pack", corpus, file).code == 0
    whole = file.read_bytes()
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("../climbed.npy", b"x")
    climbing = file.read_bytes()
    bomb = zipped("manifest.json", "0" * (64 << 20))
    for content, says in (
        (whole[:-200], "not a packed"),
        (climbing, "../climbed.npy"),
        (bomb, "more than"),
        (b"", "not"),
    ):
        file.write_bytes(content)
        before = listing(tmp_path)
        require_refusal(vaiom("corpus", "unpack", file, tmp_path / "there"), str(file), says)
        assert listing(tmp_path) == before


# Places


def test_places_that_cannot_be_written(
    vaiom: Vaiom, market: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vaiom.simulation.market.MarketConfig",
        lambda **given: MarketConfig(**given, bars=50, assets=1),
    )
    source, packed, blocked = tmp_path / "EURUSD.csv", tmp_path / "c.zip", tmp_path / "file"
    source.write_text(HEADER + FIRST)
    blocked.write_text("in the way")
    assert vaiom("corpus", "pack", corpus, packed).code == 0
    before = listing(tmp_path)
    # Below a file nothing can be made, and below /proc not even root may make anything.
    for place in (blocked / "below", Path("/proc/vaiom")):
        for command in (
            ["data", "simulate", "--out", place],
            ["data", "import", source, "--out", place],
            ["data", "resample", market, "--to", "4h", "--out", place],
            [
                "data",
                "download",
                "EURUSD",
                "--from",
                "2019-02-04",
                "--to",
                "2019-02-05",
                "--out",
                place,
            ],
            ["corpus", "build", market, "--out", place],
            ["corpus", "pack", corpus, place / "c.zip"],
            ["corpus", "unpack", packed, place],
            ["demo", "--out", place],
        ):
            require_refusal(vaiom(*command), "cannot write", str(place.parent), "try:")
    assert listing(tmp_path) == before


def test_a_full_disk_is_not_our_bug(vaiom: Vaiom, market: Path, tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    (tmp_path / "bars").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vaiom.files.write_json", lambda *_: full.write_bytes(b"x"))
        ran = vaiom("corpus", "build", market, "--out", tmp_path / "corpus")
    require_refusal(ran, "No space left on device")
    assert list(listing(tmp_path)) == ["bars"]


# Options

OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "data check NOWHERE": ("no such bar folder", ("NOWHERE",)),
    "data check EMPTY": ("bar folder is empty", ("data import",)),
    "data import NOWHERE --out OUT": ("no such file", ("NOWHERE",)),
    "data import FILE --format excel --out OUT": ("no such format", ("metatrader",)),
    "data import FILE --shift soon --out OUT": ("not a time span", ("2h",)),
    "data import FILE --column Close --out OUT": ("not a column map", ("Close=",)),
    "data resample BARS --to 7h --out OUT": ("unknown timeframe", ("4h",)),
    "data resample BARS --to 10min --out OUT": ("cannot be made finer", ("SIM01USD.parquet",)),
    "data resample BARS --to 4h --out BARS --overwrite": ("is the source", ("--out",)),
    "data simulate --assets 100000 --out OUT": ("assets must lie in", ("100000",)),
    "data download EURUSD --from 2019-02-05 --to 2019-02-04 --out OUT": (
        "no day",
        ("--from before --to",),
    ),
    "data download EURUSD --from today --to 2019-02-04 --out OUT": (
        "not a date",
        ("YYYY-MM-DD", "'today'"),
    ),
    "data download EURUDS --from 2019-02-04 --to 2019-02-05 --out OUT": ("EURUDS", ()),
    "corpus build NOWHERE --out OUT": ("no such bar folder", ("NOWHERE",)),
    "corpus build BARS --out OUT --timeframe 7h": ("unknown timeframe", ("4h",)),
    "corpus build BARS --out OUT --timeframe 4h": (
        "another timeframe",
        ("resample", "--timeframe"),
    ),
    "corpus build BARS --out OUT --timeframe 10min": (
        "another timeframe",
        ("name the right --timeframe",),
    ),
    "corpus build BARS --out OUT --train-end 2024-01-15": ("start of a month", ("--validation",)),
    "corpus build BARS --out OUT --train-end 2024-01-01T00:00Z": (
        "without an offset",
        ("YYYY-MM-DD",),
    ),
    "corpus build BARS --out OUT --train-end 9999-12-01": (
        "out of range",
        ("--train-end 9999-12-01",),
    ),
    "corpus build BARS --out OUT --train-end 2010-01-01": (
        "no bar lies in Train",
        ("--train-end",),
    ),
    "corpus build BARS --out OUT --validation 2024-07-01": ("not an interval", ("D:D",)),
    "corpus build BARS --out OUT --validation 2020-01-01:2020-07-01": (
        "must follow each other",
        ("--seal",),
    ),
    "corpus build BARS --out OUT --classes NOWHERE": ("cannot be read", ("NOWHERE",)),
    "corpus build BARS --out OUT --classes FILE": ("cannot be read", ("FILE",)),
    "corpus build BARS --out EMPTY": ("exists already", ("--overwrite",)),
    "corpus show NOWHERE": ("not a corpus", ("NOWHERE", "corpus build")),
    "corpus show BARS": ("not the manifest of a corpus", ("manifest.json",)),
    "corpus append NOWHERE BARS": ("not a corpus", ("NOWHERE",)),
    "corpus pack NOWHERE OUT": ("not a corpus", ("NOWHERE",)),
    "corpus pack NOWHERE EMPTY": ("folder, not a file", ("EMPTY/corpus.zip",)),
    "corpus unpack FILE OUT": ("not a packed corpus", ("FILE",)),
    "corpus unpack NOWHERE OUT": ("no such file", ("NOWHERE",)),
    f"corpus show {'x' * 300}": ("too long", ("x" * 300,)),
    "bench speed": ("unknown benchmark", ("events",)),
}


@pytest.mark.parametrize("command", OPTIONS, ids=lambda command: command[:60])
def test_options_that_make_no_sense(
    vaiom: Vaiom, market: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "FILE").write_text(HEADER + FIRST)
    (tmp_path / "EMPTY").mkdir()
    places = {name: tmp_path / name for name in ("FILE", "EMPTY", "OUT", "NOWHERE")} | {
        "BARS": market
    }
    before, bars_before = listing(tmp_path), listing(market)
    problem, says = OPTIONS[command]
    require_refusal(vaiom(*(places.get(word, word) for word in command.split())), problem, *says)
    assert listing(tmp_path) == before
    assert listing(market) == bars_before


def test_a_seed_is_one_that_random_numbers_can_have(vaiom: Vaiom, tmp_path: Path) -> None:
    ran = vaiom("horizons", tmp_path, "--seed", 2**64)
    assert (ran.code, ran.out) == (2, "")
    assert "--seed" in ran.err


@pytest.mark.parametrize("command", ["evaluate", "horizons", "dependence"])
def test_a_run_that_is_not_there_is_not_blamed_on_its_corpus(
    vaiom: Vaiom, tmp_path: Path, command: str
) -> None:
    require_refusal(
        vaiom(command, tmp_path / "typo"), "no such run", "typo", "check the path", "--corpus"
    )
