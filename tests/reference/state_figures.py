"""The latent states of a mixture head once more, from its answers, by the plainest code for each
figure.

Enters: weights of the states and their components for some events, the assets of these. Leaves:
values as the evaluation file spells them.
Paper: Methods, "Output Heads"; the diagnostics are an addition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from reference.event_figures import Figures, mean


def state_figures(
    weights: Sequence[Sequence[float]],
    components: Sequence[Sequence[Sequence[float]]],
    assets: Sequence[int],
) -> Figures:
    """Of n events: `weights` n x S, `components` n x S x K."""
    states = range(len(weights[0]))
    heaviest = [max(states, key=lambda state: own[state]) for own in weights]
    use = [mean([own[state] for own in weights]) for state in states]
    shares = [heaviest.count(state) / len(heaviest) for state in states]
    stays = [
        float(before == now)
        for (before, asset), (now, other) in pairwise(zip(heaviest, assets, strict=True))
        if asset == other
    ]
    halves = (0.5, 0.5)
    return {
        "num_events": len(weights),
        "mean_weight": use,
        "heaviest_share": shares,
        "effective_states": 2 ** _entropy(use),
        "separation_bits": mean(
            [_divergence(own, laws) for own, laws in zip(weights, components, strict=True)]
        ),
        "pair_separation_bits": [
            [
                mean([_divergence(halves, (laws[one], laws[two])) for laws in components])
                for two in states
            ]
            for one in states
        ],
        "persistence": mean(stays) if stays else None,
        "persistence_if_independent": math.fsum(share**2 for share in shares),
    }


def _divergence(weights: Sequence[float], laws: Sequence[Sequence[float]]) -> float:
    """Jensen and Shannon's, in bits."""
    mixed = [
        math.fsum(weight * law[k] for weight, law in zip(weights, laws, strict=True))
        for k in range(len(laws[0]))
    ]
    apart = math.fsum(weight * _entropy(law) for weight, law in zip(weights, laws, strict=True))
    return max(_entropy(mixed) - apart, 0.0)


def _entropy(law: Sequence[float]) -> float:
    return -math.fsum(share * math.log2(share) for share in law if share > 0)
