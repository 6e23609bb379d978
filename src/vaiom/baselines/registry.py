"""The baselines by name, made only when asked for: a name costs no import of the library behind it.

Enters: a name and where to report progress. Leaves: a baseline that was not fitted yet.
"""

from __future__ import annotations

from collections.abc import Callable

from vaiom.baselines.base import Baseline, Progress
from vaiom.errors import ConfigError

Factory = Callable[[Progress | None], Baseline]


def _frequency(progress: Progress | None) -> Baseline:
    from vaiom.baselines.frequency import Frequency

    return Frequency()


def _markov(progress: Progress | None) -> Baseline:
    from vaiom.baselines.markov import Markov

    return Markov()


def _hour_of_week(progress: Progress | None) -> Baseline:
    from vaiom.baselines.hour_of_week import HourOfWeek

    return HourOfWeek()


def _ewma_t(progress: Progress | None) -> Baseline:
    from vaiom.baselines.student import EwmaT

    return EwmaT()


def _garch_t(progress: Progress | None) -> Baseline:
    from vaiom.baselines.garch import GarchT

    return GarchT(progress)


def _lightgbm(progress: Progress | None) -> Baseline:
    from vaiom.baselines.features import HYBRID
    from vaiom.baselines.lightgbm import LightGBM

    return LightGBM("lightgbm", HYBRID, progress=progress)


def _lightgbm_cont(progress: Progress | None) -> Baseline:
    from vaiom.baselines.features import CONT
    from vaiom.baselines.lightgbm import LightGBM

    return LightGBM("lightgbm_cont", CONT, progress=progress)


def _lightgbm_disc(progress: Progress | None) -> Baseline:
    from vaiom.baselines.features import DISC
    from vaiom.baselines.lightgbm import LightGBM

    return LightGBM("lightgbm_disc", DISC, progress=progress)


def _lightgbm_lags(progress: Progress | None) -> Baseline:
    from vaiom.baselines.lags import LAGS
    from vaiom.baselines.lightgbm import WIDE_TREES, LightGBM

    return LightGBM("lightgbm_lags", LAGS, WIDE_TREES, progress)


def _lightgbm_extra(progress: Progress | None) -> Baseline:
    from vaiom.baselines.lags import LAGS_AND_EXTRA
    from vaiom.baselines.lightgbm import WIDE_TREES, LightGBM

    return LightGBM("lightgbm_extra", LAGS_AND_EXTRA, WIDE_TREES, progress)


def _gru(progress: Progress | None) -> Baseline:
    from vaiom.baselines.neural import GRU, Neural

    return Neural(GRU, progress)


def _return_tokens(progress: Progress | None) -> Baseline:
    from vaiom.baselines.neural import RETURN_TOKENS, Neural

    return Neural(RETURN_TOKENS, progress)


BASELINES: dict[str, Factory] = {
    "frequency": _frequency,
    "markov": _markov,
    "hour_of_week": _hour_of_week,
    "ewma_t": _ewma_t,
    "garch_t": _garch_t,
    "lightgbm_disc": _lightgbm_disc,
    "lightgbm_cont": _lightgbm_cont,
    "lightgbm": _lightgbm,
    "lightgbm_lags": _lightgbm_lags,
    "lightgbm_extra": _lightgbm_extra,
    "return_tokens": _return_tokens,
    "gru": _gru,
}
"""In the order of what they may know."""

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
    return BASELINES[name](progress)
