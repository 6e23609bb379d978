"""How far another machine may be off: every tolerance of the audit, and why.

Another machine adds sums in another order, and a GPU multiplies in half precision. How far that
moves a forecast depends on the model, so it is measured on the model that is audited: its
parameters are moved in their last digit, and its matrices multiplied in FP16. What is larger than a
few times the measured differences is no rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from vaiom.baselines.base import Floats
from vaiom.evaluation.scores import Buckets, class_ids
from vaiom.model.vaiom import Vaiom

RELATIVE = 1e-9
"""Of a figure that follows from the same events, which is the same on any machine."""
ABSOLUTE = 1e-11
"""The same where a figure is near zero."""
SAME_BITS = 1e-9
"""Of a loss: up to here the same machine answered."""
BASELINE_BITS = 1e-6
"""Of a baseline's loss: other versions of a library end a fit in other last digits."""
MEAN_BITS = 1e-5
"""Of a mean loss that training added up in FP32."""
FIT_TOLERANCE = 1e-3
"""Of a correlation, which may rest on forecasts that a GPU made."""

# Of figures that rest on answers of the model which no file holds, where another machine answered.
FLIPPED_STATES = 8
"""Events whose heaviest latent state may change."""
JOINT_FIGURE = 5e-3
"""Of portfolios and joint forecasts."""
HORIZON_FIGURE = 1e-3
"""Of how horizons agree with each other and with the returns that came."""

EVENT_MARGIN = 8
"""How many times the measured rounding one event may be off."""
MEAN_MARGIN = 3
"""How many times the measured rounding all events together may be off."""
MEASURED_EVENTS = 64
"""Events on which rounding is measured, where each needs a window of its own."""
MEASURED_TOGETHER = 1_024
"""The same where a pass computes successive events together."""
UNIT = 2**-23
"""Relative distance of neighbouring FP32 numbers."""

Answer = Callable[[Vaiom, torch.dtype], Floats]
"""Log probabilities (n, K) that a network gives to some events in a precision."""


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """The largest differences that rounding explains, margins included."""

    precision: str
    """In which matrices were multiplied."""
    bits: float
    """Of the loss of one event."""
    rms_bits: float
    """Of all losses, root mean square."""
    mean_bits: float
    """Of the mean loss; small, as rounding errors have no preferred sign."""
    probability: float

    def __str__(self) -> str:
        return (
            f"{self.precision} arithmetic explains {self.bits:.1e} bits of an event, "
            f"{self.mean_bits:.1e} of their mean"
        )

    def explains(self, bits: Floats) -> bool:
        """Whether these differences of losses (n,) can be rounding."""
        rms = np.sqrt(np.mean(bits**2))
        one_event = np.abs(bits).max(initial=0) <= self.bits
        together = rms <= self.rms_bits and abs(bits.mean()) <= self.mean_bits
        return bool(one_event and together)

    def of_figures(self, num_events: int) -> dict[str, float]:
        """By part of an evaluation, how far its figures may be off if another machine answered.

        Only parts that rest on answers which no file holds are named.
        """
        return {
            "mixture": max(self.bits, FLIPPED_STATES / num_events),
            # Measured with the bars of other assets, which these figures leave out.
            "bits_alone": 2 * self.mean_bits,
            "joint": JOINT_FIGURE,
            "horizons": HORIZON_FIGURE,
        }


def measure_rounding(
    network: Vaiom, answer: Answer, buckets: Buckets, precision: str, seed: int
) -> Rounding:
    """Measure how far rounding moves the answers of a network.

    `buckets` (n,) are those in which the measured events ended. `precision` is the one in which
    they were scored: unless it is FP32, the same events are answered in FP16 too.
    """
    now = answer(network, torch.float32)
    others = [answer(_moved(network, seed), torch.float32)]
    if precision != "float32":
        others.append(answer(network, torch.float16))
    ids = class_ids(buckets, now.shape[1])[:, None]
    measured = []
    for other in others:
        bits = (now - other) / np.log(2)
        mean = abs(np.take_along_axis(bits, ids, axis=1).mean())
        mean_error = bits.std() / np.sqrt(len(bits))
        moved = np.exp(now) - np.exp(other)
        rms = np.sqrt(np.mean(bits**2))
        measured.append([np.abs(bits).max(), rms, mean + mean_error, np.abs(moved).max()])
    largest, rms, mean, probability = np.max(measured, axis=0).tolist()
    return Rounding(
        precision=precision,
        bits=EVENT_MARGIN * largest,
        rms_bits=MEAN_MARGIN * rms,
        mean_bits=MEAN_MARGIN * mean,
        probability=EVENT_MARGIN * probability,
    )


def _moved(network: Vaiom, seed: int) -> Vaiom:
    """Each parameter moved to about its neighbour, as other orders of adding would move sums."""
    moved = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in moved.parameters():
            noise = 2 * torch.rand(parameter.shape, generator=generator) - 1
            parameter.mul_(1 + UNIT * noise)
    return moved
