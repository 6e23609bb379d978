"""The plain server that `serve` is compared with: one request, one pass over all positions, nothing
shared.

Enters: `MODEL --port P --threads N`. Leaves: forecasts of posted bars over HTTP, as one would write
it first.
"""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import Any

import fastapi
import polars as pl
import torch
import uvicorn

from vaiom.features.inputs import inputs_of
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.torch_backend import TorchBackend
from vaiom.model.heads import return_log_probs


def plain_forecast(forecaster: Forecaster, request: dict[str, Any]) -> dict[str, Any]:
    """A forecast from all stored bars, computed anew."""
    rows = [{**bar, "datetime": datetime.fromisoformat(bar["datetime"])} for bar in request["bars"]]
    [window] = forecaster.windows({request["symbol"]: pl.DataFrame(rows)})
    meta = forecaster.tokenizer.meta(window.symbol)
    events = inputs_of(forecaster.config, window.columns, meta)
    assert isinstance(forecaster.backend, TorchBackend)
    with torch.no_grad():
        logits = forecaster.backend.model(
            torch.from_numpy(events)[None], torch.from_numpy(meta)[None]
        )
    probs = return_log_probs(logits)[0, -1].double().exp().numpy()
    return forecaster.distribution(window, probs / probs.sum()).to_dict()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    forecaster = Forecaster.load(arguments.model)

    async def forecast(request: dict[str, Any]) -> dict[str, Any]:
        return plain_forecast(forecaster, request)

    async def ready() -> dict[str, str]:
        return {"status": "ready"}

    app = fastapi.FastAPI()
    app.post("/v1/forecast")(forecast)
    app.get("/readyz")(ready)
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
