"""Forecasts of several assets together: from bars, from a live stream, from the command line; what
is refused.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from forecast_runs import TinyRun

from vaiom.codec import to_json
from vaiom.distribution.dependence import Dependence
from vaiom.distribution.positions import read_positions
from vaiom.errors import ConfigError, DataError
from vaiom.files import write_json
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.joint_forecast import join
from vaiom.market.folder import read_bars
from vaiom.run import Run

Frames = dict[str, pl.DataFrame]
Command = Callable[..., tuple[int, str, str]]
ROWS = 300


def dependence(sha256: str) -> Dependence:
    matrix = np.array([[0.5, 0.3], [0.3, 2.0]])
    return Dependence(
        checkpoint_sha256=sha256,
        symbols=("EURUSD", "XAUUSD"),
        classes=("FX", "SPOT"),
        covariance=matrix,
        correlation=np.array([[1.0, 0.3], [0.3, 1.0]]),
        decay=0.9,
        shrinkage=0.1,
        degrees={"1": 8.0},
        references={},
        num_stamps=1,
    )


@pytest.fixture(scope="module")
def together(tiny: TinyRun) -> Forecaster:
    forecaster = Forecaster.load(tiny.run)
    forecaster.dependence = dependence(forecaster.card.sha256)
    return forecaster


@pytest.fixture(scope="module")
def bars(tiny: TinyRun) -> Frames:
    return {symbol: frame.tail(ROWS) for symbol, frame in read_bars(tiny.bars).items()}


def test_marginals_are_those_of_predict(together: Forecaster, bars: Frames) -> None:
    joint, alone = together.joint(bars), together.predict(bars)
    assert joint.symbols == tuple(alone)
    for symbol, dist in alone.items():
        np.testing.assert_array_equal(joint.dists[symbol].probs, dist.probs)
        assert joint.prob_zero[symbol] == dist.prob_zero
    assert joint.as_of == alone["EURUSD"].as_of
    assert np.linalg.eigvalsh(joint.correlation)[0] > 0


def test_a_stream_gives_the_joint_distribution_of_all_its_bars(
    together: Forecaster, bars: Frames
) -> None:
    online = together.online()
    online.extend_many({symbol: frame.head(ROWS - 4) for symbol, frame in bars.items()})
    before = online.joint().correlation
    for number in range(ROWS - 4, ROWS):
        stamp = {symbol: frame.row(number, named=True) for symbol, frame in bars.items()}
        online.push_many(stamp, forecast=False)
    symbols = ("XAUUSD", "EURUSD")
    joint = online.joint(symbols)
    batch = together.joint({symbol: bars[symbol] for symbol in symbols})
    assert joint.symbols == batch.symbols == symbols
    np.testing.assert_allclose(joint.correlation, batch.correlation, atol=1e-6)
    assert not np.array_equal(joint.correlation, before)


def test_little_in_common_is_said(together: Forecaster, bars: Frames) -> None:
    short = {"EURUSD": bars["EURUSD"].head(ROWS - 30), "XAUUSD": bars["XAUUSD"].tail(57)}
    joint = together.joint(short)
    assert any(note.startswith("EURUSD: its last bar is of") for note in joint.notes)
    assert any("bars beside others" in note for note in joint.notes)
    assert together.joint({**bars, "NEW": bars["EURUSD"]}).notes
    same = together.joint({"EURUSD": bars["EURUSD"], "TWIN": bars["EURUSD"]})
    assert 0.5 < same.correlation[0, 1] < 1
    assert np.linalg.eigvalsh(same.correlation)[0] > 0


@pytest.mark.parametrize(("number", "says"), [(0, True), (99, True), (100, False)])
def test_few_common_bars_are_noted(
    together: Forecaster, bars: Frames, number: int, says: bool
) -> None:
    state = replace(dependence("").initial_state(), counts=np.array([500, number]))
    dists = together.predict(bars)
    note = f"XAUUSD: {number} bars beside others: its correlation is mostly that of Train"
    assert (note in join(dists, state).notes) is says
    assert note not in join({"XAUUSD": dists["XAUUSD"]}, state).notes


def test_a_horizon_without_a_dependence_of_its_own_takes_that_of_one_bar(
    together: Forecaster, bars: Frames
) -> None:
    dists = {symbol: replace(dist, horizon=4) for symbol, dist in together.predict(bars).items()}
    for degrees, wanted, says in (({"1": 8.0}, 8.0, True), ({"1": 8.0, "4": None}, None, False)):
        fit = replace(dependence(""), degrees=degrees)
        joint = join(dists, fit.initial_state())
        assert (joint.horizon, joint.degrees) == (4, wanted)
        assert any("over 4 bars" in note for note in joint.notes) is says


def test_what_cannot_be_joined_is_refused(
    together: Forecaster, bars: Frames, tiny: TinyRun
) -> None:
    apart = bars["XAUUSD"].with_columns(pl.col("Datetime") + timedelta(minutes=30))
    with pytest.raises(DataError, match="no bar in common"):
        together.joint({**bars, "XAUUSD": apart})
    with pytest.raises(ConfigError, match="horizon"):
        together.joint(bars, horizon=5)
    with pytest.raises(ConfigError, match="never fitted"):
        Forecaster.load(tiny.run).joint(bars)
    with pytest.raises(ConfigError, match="whose bars"):
        together.joint(bars["EURUSD"])  # type: ignore[arg-type]
    for extended in ({}, {symbol: frame.head(3) for symbol, frame in bars.items()}, bars):
        online = together.online()
        online.extend_many(extended)
        with pytest.raises(DataError, match="too few bars"):
            online.joint([] if extended is bars else None)


def test_a_stream_without_scipy_says_how_to_get_it(
    together: Forecaster, bars: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    online, find = together.online(), importlib.util.find_spec
    online.extend_many(bars)
    monkeypatch.setattr(
        "vaiom.errors.find_spec", lambda library: None if library == "scipy" else find(library)
    )
    for ask in (online.joint, lambda: together.joint(bars)):
        with pytest.raises(ConfigError, match="this needs scipy") as refused:
            ask()
        assert refused.value.fix == "pip install 'vaiom[risk]'"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("EURUSD,1\nXAUUSD,inf\n", 2),
        ("EURUSD,1\nEURUSD,2\n", 2),
        ("EURUSD,1,USD\n", 1),
        ("EURUSD\n", 1),
        ("EURUSD,much\n", 1),
        ("EURUSD,1\nsymbol,amount\n", 2),
        ("EURUSD,100,1.1\n", 1),
        ("symbol,quantity,price\nEURUSD,100\n", 2),
        ("symbol,quantity,side\nEURUSD,100,short\n", 1),
        ("EURUSD,1\neurusd,2\n", 2),
    ],
)
def test_a_line_that_is_no_position_is_named(tmp_path: Path, text: str, line: int) -> None:
    file = tmp_path / "positions.csv"
    file.write_text(text)
    with pytest.raises(DataError, match="not a position") as caught:
        read_positions(file)
    assert caught.value.where == f"{file}, line {line}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read"),
        ("[1]", "cannot be read"),
        ("[]", "no positions"),
        ('{"EURUSD": 1, "EURUSD": 2}', "there twice"),
        ('{"EURUSD": true}', "position 1"),
        ('{"EURUSD": 1, "eurusd": 2}', "position 2"),
        ('[{"symbol": "EURUSD", "amount": 1}, {"symbol": "XAUUSD"}]', "before it"),
        ('[{"symbol": "EURUSD", "amount": 1}, {"symbol": "A", "amount": "x"}]', "position 2"),
        ('{"EURUSD": 1' + "0" * 400 + "}", "position 1"),
    ],
)
def test_json_that_is_no_positions_says_what_is(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "positions.json"
    file.write_text(text)
    with pytest.raises(DataError, match=says):
        read_positions(file)


def test_positions_are_read_with_or_without_a_header(tmp_path: Path) -> None:
    file = tmp_path / "positions.csv"
    for text in (
        "Symbol, Amount\n\nEURUSD, 1e6\n XAUUSD,-2\n",
        "EURUSD;1e6\nXAUUSD;-2\n",
        "amount\tsymbol\n1e6\teur/usd\n-2\tXAUUSD=X\n",
        "symbol;quantity;price\nEURUSD;800000;1.25\nXAUUSD;-0.001;2000\n",
        '{"EURUSD": 1e6, "XAUUSD": -2}',
        '[{"symbol": "EURUSD", "amount": 1e6}, {"amount": -2, "symbol": "XAUUSD"}]',
        '[{"symbol": "EURUSD", "quantity": 1e6, "price": 1}, '
        '{"symbol": "XAUUSD", "quantity": "-1", "price": 2}]',
    ):
        file.write_text(text)
        assert read_positions(file) == {"EURUSD": 1e6, "XAUUSD": -2.0}
    for other in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError, match="cannot be read"):
            read_positions(other)


def test_a_dependence_belongs_to_the_selected_model_alone(tiny: TinyRun, tmp_path: Path) -> None:
    best = Run(tmp_path).best
    best.write_bytes(Run(tiny.run).best.read_bytes())
    other = best.rename(best.with_name("other.safetensors"))
    best.write_bytes(other.read_bytes())
    assert Forecaster.load(best).dependence is None
    write_json(Run(tmp_path).dependence, to_json(dependence(Forecaster.load(best).card.sha256)))
    assert Forecaster.load(best).dependence is not None
    assert Forecaster.load(other).dependence is None


@pytest.fixture
def risk(tiny: TinyRun, tmp_path: Path, run: Command) -> Command:
    """The command with a run of its own, whose dependence is fitted, and with two positions."""
    folder = Run(tmp_path / "run")
    folder.path.mkdir()
    folder.best.write_bytes(Run(tiny.run).best.read_bytes())
    sha256 = Forecaster.load(folder.path).card.sha256
    write_json(folder.dependence, to_json(dependence(sha256)))
    positions = tmp_path / "positions.csv"
    positions.write_text("symbol,amount\nEURUSD,1000000\nXAUUSD,-200000\n")
    words = ("risk", folder.path, "--bars", tiny.bars, "--positions", positions, "--draws", 1000)
    return partial(run, *words)


def test_the_command_line_says_the_risk_of_positions(risk: Command, tmp_path: Path) -> None:
    plot = tmp_path / "profit.svg"
    code, out, _ = risk("--level", "0.95", "--json", "--plot", plot)
    found = json.loads(out)
    assert (code, found["level"], found["horizon"]) == (0, 0.95, 1)
    assert found["expected_shortfall"] > found["value_at_risk"] > 0
    parts = [each["expected_shortfall"] for each in found["contributions"].values()]
    assert sum(parts) == pytest.approx(found["expected_shortfall"])
    assert plot.is_file()
    code, out, err = risk("--level", "0.95")
    assert "Loss over the next bar after " in out
    table = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    figures = [f"{found[name]:,.2f}" for name in ("value_at_risk", "expected_shortfall")]
    assert table["all"] == ["800,000.00", *figures]
    assert (table["EURUSD"][0], table["XAUUSD"][0]) == ("1,000,000.00", "-200,000.00")
    assert "profit" not in err


def test_no_loss_is_printed_without_a_sign(risk: Command, tmp_path: Path) -> None:
    (tmp_path / "positions.csv").write_text("EURUSD,0\nXAUUSD,-1e-6\n")
    code, out, err = risk()
    assert code == 0
    assert "-0.00" not in out + err


def test_the_risk_after_a_given_return(risk: Command) -> None:
    _, out, _ = risk("--given", "XAUUSD=-0.02", "--json")
    profit = json.loads(out)["given"]["XAUUSD"]["profit"]
    assert profit == pytest.approx(200_000 * (1 - np.exp(-0.02)))
    _, out, err = risk("--given", "XAUUSD=-0.02")
    assert f"\nXAUUSD: profit {profit:,.2f} at the given return, not in the table\n" in err
    assert "XAUUSD" not in out


def test_positions_may_be_as_spreadsheets_write_them(risk: Command, tmp_path: Path) -> None:
    _, before, _ = risk("--json")
    text = "Symbol;Amount\nEURUSD;1000000\nXAUUSD;-200000\n"
    (tmp_path / "positions.csv").write_text(text, encoding="utf-8-sig")
    assert risk("--json")[1] == before


def test_a_risk_finds_the_files_that_forecast_reads(
    risk: Command, tiny: TinyRun, tmp_path: Path
) -> None:
    _, before, _ = risk("--given", "XAUUSD=-0.02", "--json")
    folder = tmp_path / "downloads"
    folder.mkdir()
    for symbol in ("EURUSD", "XAUUSD"):
        shutil.copy(tiny.bars / f"{symbol}.parquet", folder / f"{symbol}_1h.parquet")
    (tmp_path / "positions.csv").write_text("eurusd,1000000\nXAUUSD=X,-200000\n")
    _, after, err = risk("--bars", folder, "--given", "xau/usd=-0.02", "--json")
    assert after == before, err


@pytest.mark.parametrize(
    ("positions", "words", "says"),
    [
        ("EURUSD,nan\n", (), "not a position"),
        ("GBPUSD,1\n", (), "GBPUSD"),
        ("", (), "no positions"),
        ("EURUSD,1\n", ("--horizon", 7), "horizon"),
        ("EURUSD,1\n", ("--given", "XAUUSD"), "XAUUSD"),
    ],
)
def test_risks_that_cannot_be_said_are_refused(
    risk: Command, tmp_path: Path, positions: str, words: tuple[object, ...], says: str
) -> None:
    (tmp_path / "positions.csv").write_text(positions)
    code, _, err = risk(*words)
    assert code == 2
    assert says in err


def test_a_risk_needs_a_dependence_of_this_model(risk: Command, tmp_path: Path) -> None:
    file = Run(tmp_path / "run").dependence
    write_json(file, to_json(dependence("other")))
    assert "another checkpoint" in risk()[2]
    file.unlink()
    code, _, err = risk()
    assert code == 2
    assert "vaiom dependence" in err
