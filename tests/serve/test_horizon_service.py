"""The service gives the library's forecasts of any horizon that the run was taught."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from serve_runs import TinyRun, as_json, config_of, served

from vaiom.corpus.store import open_corpus
from vaiom.experiments.refit import fit_horizons
from vaiom.forecast.forecaster import Forecaster


def test_horizons_over_http(tiny: TinyRun, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny.run, run)
    fit_horizons(run, open_corpus(tiny.bars.parent / "corpus"), (4,), device="cpu")
    frames = tiny.history
    ours = {
        symbol: Forecaster.load(run).predict(frame, symbol, horizon=4)
        for symbol, frame in frames.items()
    }

    with served(config_of(replace(tiny, run=run), tmp_path / "state", bars=tiny.bars)) as (
        client,
        _,
    ):
        body = {"symbol": "EURUSD", "bars": as_json(frames["EURUSD"])}
        posted = client.post("/v1/forecast?horizon=4", json=body).json()
        live = client.read("/v1/assets/EURUSD/forecast?horizon=4")
        every = client.read("/v1/forecast?horizon=4")["forecasts"]
        assert [each["symbol"] for each in every] == sorted(frames)
        for answer in (posted, live, *every):
            expected = ours[answer["symbol"]]
            np.testing.assert_allclose(answer["probs"], expected.probs, atol=1e-5)
            assert (answer["horizon"], answer["sigma"]) == (4, expected.sigma)
        refused = client.get("/v1/forecast?horizon=5")
        assert refused.status_code == 422
        assert "no such horizon" in refused.text
        few = body | {"bars": body["bars"][:1]}  # it is refused before the bars are looked at
        refused = client.post("/v1/forecast?horizon=5", json=few)
        assert refused.status_code == 422
        assert refused.json()["error"]["problem"] == "the model has no such horizon"
        assert client.read("/v1/forecast")["forecasts"][0]["horizon"] == 1
