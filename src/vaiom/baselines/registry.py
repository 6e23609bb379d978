"""The baselines by name, made only when asked for: a name costs no import of the library behind it."""

from __future__ import annotations

from importlib import import_module

from vaiom.baselines.base import Baseline
from vaiom.errors import ConfigError
from vaiom.files import Progress

BASELINES = {
    "frequency": "counts:Frequency",
    "markov": "counts:Markov",
    "hour_of_week": "counts:HourOfWeek",
    "ewma_t": "volatility:EwmaT",
    "garch_t": "volatility:GarchT",
    "garch_t_seasonal": "volatility:GarchTSeasonal",
    "lightgbm_disc": "lightgbm:LightGBM",
    "lightgbm_cont": "lightgbm:LightGBM",
    "lightgbm": "lightgbm:LightGBM",
    "lightgbm_lags": "lightgbm:LightGBM",
    "lightgbm_extra": "lightgbm:LightGBM",
    "return_tokens": "neural:Neural",
    "gru": "neural:Neural",
}
"""Module and class, in the order of what they may know."""

PLAIN = ("frequency", "markov", "hour_of_week")
"""Those that fit in a moment: `vaiom evaluate` fits them itself."""
FOR_GPUS = ("return_tokens", "gru")
"""Hours on a few CPU cores: left out there unless they are named."""


def usual_baselines() -> list[str]:
    """All that this machine fits in reasonable time."""
    import torch

    return [name for name in BASELINES if name not in FOR_GPUS or torch.cuda.is_available()]


def require_known(names: list[str]) -> list[str]:
    """The names without repetitions; one that is unknown, or none at all, is an error that lists the known ones."""
    for name in names or [""]:
        if name not in BASELINES:
            raise ConfigError("unknown baseline", expected=", ".join(BASELINES), got=repr(name))
    return list(dict.fromkeys(names))


def baseline(name: str, progress: Progress | None = None) -> Baseline:
    """A named baseline, not fitted yet; an unknown name is an error that lists the known ones."""
    require_known([name])
    module, kind = BASELINES[name].split(":")
    made: Baseline = getattr(import_module(f"vaiom.baselines.{module}"), kind)(name, progress=progress)
    return made
