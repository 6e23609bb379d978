"""The service answers for portfolios of its live assets."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from serve_runs import SYMBOLS, TinyRun, config_of, in_process, live_assets, reading_others, served

from vaiom.codec import to_json
from vaiom.distribution.dependence import Dependence
from vaiom.files import write_json
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import Run


@pytest.fixture(scope="module")
def joined(tiny: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    folder = tmp_path_factory.mktemp("joined")
    shutil.copyfile(Run(tiny.run).best, Run(folder).best)
    matrix = np.array([[1.0, 0.4], [0.4, 1.0]])
    fit = Dependence(
        checkpoint_sha256=load_checkpoint(Run(folder).best).sha256,
        symbols=SYMBOLS,
        classes=("FX", "SPOT"),
        covariance=matrix,
        correlation=matrix,
        decay=0.9,
        shrinkage=0.1,
        degrees={"1": 8.0},
        references={},
        num_stamps=1,
    )
    write_json(Run(folder).dependence, to_json(fit))
    return replace(tiny, run=folder)


def test_a_portfolio_of_live_assets(joined: TinyRun, tiny: TinyRun, tmp_path: Path) -> None:
    positions = {"EURUSD": 1e6, "XAUUSD": -2e5}

    with served(config_of(joined, tmp_path / "state", bars=joined.bars)) as (
        client,
        _,
    ):
        first = client.post("/v1/portfolio", json={"positions": positions})
        assert first.status_code == 200, first.text
        found = first.json()
        drawn = client.post("/v1/portfolio", json={"positions": positions, "seed": 0})
        assert drawn.json() == found
        error = found["standard_errors"]["expected_shortfall"]
        assert error <= 0.005 * found["expected_shortfall"]
        parts = found["contributions"].values()
        assert sum(each["expected_shortfall"] for each in parts) == pytest.approx(
            found["expected_shortfall"]
        )
        for symbol in SYMBOLS:
            client.send(symbol, *joined.later[symbol][:1])
        after = client.post("/v1/portfolio", json={"positions": positions}).json()
        assert after["as_of"] > found["as_of"]
        what_if = client.post(
            "/v1/portfolio", json={"positions": positions, "given": {"XAUUSD": -0.02}}
        )
        assert list(what_if.json()["contributions"]) == ["EURUSD"]
        for body, status in (
            ({"positions": {"GBPUSD": 1.0}}, 404),
            ({"positions": {}}, 422),
            ({"positions": positions, "horizon": 9}, 422),
            ({"positions": positions, "level": 2}, 422),
            ({"positions": {"EURUSD": 1.0}, "given": {"EURUSD": 0.0}}, 422),
        ):
            assert client.post("/v1/portfolio", json=body).status_code == status, body
    with served(config_of(tiny, tmp_path / "other", bars=tiny.bars)) as (client, _):
        refused = client.post("/v1/portfolio", json={"positions": positions})
        assert refused.status_code == 422
        assert "vaiom dependence" in refused.json()["error"]["fix"]


def test_a_portfolios_risk_is_the_same_after_a_restart(joined: TinyRun, tmp_path: Path) -> None:
    """The stored bars decide it, whether they came as history, one by one, or both."""
    body = {"positions": {"EURUSD": 1e6, "XAUUSD": -2e5}}
    state = tmp_path / "state"

    async def ask(number: int) -> list[float]:
        found = []
        async with in_process(config_of(joined, state, bars=joined.bars, backfill=0)) as (
            client,
            _,
        ):
            for at in range(number + 1):
                answer = (await client.post("/v1/portfolio", json=body)).json()
                found.append(answer["value_at_risk"])
                for symbol in SYMBOLS if at < number else ():
                    pushed = {"bars": joined.later[symbol][at : at + 1]}
                    await client.post(f"/v1/assets/{symbol}/bars", json=pushed)
        return found

    *_, before = asyncio.run(ask(3))
    [after] = asyncio.run(ask(0))
    assert after == pytest.approx(before, rel=1e-6)


def test_one_position_is_judged_beside_all_assets_that_the_model_reads(
    joined: TinyRun, tmp_path: Path
) -> None:
    """As by `vaiom risk`: correlations depend on which assets are joined."""
    others = reading_others(joined, tmp_path, {})
    best = Run(others.parent).best
    others.rename(best)
    fitted = json.loads(Run(joined.run).dependence.read_text())
    fitted["checkpoint_sha256"] = load_checkpoint(best).sha256
    write_json(Run(best.parent).dependence, fitted)
    for number, (run, expected) in enumerate([(joined.run, ("EURUSD",)), (best, SYMBOLS)]):
        live = live_assets(joined, tmp_path / str(number), run=run, folder=joined.bars)
        assert live.joint(["EURUSD"], 1).symbols == expected
        live.store.close()
