"""Forecasts of several assets together: from bars, from a live stream, from the command line; what
is refused.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from forecast_runs import TinyRun

from vaiom.codec import to_json
from vaiom.distribution.dependence import Dependence
from vaiom.distribution.portfolio import read_positions
from vaiom.errors import ConfigError, DataError
from vaiom.files import write_json
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.joint_forecast import (
    dependence_after,
    fitted_dependence,
    join,
    score_last_rows,
)
from vaiom.market.folder import read_bars
from vaiom.run import Run

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
def bars(tiny: TinyRun) -> dict[str, pl.DataFrame]:
    return {symbol: frame.tail(ROWS) for symbol, frame in read_bars(tiny.bars).items()}


def test_marginals_are_those_of_predict(
    together: Forecaster, bars: dict[str, pl.DataFrame]
) -> None:
    joint, alone = together.joint(bars), together.predict(bars)
    assert joint.symbols == tuple(alone)
    for symbol, dist in alone.items():
        assert np.array_equal(joint.dists[symbol].probs, dist.probs)
        assert joint.prob_zero[symbol] == dist.prob_zero
    assert joint.as_of == alone["EURUSD"].as_of
    assert np.linalg.eigvalsh(joint.correlation)[0] > 0


def test_a_stream_gives_the_joint_distribution_of_all_its_bars(
    together: Forecaster, bars: dict[str, pl.DataFrame]
) -> None:
    online = together.online()
    online.extend_many({symbol: frame.head(ROWS - 4) for symbol, frame in bars.items()})
    online.joint()
    rows = [frame.tail(4).to_dicts() for frame in bars.values()]
    for stamp in zip(*rows, strict=True):
        online.push_many(dict(zip(bars, stamp, strict=True)), forecast=False)
    joint = online.joint(["XAUUSD", "EURUSD"])
    batch = together.joint({symbol: bars[symbol] for symbol in ("XAUUSD", "EURUSD")})
    assert joint.symbols == batch.symbols
    np.testing.assert_allclose(joint.correlation, batch.correlation, atol=1e-6)


def test_what_is_known_of_a_stamp_does_not_depend_on_later_bars(
    together: Forecaster, bars: dict[str, pl.DataFrame]
) -> None:
    cut = {symbol: frame.head(ROWS - 50) for symbol, frame in bars.items()}
    online = together.online()
    online.extend_many(cut)
    first = online.joint().correlation
    rising = pl.col("Open", "High", "Low", "Close") * pl.Series(np.linspace(1, 3, 50))
    later = {symbol: frame.tail(50).with_columns(rising) for symbol, frame in bars.items()}
    assert np.array_equal(together.joint(cut).correlation, first)
    online.extend_many(later)
    assert not np.array_equal(online.joint().correlation, first)


def test_little_in_common_is_said(together: Forecaster, bars: dict[str, pl.DataFrame]) -> None:
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
    together: Forecaster, bars: dict[str, pl.DataFrame], number: int, says: bool
) -> None:
    windows = together.windows(bars)
    rows = {
        each.symbol: score_last_rows(together, each.symbol, each.columns, 20) for each in windows
    }
    state = dependence_after(fitted_dependence(together), rows)
    dists = together.predict(bars)
    note = f"XAUUSD: {number} bars beside others: its correlation is mostly that of Train"
    assert (note in join(dists, replace(state, counts=np.array([500, number]))).notes) is says
    alone = join({"XAUUSD": dists["XAUUSD"]}, replace(state, counts=np.array([500, number])))
    assert note not in alone.notes


def test_a_horizon_without_a_dependence_of_its_own_takes_that_of_one_bar(
    together: Forecaster, bars: dict[str, pl.DataFrame]
) -> None:
    dists = {symbol: replace(dist, horizon=4) for symbol, dist in together.predict(bars).items()}
    state = dependence("").initial_state()
    joint = join(dists, state)
    assert joint.horizon == 4
    assert any("over 4 bars" in note for note in joint.notes)
    assert joint.degrees == 8.0
    own = join(dists, replace(state, fit=replace(state.fit, degrees={"1": 8.0, "4": None})))
    assert own.degrees is None
    assert not any("over 4 bars" in note for note in own.notes)


def test_what_cannot_be_joined_is_refused(
    together: Forecaster, bars: dict[str, pl.DataFrame], tiny: TinyRun
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
    together: Forecaster, bars: dict[str, pl.DataFrame], monkeypatch: pytest.MonkeyPatch
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
    ],
)
def test_a_line_that_is_no_position_is_named(tmp_path: Path, text: str, line: int) -> None:
    file = tmp_path / "positions.csv"
    file.write_text(text)
    with pytest.raises(DataError, match="not a position") as caught:
        read_positions(file)
    assert caught.value.where == f"{file}, line {line}"


def test_positions_are_read_with_or_without_a_header(tmp_path: Path) -> None:
    file = tmp_path / "positions.csv"
    for text in ("Symbol, Amount\n\nEURUSD, 1e6\n XAUUSD,-2\n", "EURUSD;1e6\nXAUUSD;-2\n"):
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


def test_the_command_line_says_the_risk_of_positions(
    tiny: TinyRun, tmp_path: Path, run: Command
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    Run(folder).best.write_bytes(Run(tiny.run).best.read_bytes())
    sha256 = Forecaster.load(folder).card.sha256
    positions, plot = tmp_path / "positions.csv", tmp_path / "profit.svg"
    positions.write_text("symbol,amount\nEURUSD,1000000\nXAUUSD,-200000\n")
    words = ("risk", folder, "--bars", tiny.bars, "--positions", positions, "--draws", 1000)
    code, _, err = run(*words)
    assert code == 2
    assert "vaiom dependence" in err
    write_json(Run(folder).dependence, to_json(dependence(sha256)))
    code, out, _ = run(*words, "--level", "0.95", "--json", "--plot", plot)
    found = json.loads(out)
    assert code == 0
    assert found["level"] == 0.95
    assert found["horizon"] == 1
    assert found["expected_shortfall"] > found["value_at_risk"] > 0
    parts = found["contributions"].values()
    assert sum(each["expected_shortfall"] for each in parts) == pytest.approx(
        found["expected_shortfall"]
    )
    assert plot.is_file()
    code, out, _ = run(*words, "--given", "XAUUSD=-0.02", "--json")
    assert json.loads(out)["given"]["XAUUSD"]["profit"] == pytest.approx(
        200_000 * (1 - np.exp(-0.02))
    )
    code, out, err = run(*words, "--level", "0.95")
    assert "Loss over the next bar after " in out
    rows = {row[0]: row[1:] for line in out.splitlines() if (row := line.split()) and len(row) == 4}
    figures = [found["value_at_risk"], found["expected_shortfall"]]
    assert rows["all"] == ["800,000.00", *(f"{figure:,.2f}" for figure in figures)]
    assert [row[0] for row in rows.values()][1:3] == ["1,000,000.00", "-200,000.00"]
    assert "profit" not in err
    code, out, err = run(*words, "--given", "XAUUSD=-0.02")
    assert "\nXAUUSD: profit 3,960.27 at the given return, not in the table\n" in err
    assert "XAUUSD" not in out
    _, before, _ = run(*words, "--json")
    positions.write_text("Symbol;Amount\nEURUSD;1000000\nXAUUSD;-200000\n", encoding="utf-8-sig")
    assert run(*words, "--json")[1] == before  # as spreadsheets write it
    for text, said in (
        ("EURUSD,nan\n", "not a position"),
        ("GBPUSD,1\n", "GBPUSD"),
        ("", "no positions"),
    ):
        positions.write_text(text)
        code, _, err = run(*words)
        assert code == 2
        assert said in err
    positions.write_text("EURUSD,1\n")
    assert run(*words, "--horizon", 7)[0] == 2
    assert run(*words, "--given", "XAUUSD")[0] == 2
    write_json(
        Run(folder).dependence, to_json(replace(dependence(sha256), checkpoint_sha256="other"))
    )
    assert "another checkpoint" in run(*words)[2]
