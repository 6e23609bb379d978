"""Bad input: a clear error that names file, row and way out, and nothing left behind."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from market.price_files import candles_bi5, frame_of, some_bars
from vaiom.errors import DataError
from vaiom.market.folder import read_bars
from vaiom.market.formats import packed
from vaiom.market.imports import import_files

HEADER = "time,open,high,low,close,volume\n"
GOOD = "2019-02-04 00:00,1.1,1.2,1.0,1.1,5\n"
NEXT = "2019-02-04 00:01,1.1,1.2,1.0,1.1,5\n"


def zipped(members: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def encrypted(data: bytes) -> bytes:
    """Set the flag that says so, in the local header and in the directory."""
    flagged = bytearray(data)
    flagged[6] |= 1
    flagged[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(flagged)


def damaged(data: bytes) -> bytes:
    middle = data.index(b"PK\x01\x02") // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


def parquet_of_texts() -> bytes:
    buffer = io.BytesIO()
    frame_of(some_bars()).with_columns(Open=frame_of(some_bars())["Datetime"]).write_parquet(buffer)
    return buffer.getvalue()


def parquet_of_no_texts() -> bytes:
    """A text column whose bytes are no UTF-8, as damage leaves it."""
    buffer = io.BytesIO()
    stamps = frame_of(some_bars())["Datetime"].dt.to_string("%Y-%m-%d %H:%M")
    frame_of(some_bars()).with_columns(Datetime=stamps).write_parquet(
        buffer, compression="uncompressed"
    )
    return buffer.getvalue().replace(b"-02-", b"-\xff\xfe-")


def parquet_of_nothing() -> bytes:
    buffer = io.BytesIO()
    frame_of(some_bars()).select().write_parquet(buffer)
    return buffer.getvalue()


DAY = datetime(2019, 2, 4)
BI5 = "EURUSD_2019_01_04_BID_candles_min_1.bi5"
CASES: dict[str, tuple[str, bytes | str, str]] = {
    "empty": ("EURUSD.csv", "", "holds no rows"),
    "header alone": ("EURUSD.csv", HEADER + "\n", "holds no rows"),
    "missing column": (
        "EURUSD.csv",
        HEADER.replace("close", "price") + GOOD,
        r"'Close' is missing[\s\S]*--column",
    ),
    "names are listed": (
        "EURUSD.csv",
        "when,open\n1,2\n",
        r"'Datetime' is missing[\s\S]*got: +when, open",
    ),
    "no columns": (
        "EURUSD.parquet",
        parquet_of_nothing(),
        r"'Datetime' is missing[\s\S]*got: +no columns",
    ),
    "renamed stamp": (
        "EURUSD.csv",
        HEADER.replace("time", "when") + GOOD,
        r"'Datetime' is missing",
    ),
    "no names": ("EURUSD.csv", GOOD + NEXT, r"no names[\s\S]*line 1[\s\S]*--column"),
    "unreadable stamp": (
        "EURUSD.csv",
        HEADER + GOOD + "04/02/2019 00:01,1,1,1,1,5\n",
        "stamp cannot be read[\\s\\S]*line 3",
    ),
    "missing stamp": ("EURUSD.csv", HEADER + GOOD + ",1,1,1,1,5\n", r"line 3[\s\S]*nothing"),
    "repeated stamp": (
        "EURUSD.csv",
        HEADER + "\n" + GOOD + GOOD,
        r"repeated[\s\S]*line 4[\s\S]*--repair",
    ),
    "unsorted": ("EURUSD.csv", HEADER + NEXT + GOOD, r"back in time[\s\S]*line 3[\s\S]*--repair"),
    "offset": (
        "EURUSD.csv",
        HEADER + GOOD.replace("00:00,", "00:00:00+02:00,"),
        r"offset[\s\S]*line 2[\s\S]*--utc",
    ),
    "negative": (
        "EURUSD.csv",
        HEADER + GOOD + NEXT.replace("1.0", "-1.0"),
        r"line 3[\s\S]*Low -1.0[\s\S]*--repair",
    ),
    "nan": (
        "EURUSD.csv",
        HEADER + GOOD + NEXT.replace("1.2", "NaN"),
        r"line 3[\s\S]*High nan[\s\S]*--repair",
    ),
    "null": ("EURUSD.csv", HEADER + GOOD + NEXT.replace("1.2", ""), r"line 3[\s\S]*High None"),
    "no number": (
        "EURUSD.csv",
        HEADER + GOOD + NEXT.replace("1.2", "n/a"),
        r"line 3[\s\S]*'n/a'[\s\S]*--repair",
    ),
    "a decimal comma among points": (
        "EURUSD.csv",
        (HEADER + GOOD).replace(",", ";").replace("1.2", "1,2"),
        r"'1,2'",
    ),
    "volume no number": (
        "EURUSD.csv",
        HEADER + GOOD.replace(",5\n", ",many\n"),
        r"volume[\s\S]*line 2[\s\S]*'many'",
    ),
    "too many fields": (
        "EURUSD.csv",
        HEADER + GOOD + "\n" + NEXT.replace("\n", ",9,9\n"),
        r"too many fields[\s\S]*line 4",
    ),
    "cut line": (
        "EURUSD.csv",
        HEADER + GOOD + "2019-02-04 00:01,1.1,1.2",
        r"line 3[\s\S]*Low None",
    ),
    "prose": ("EURUSD.txt", "File Status Report\n", "not a file of bars"),
    "prose with commas": (
        "EURUSD.txt",
        "Dear all, hello\nthis is, as ever, no table, you see\n",
        "'Datetime' is missing",
    ),
    "binary": ("EURUSD.csv", b"\x89HDF\0\0,\0\0", "not a file of bars"),
    "cut bi5": (BI5, candles_bi5(some_bars(), DAY)[:-9], "truncated"),
    "negative record": (BI5, candles_bi5([(DAY, 0, 1.1, 1.0, 1.1, 5.0)], DAY), "record 1"),
    "empty bi5": (BI5, b"", "no bars of EURUSD"),
    "bi5 without date": ("EURUSD.bi5", candles_bi5(some_bars(), DAY), "--start"),
    "not parquet": ("EURUSD.parquet", b"PAR1 and no more", "not readable as Parquet"),
    "parquet of texts that are none": (
        "EURUSD.parquet",
        parquet_of_no_texts(),
        "not readable as Parquet",
    ),
    "parquet with a name that is none": (
        "EURUSD.parquet",
        parquet_of_texts().replace(b"Close", b"\x8close"),
        "not readable as Parquet",
    ),
    "parquet of dates": ("EURUSD.parquet", parquet_of_texts(), "must be numeric"),
    "two tables": (
        "EURUSD.zip",
        zipped({"a.csv": HEADER + GOOD, "b.csv": HEADER + GOOD}),
        "exactly one table",
    ),
    "no table": ("EURUSD.zip", zipped({"a.pdf": ""}), "exactly one table"),
    "a workbook": (
        "EURUSD.xlsx",
        zipped({"xl/workbook.xml": "", "xl/sheet1.xml": ""}),
        "save the sheet as CSV",
    ),
    "empty zip": ("EURUSD.zip", zipped({}), "exactly one table"),
    "bomb": ("EURUSD.zip", zipped({"a.csv": "0" * (packed.RATIO_FROM + 1)}), "too much"),
    "encrypted": ("EURUSD.zip", encrypted(zipped({"a.csv": HEADER + GOOD})), "encrypted"),
    "damaged zip": (
        "EURUSD.zip",
        damaged(zipped({"a.csv": HEADER + GOOD + NEXT})),
        "cannot be unpacked",
    ),
    "cut zip": ("EURUSD.zip", zipped({"a.csv": HEADER + GOOD})[:-30], "cannot be unpacked"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_file(case: str, tmp_path: Path) -> None:
    name, content, problem = CASES[case]
    path = tmp_path / "in" / name
    path.parent.mkdir()
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=problem) as caught:
        import_files([path], tmp_path / "out")
    assert name in str(caught.value)
    assert [left.name for left in tmp_path.iterdir()] == ["in"]


def test_a_bad_file_among_good_ones_stops_all(tmp_path: Path) -> None:
    good, bad = tmp_path / "EURUSD.csv", tmp_path / "GBPUSD.csv"
    good.write_text(HEADER + GOOD)
    bad.write_text(HEADER + GOOD + GOOD)
    with pytest.raises(DataError, match=r"GBPUSD\.csv, line 3"):
        import_files([good, bad], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.md").write_text("no bars")
    for paths, problem in (
        ([tmp_path / "none.csv"], "no such file"),
        ([tmp_path / "folder"], "nothing to import"),
    ):
        with pytest.raises(DataError, match=problem):
            import_files(paths, tmp_path / "out")


def outputs_that_cannot_be(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "file").write_text("in the way")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "manifest.json").write_text("[]")
    return {
        "not a folder": tmp_path / "file",
        "cannot write": tmp_path / "file" / "out",
        "not the manifest": foreign,
    }


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "EURUSD.csv"
    path.write_text(HEADER + GOOD)
    for problem, out in outputs_that_cannot_be(tmp_path).items():
        with pytest.raises(DataError, match=problem):
            import_files([path], out)
    assert sorted(left.name for left in tmp_path.iterdir()) == ["EURUSD.csv", "file", "foreign"]
    assert [left.name for left in (tmp_path / "foreign").iterdir()] == ["manifest.json"]


@pytest.mark.parametrize("existing", [False, True])
def test_a_failing_disk_leaves_the_folder_as_it_was(
    existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    for name in ("EURUSD", "GBPUSD", "AUDUSD"):
        (tmp_path / f"{name}.csv").write_text(HEADER + GOOD)
    if existing:
        import_files([tmp_path / "AUDUSD.csv"], out)
    before = sorted(path.name for path in tmp_path.rglob("*"))

    def disk_full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("vaiom.market.imports.write_json", disk_full)
    with pytest.raises(OSError, match="no space"):
        import_files([tmp_path / "EURUSD.csv", tmp_path / "GBPUSD.csv"], out)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    if existing:
        assert list(read_bars(out)) == ["AUDUSD"]


def test_zip_members_are_never_extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Callable[..., None]:
        raise AssertionError("extracted")

    monkeypatch.setattr(zipfile.ZipFile, "extract", refuse)
    monkeypatch.setattr(zipfile.ZipFile, "extractall", refuse)
    path = tmp_path / "in" / "EURUSD.zip"
    path.parent.mkdir()
    for name in ("deep/bars.txt", "../bars.csv", "/tmp/bars.csv", "C:\\bars.csv"):
        path.write_bytes(zipped({name: HEADER + GOOD}))
        entry = import_files([path], tmp_path / "out", replace=True)["symbols"]["EURUSD"]
        assert entry["sources"][0]["member"] == name
    assert sorted(left.name for left in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize(("above", "found"), [(19, True), (20, False)])
def test_a_header_is_looked_for_in_the_first_twenty_lines(
    tmp_path: Path, above: int, found: bool
) -> None:
    path = tmp_path / "EURUSD.csv"
    path.write_text("Acme, Inc.\n" * above + HEADER + GOOD)
    if found:
        assert import_files([path], tmp_path / "out")["symbols"]["EURUSD"]["rows"] == 1
    else:
        with pytest.raises(DataError, match="is missing"):
            import_files([path], tmp_path / "out")
