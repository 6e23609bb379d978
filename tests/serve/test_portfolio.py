"""The service answers for portfolios of its live assets."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from serve_runs import SYMBOLS, TinyRun, config_of, in_process, reading_others

from vaiom.codec import to_json
from vaiom.distribution.dependence import Dependence
from vaiom.files import write_json
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import Run
from vaiom.serve.app import Service


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

    async def ask() -> None:
        async with in_process(config_of(joined, tmp_path / "state", bars=joined.bars)) as (
            client,
            _,
        ):
            first = await client.post("/v1/portfolio", json={"positions": positions})
            assert first.status_code == 200, first.text
            found = first.json()
            drawn = await client.post("/v1/portfolio", json={"positions": positions, "seed": 0})
            assert drawn.json() == found
            parts = found["contributions"].values()
            assert sum(each["expected_shortfall"] for each in parts) == pytest.approx(
                found["expected_shortfall"]
            )
            for symbol in SYMBOLS:
                await client.post(
                    f"/v1/assets/{symbol}/bars", json={"bars": joined.later[symbol][:1]}
                )
            after = (await client.post("/v1/portfolio", json={"positions": positions})).json()
            assert after["as_of"] > found["as_of"]
            what_if = await client.post(
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
                assert (await client.post("/v1/portfolio", json=body)).status_code == status, body
        async with in_process(config_of(tiny, tmp_path / "other", bars=tiny.bars)) as (client, _):
            refused = await client.post("/v1/portfolio", json={"positions": positions})
            assert refused.status_code == 422
            assert "vaiom dependence" in refused.json()["error"]["fix"]

    asyncio.run(ask())


def test_one_position_is_judged_beside_all_assets_that_the_model_reads(
    joined: TinyRun, tmp_path: Path
) -> None:
    """As by `vaiom risk`: correlations depend on which assets are joined."""
    fit = Dependence.read(Run(joined.run).dependence, load_checkpoint(Run(joined.run).best).sha256)
    for run, expected in (
        (joined.run, ("EURUSD",)),
        (reading_others(joined, tmp_path, {}), SYMBOLS),
    ):
        service = Service(
            config_of(joined, tmp_path / f"live-{run.stem}", run=run, bars=joined.bars, backfill=0)
        )
        service.forecaster.dependence = fit
        assert service.live.joint(["EURUSD"], 1).symbols == expected
        service.store.close()
