"""Every command does what it says: exit 0, the files it promises, one JSON object on stdout where
that is asked for.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from datetime import date, datetime
from functools import partial
from pathlib import Path

import polars as pl
import pytest
import typer
from command_line import Vaiom, require_refusal

import vaiom as package
from market import feed_server
from strategies import random_bars
from vaiom.cli.main import app
from vaiom.corpus.store import open_corpus
from vaiom.experiments import whole_job
from vaiom.experiments.registry import EXPERIMENTS, SHOWN
from vaiom.files import write_json
from vaiom.market.folder import BAR_COLUMNS, read_bars, write_symbol
from vaiom.simulation.market import MarketConfig

SYMBOLS = ["SIM01USD", "SIM02USD"]
FIRST_DAY = date(2019, 2, 4)
NAMED = "--train-end 2024-02-01 --validation 2024-03-01:2024-05-01 --test"


def commands(command: object, words: tuple[str, ...] = ()) -> Iterator[str]:
    """All commands that the program has, groups left out."""
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(words)
    else:
        for name, inner in below.items():
            yield from commands(inner, (*words, name))


COMMANDS = sorted(commands(typer.main.get_command(app)))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# The program itself


def test_help_says_the_defaults_of_the_market_and_of_the_splits(
    vaiom: Vaiom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    simulate, market = vaiom("data", "simulate", "--help").out, MarketConfig()
    for name in ("assets", "bars", "timeframe", "seed", "correlation"):
        assert re.search(rf"--{name} .*\[default: {getattr(market, name)}\]", simulate), name
    assert package.SplitConfig().to_options() in " ".join(
        vaiom("corpus", "build", "--help").out.split()
    )


@pytest.mark.parametrize("command", ["", "data", "corpus", *COMMANDS])
def test_help(vaiom: Vaiom, command: str) -> None:
    ran = vaiom(*command.split(), "--help")
    assert ran.code == 0
    assert ran.err == ""
    assert f"usage: vaiom {command}".rstrip() in ran.out.lower()
    assert "...}..." not in ran.out
    if command in COMMANDS:
        description = ran.out.lower().split("usage:")[1].splitlines()[2]
        assert description.strip()[:1].isalpha(), "a command says what it is for"


def test_version(vaiom: Vaiom) -> None:
    assert vaiom("--version").out == f"{package.__version__}\n"


def test_without_words_it_helps_and_a_bug_is_shown_plainly(
    vaiom: Vaiom, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([], ["data"], ["corpus"]):
        ran = vaiom(*words)
        assert "Usage:" in ran.out + ran.err
        assert "Error" not in ran.out + ran.err
    assert "completion" not in vaiom("--help").out

    def broken(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("vaiom.cli.train.to_json", broken)
    with pytest.raises(RuntimeError) as bug:
        vaiom("experiments", "demo")
    sys.excepthook(RuntimeError, bug.value, bug.value.__traceback__)
    assert capsys.readouterr().err.startswith("Traceback")


def test_an_experiment_is_shown_for_the_vocabulary_of_a_corpus(
    vaiom: Vaiom, corpus: Path, tmp_path: Path
) -> None:
    left = len(EXPERIMENTS) - len(SHOWN)
    assert f"{left} more, variants of these: vaiom experiments --all" in vaiom("experiments").err
    assert vaiom("experiments", "--all").err == ""
    assert "with the vocabulary of the paper's corpus" in vaiom("experiments", "demo").out
    damaged = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    [rows, *_] = damaged.rglob("*.npy")
    rows.write_bytes(rows.read_bytes()[:-1] + b"x")
    assert vaiom("corpus", "show", damaged).code == 2
    shown = vaiom(
        "experiments", "demo", "--corpus", damaged
    )  # of which the vocabulary alone is read
    assert f"with the vocabulary of {damaged}" in shown.out.replace("\n", "")


@pytest.mark.parametrize(
    "words", [["dat"], ["data", "chek"], ["data", "check"], ["corpus", "build", "x"], ["--nope"]]
)
def test_a_slip_of_the_fingers_is_exit_2(vaiom: Vaiom, words: list[str]) -> None:
    ran = vaiom(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert "Usage:" in ran.err


# Bars


def test_simulate(vaiom: Vaiom, tmp_path: Path) -> None:
    asked = ("data", "simulate", "--assets", 2, "--bars", 300, "--seed", 5)
    answer = vaiom(*asked, "--out", tmp_path / "bars", "--json").json()
    assert list(answer["symbols"]) == SYMBOLS
    assert names_in(tmp_path / "bars") == [
        *(f"{symbol}.parquet" for symbol in SYMBOLS),
        "manifest.json",
        "truth",
    ]
    bars = read_bars(tmp_path / "bars")["SIM01USD"]
    assert bars.columns == list(BAR_COLUMNS)
    assert len(bars) == 300
    shown = vaiom(*asked, "--out", tmp_path / "again")
    assert shown.code == 0
    assert "SIM02USD" in shown.out
    assert read_bars(tmp_path / "again")["SIM01USD"].equals(bars)


def test_import_resample_and_check(vaiom: Vaiom, tmp_path: Path) -> None:
    minutes = random_bars(3_000, start=datetime(2023, 1, 2)).with_columns(
        Datetime=pl.datetime_range(
            datetime(2023, 1, 2), interval="1m", end=datetime(2023, 1, 4, 1, 59), eager=True
        )
    )
    source = tmp_path / "eurusd.csv"
    minutes.write_csv(source)
    answer = vaiom(
        "data", "import", source, "--shift", "2h", "--out", tmp_path / "minutes", "--json"
    ).json()
    assert answer["symbols"]["EURUSD"]["rows"] == 3_000
    assert answer["symbols"]["EURUSD"]["first"] == "2023-01-02T02:00:00"
    assert answer["symbols"]["EURUSD"]["clock"] == {"shift": "2h", "utc": False}
    assert names_in(tmp_path / "minutes") == ["EURUSD.parquet", "manifest.json"]
    minutes.rename({"Close": "bid=last"}).write_csv(source)
    assert (
        vaiom(
            "data", "import", source, "--column", "Close=bid=last", "--out", tmp_path / "renamed"
        ).code
        == 0
    )
    assert read_bars(tmp_path / "renamed")["EURUSD"]["Close"].equals(minutes["Close"])

    answer = vaiom(
        "data", "resample", tmp_path / "minutes", "--to", "1h", "--out", tmp_path / "1h", "--json"
    ).json()
    assert (answer["timeframe"], answer["symbols"]["EURUSD"]["rows"]) == ("1h", 50)
    assert len(read_bars(tmp_path / "1h")["EURUSD"]) == 50
    assert (
        vaiom("data", "resample", tmp_path / "1h", "--to", "4H", "--out", tmp_path / "4h").code == 0
    )

    for folder, timeframe in (("minutes", "1min"), ("1h", "1h"), ("4h", "4h")):
        shown = vaiom("data", "check", tmp_path / folder)
        assert shown.code == 0
        assert timeframe in shown.out
        answer = vaiom("data", "check", tmp_path / folder, "--json").json()
        assert answer["assets"][0]["symbol"] == "EURUSD"


def test_import_says_what_it_changed(vaiom: Vaiom, tmp_path: Path) -> None:
    source = tmp_path / "eurusd.csv"
    bars = random_bars(40)
    pl.concat([bars[20:], bars[:20], bars[:3]]).with_columns(
        Low=pl.col("Low").replace(bars["Low"][7], -1.0)
    ).write_csv(source)
    shown = vaiom("data", "import", source, "--repair", "--out", tmp_path / "bars")
    assert shown.code == 0
    for change in ("rows reordered", "repeated stamps dropped", "unusable rows dropped"):
        assert change in shown.out


def test_import_says_which_files_of_a_folder_it_passed_over(vaiom: Vaiom, tmp_path: Path) -> None:
    folder = tmp_path / "prices"
    folder.mkdir()
    random_bars(40).write_csv(folder / "EURUSD.csv")
    random_bars(40).with_columns(pl.col("Datetime").dt.to_string("iso:strict")).write_json(
        folder / "GBPUSD.json"
    )
    (folder / ".hidden").write_text("of a file manager")
    said = vaiom("data", "import", folder, "--out", tmp_path / "some").err
    assert (
        "note: 1 files of other kinds were passed over: GBPUSD.json; name those that hold bars"
        in said
    )
    said = vaiom("data", "import", folder, folder / "GBPUSD.json", "--out", tmp_path / "all").err
    assert "passed over" not in said
    assert [*read_bars(tmp_path / "all")] == ["EURUSD", "GBPUSD"]


def test_check_reports_what_it_finds(vaiom: Vaiom, tmp_path: Path, market: Path) -> None:
    bars = read_bars(market)["SIM01USD"]
    stamps = bars["Datetime"][900, 901]
    wrong = bars.with_columns(
        High=pl.when(pl.col("Datetime").is_in(stamps.implode())).then(0.1).otherwise("High")
    )
    write_symbol(tmp_path, "EURUSD", wrong)
    answer = vaiom("data", "check", tmp_path, "--json").json()
    [found] = [finding for finding in answer["findings"] if finding["kind"] == "ohlc_sense"]
    assert (found["symbol"], found["count"], len(found["examples"])) == ("EURUSD", 2, 2)
    assert {row["split"] for row in answer["splits"]} >= {
        "train",
        "validation",
        "test-h1",
        "test-h2",
    }
    shown = vaiom("data", "check", tmp_path)
    assert "ohlc_sense" in shown.out
    assert [each in shown.out for each in found["examples"]] == [True, False]  # the first of them


def test_an_asset_with_few_train_events_is_named(vaiom: Vaiom, tmp_path: Path) -> None:
    write_symbol(tmp_path / "bars", "EURUSD", random_bars(2_600, start=datetime(2023, 10, 1)))
    write_symbol(tmp_path / "bars", "GBPUSD", random_bars(150, start=datetime(2023, 12, 26)))
    write_symbol(tmp_path / "bars", "USDCHF", random_bars(300, start=datetime(2024, 1, 1)))
    answer = vaiom("data", "check", tmp_path / "bars", "--json").json()
    [found, none] = [each for each in answer["findings"] if each["kind"] == "few_train_events"]
    assert (found["symbol"], none["symbol"], none["count"]) == ("GBPUSD", "USDCHF", 0)
    assert 50 < found["count"] < 150
    later = "--validation 2024-01-01:2024-01-05 --test 2024-01-05:2024-01-10"
    train = ("--train-end", "2024-01-01")
    built = vaiom(
        "corpus", "build", tmp_path / "bars", "--out", tmp_path / "corpus", *later.split(), *train
    )
    assert f"GBPUSD has {found['count']} Train events" in built.err
    assert "EURUSD has" not in built.err


@pytest.mark.parametrize("timeframe", ["4h", "1d"])
def test_check_takes_bars_for_what_they_are(
    vaiom: Vaiom, market: Path, tmp_path: Path, timeframe: str
) -> None:
    assert (
        vaiom("data", "resample", market, "--to", timeframe, "--out", tmp_path / "bars").code == 0
    )
    answer = vaiom("data", "check", tmp_path / "bars", "--json").json()
    assert "corpus_problem" not in answer
    assert answer["splits"]


def test_check_of_bars_too_short_for_a_corpus(vaiom: Vaiom, tmp_path: Path) -> None:
    write_symbol(tmp_path, "EURUSD", random_bars(5))
    assert (
        "Train holds no usable event"
        in vaiom("data", "check", tmp_path, "--json").json()["corpus_problem"]
    )
    shown = vaiom("data", "check", tmp_path)
    assert shown.code == 0
    assert "cannot become a corpus" in shown.err


def test_download(vaiom: Vaiom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with feed_server.running() as server:
        server.files = feed_server.made_up_feed("EURUSD", FIRST_DAY, 2)
        days = ["data", "download", "EURUSD", "--from", "2019-02-04", "--to", "2019-02-06", "--out"]
        asked = (*days, tmp_path / "bars")
        first = vaiom(*asked, "--base-url", server.url)
        assert first.code == 0, first.err
        assert "EURUSD" in first.out
        assert "flat dropped" in first.out
        assert "downloading: 2/2" in first.err
        answer = vaiom(*asked, "--base-url", server.url, "--json").json()
    assert (answer["days_asked_for"], answer["days_already_there"]) == (0, 2)
    assert answer["symbols"]["EURUSD"]["first"] == "2019-02-04T00:01:00"
    assert names_in(tmp_path / "bars") == ["EURUSD.parquet", "manifest.json", "raw"]
    assert len(read_bars(tmp_path / "bars")["EURUSD"]) == 64


# Corpora


def test_build_and_show(vaiom: Vaiom, market: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.toml").write_text('SIM02USD = "spot"\n')
    (tmp_path / "classes.json").write_text('{"SIM02USD": "spot"}')
    words = ("corpus", "build", market, "--classes", tmp_path / "classes.toml", "--json")
    built = vaiom(*words, "--out", tmp_path / "c")
    answer = built.json()
    assert vaiom(*words, "--out", tmp_path / "elsewhere", "--workers", 2).json() == answer
    steam = vaiom(*words, "--out", tmp_path / "d", "--engine", "steam")
    require_refusal(steam, "local, ray", "steam")
    other = ("--classes", tmp_path / "classes.json")
    shown = vaiom("corpus", "build", market, *other, "--out", tmp_path / "e")
    assert shown.code == 0, shown.err
    assert "insufficient" not in shown.out  # data quality is another command's
    classes = {symbol: series["class"] for symbol, series in answer["series"].items()}
    assert classes == {"SIM01USD": "FX", "SIM02USD": "SPOT"}
    assert "building: 2/2" in built.err
    assert {"manifest.json", "tokenizer.json"} < set(names_in(tmp_path / "c"))
    opened = open_corpus(tmp_path / "c")
    assert answer["sha256"] == opened.sha256
    assert answer["events"]["validation"] == len(opened.endpoints("validation")) > 0
    assert vaiom("corpus", "show", tmp_path / "c", "--json").json() == answer
    shown = vaiom("corpus", "show", tmp_path / "c")
    num_train = f"{answer['events']['train']:,}"
    for fact in ("SIM02USD", num_train, answer["tokenizer_sha256"], "insufficient"):
        assert fact in shown.out


@pytest.mark.parametrize(
    ("options", "validation", "seal", "tests"),
    [
        ("--train-end 2024-03-01", "2024-09-01", "2026-03-01", 2),
        (f"{NAMED} 2024-05-01:2024-06-01", "2024-03-01", "2024-06-01", 1),
        (f"{NAMED} 2024-05-01:2024-06-01,2024-06-01:2024-07-01", "2024-03-01", "2024-07-01", 2),
    ],
)
def test_boundaries_move_together_or_one_by_one(
    vaiom: Vaiom,
    market: Path,
    tmp_path: Path,
    options: str,
    validation: str,
    seal: str,
    tests: int,
) -> None:
    words = ("corpus", "build", market, "--out", tmp_path / "corpus", "--json")
    built = vaiom(*words, *options.split()).json()
    assert built["splits"]["validation"][0] == f"{validation}T00:00:00"
    assert built["splits"]["seal"] == f"{seal}T00:00:00"
    names = [f"test-h{number + 1}" for number in range(tests)]
    assert list(built["events"]) == ["train", "buffer", "validation", *names, "sealed"]


def test_a_build_with_an_empty_validation_proposes_boundaries_that_work(
    vaiom: Vaiom, tmp_path: Path
) -> None:
    write_symbol(tmp_path / "bars", "EURUSD", random_bars(2_500))
    asked = ("corpus", "build", tmp_path / "bars", "--out", tmp_path / "corpus", "--json")
    ran = vaiom(*asked)
    assert ran.code == 2
    assert "no bar lies in Validation" in ran.err
    proposed = ran.err.split("try:")[1].split()
    assert vaiom(*asked, *proposed).json()["events"]["validation"] > 0


def test_overwriting_is_asked_for(vaiom: Vaiom, market: Path, corpus: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    asked = ("corpus", "build", market, "--out", again, "--train-end", "2024-03-01")
    assert vaiom(*asked).code == 2
    assert open_corpus(again).sha256 == open_corpus(corpus).sha256
    assert vaiom(*asked, "--overwrite").code == 0
    assert open_corpus(again).sha256 != open_corpus(corpus).sha256
    assert names_in(tmp_path) == ["corpus"]


def test_append(vaiom: Vaiom, market: Path, corpus: Path, tmp_path: Path) -> None:
    for symbol, frame in read_bars(market).items():
        write_symbol(
            tmp_path / "early", symbol, frame.filter(pl.col("Datetime") < datetime(2025, 1, 1))
        )
    assert vaiom("corpus", "build", tmp_path / "early", "--out", tmp_path / "grown").code == 0
    missing = len(open_corpus(corpus)) - len(open_corpus(tmp_path / "grown"))
    ran = vaiom("corpus", "append", tmp_path / "grown", market, "--json")
    assert ran.json()["sha256"] == open_corpus(corpus).sha256
    assert ran.err.splitlines()[-1] == f"{missing:,} rows added"
    assert (
        vaiom("corpus", "append", tmp_path / "grown", market).err.splitlines()[-1] == "0 rows added"
    )


def test_pack_and_unpack_through_the_command_line(
    vaiom: Vaiom, corpus: Path, tmp_path: Path
) -> None:
    file = tmp_path / "corpus.zip"
    answer = vaiom("corpus", "pack", corpus, file, "--json").json()
    assert answer == {"file": str(file), "bytes": file.stat().st_size}
    assert str(file) in vaiom("corpus", "pack", corpus, file).out
    there = vaiom("corpus", "unpack", file, tmp_path / "there", "--json").json()
    assert there["sha256"] == open_corpus(corpus).sha256
    assert vaiom("corpus", "unpack", file, tmp_path / "there").code == 2
    assert vaiom("corpus", "unpack", file, tmp_path / "there", "--overwrite").code == 0
    assert names_in(tmp_path) == ["corpus.zip", "there"]


# The rest


def test_bench(vaiom: Vaiom, market: Path) -> None:
    [result] = vaiom("bench", "events", "--bars", market, "--json").json()["benchmarks"]
    assert result["name"] == "events"
    assert result["ratio"] > 0
    shown = vaiom("bench", "events", "--bars", market)
    assert shown.code == 0
    assert result["equal"] in shown.out


@pytest.mark.parametrize("command", ["bench", "reproduce"])
def test_commands_of_a_checkout_say_so_where_there_is_none(
    vaiom: Vaiom, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vaiom.cli.main.__file__", str(tmp_path / "site-packages" / "vaiom" / "cli" / "x.py")
    )
    checkout = Path.cwd()
    monkeypatch.chdir(tmp_path)
    require_refusal(vaiom(command, "events"), f"`vaiom {command}` needs a checkout", "git clone")
    monkeypatch.chdir(checkout)
    assert "usage:" in vaiom(command, "--help").out
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert "usage:" in vaiom(command, "--help").out  # the checkout that the program comes from


def test_a_checkout_is_where_its_programs_come_from(
    vaiom: Vaiom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, text in (
        *(("src/vaiom/__init__.py", ""), ("benchmarks/__init__.py", "")),
        ("benchmarks/__main__.py", "def main(words, program):\n    print(program, *words)\n"),
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    monkeypatch.setattr(
        "vaiom.cli.main.__file__", str(tmp_path / "site-packages" / "vaiom" / "cli" / "x.py")
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    for _ in range(2):
        assert vaiom("bench", "speed", "--fast").out == "vaiom bench speed --fast\n"
    assert sys.path.count(str(tmp_path)) == 1
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def test_demo(vaiom: Vaiom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole job, on a market and with a training of the same kind that are small enough for a
    test.
    """
    market = partial(MarketConfig, assets=2, bars=14_000)
    monkeypatch.setattr("vaiom.simulation.market.MarketConfig", market)
    small = {"num_layers": 1, "num_heads": 1, "width": 16, "context": 4}
    demo = EXPERIMENTS["demo"].with_changes(**small, steps=2, validate_every=2)
    monkeypatch.setitem(EXPERIMENTS, "demo", demo)
    few = partial(whole_job.whole_job, baselines=("frequency", "ewma_t", "lightgbm"))
    monkeypatch.setattr(whole_job, "whole_job", few)
    out = tmp_path / "demo"
    earlier = (("run", "config.toml"), ("baselines", "fits"), ("corpus", "manifest.json"))
    for part, file in earlier:
        (out / part).mkdir(parents=True)
        (out / part / file).touch()
        (out / part / "old").touch()
    write_json(out / "bars" / "manifest.json", {"symbols": {}})
    ran = vaiom("demo", "--out", out, "--device", "cpu")
    assert ran.code == 0, ran.err
    assert not [*out.rglob("old")]
    assert len(open_corpus(out / "corpus").endpoints("validation")) > 0
    for words in ("the model needs", "frequency", "markov", "oracle"):
        assert words in ran.out
    rows = [line.split() for line in ran.out.splitlines()]
    names = ("frequency", "oracle", "model")
    bits = {row[0]: float(row[1]) for row in rows if len(row) == 3 and row[0] in names}
    whole_way = bits["frequency"] - bits["oracle"]
    [closed] = re.findall(r"closed (-?\d+)% of the way", ran.err)
    share = 100 * (bits["frequency"] - bits["model"]) / whole_way
    assert int(closed) == pytest.approx(share, abs=1)
    end = ran.out + ran.err[ran.err.index("\nThe model closed") :]
    lines = end.replace(str(tmp_path), "runs").splitlines()
    assert sum(1 + len(line) // 80 for line in lines) <= 25
    run, bars = out / "run", out / "bars"
    assert (run / "report.html").is_file()
    # What it says comes next does.
    assert f"vaiom serve {run} --bars {bars}" in ran.err
    assert "SIM01USD" in vaiom("predict", run, "--bars", bars).out
    assert "cost of training" in vaiom("card", run).out


def test_names_are_printed_as_they_are(vaiom: Vaiom, tmp_path: Path) -> None:
    folder = tmp_path / "x[bold]:smile:"
    assert (
        str(folder) in vaiom("data", "simulate", "--assets", 1, "--bars", 50, "--out", folder).out
    )
    assert str(folder) in vaiom("bench", "events", "--bars", folder).out
