"""Proof (e): the figures of an evaluation are those of its per-event file.

Enters: a run folder with `evaluation-<split>.json` and `events-<split>`. Leaves: a `Proof`. Every figure that is a
function of the events is computed again by the plainest code that can be written for it, one replicate after another,
and shares none with the room that wrote it.
Paper: Methods, "Paired Test Uncertainty"; Results, main Test table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.audit.proof import Proof, proving
from vaiom.evaluation.events_file import MODEL, ScoredEvents, read_events
from vaiom.files import read_json

NAME = "e. figures"
ABOUT = "bits, gains, intervals, win rates and tests of evaluation-*.json from the per-event files"
RELATIVE, ABSOLUTE = 1e-9, 1e-11
REPLICATES, SEED, SHARES = 10_000, 17, (0.025, 0.975)
TAILS = {"negative": (1, 2, 3, 4), "positive": (13, 14, 15, 16), "both": (1, 2, 3, 4, 13, 14, 15, 16)}

Floats = npt.NDArray[np.float64]
Blocks = dict[tuple[str, ...], list[float]]


def evaluated_splits(run: Path) -> list[str]:
    """Splits that the run has an evaluation of."""
    return sorted(file.stem.removeprefix("evaluation-") for file in run.glob("evaluation-*.json"))


def prove_figures(run: Path) -> Proof:
    with proving(NAME, ABOUT) as proof:
        for split in evaluated_splits(run):
            stored = read_json(run / f"evaluation-{split}.json")
            figures = figures_of(read_events(run, split))
            if stored.get("all_tests"):
                tests = [name for name in evaluated_splits(run) if name.startswith("test-")]
                pooled = _joined([read_events(run, name) for name in tests])
                # Where a test was scored again beside other baselines since, the lists differ and the proof says so.
                figures["all_tests"] = _against(pooled)
            compare_figures(proof, figures, stored, split)
            proof.notes.append(f"{split}: {stored.get('num_events')} events")
    return proof


def figures_of(events: ScoredEvents) -> dict[str, Any]:
    """The figures as the evaluation file spells them."""
    months = events.target_times.astype("datetime64[M]").astype(str)
    hours = [int(time.astype("datetime64[h]").astype(np.int64)) % 24 for time in events.target_times]
    labels = {"asset": list(events.symbols), "month": list(months), "hour": hours, "bucket": events.buckets.tolist()}
    return {
        "num_events": len(events),
        "bits": {name: math.fsum(losses) / len(losses) for name, losses in events.bits.items()},
        "against": _against(events),
        "by": {name: _by_label(events.bits, values) for name, values in labels.items()},
    }


def _by_label(bits: Mapping[str, Floats], labels: list[Any]) -> list[dict[str, Any]]:
    positions: dict[Any, list[int]] = {}
    for position, label in enumerate(labels):
        positions.setdefault(label, []).append(position)
    return [
        {
            "group": str(label),
            "num_events": len(chosen),
            "bits": {name: math.fsum(losses[chosen]) / len(chosen) for name, losses in bits.items()},
        }
        for label, chosen in sorted(positions.items())
    ]


def _against(events: ScoredEvents) -> list[dict[str, Any]]:
    out = []
    months = events.target_times.astype("datetime64[M]").astype(str)
    for name in (name for name in events.bits if name != MODEL):
        gains = events.bits[name] - events.bits[MODEL]
        # Blocks in the order of time, then of the symbol: the draws number them so.
        asset_months, whole_months = Blocks(), Blocks()
        for month, symbol, gain in zip(months, events.symbols, gains, strict=True):
            asset_months.setdefault((month, symbol), []).append(gain)
            whole_months.setdefault((month,), []).append(gain)
        tails = {side: gains[np.isin(events.buckets, buckets)] for side, buckets in TAILS.items()}
        out.append(
            {
                "baseline": name,
                "gain": {
                    "num_events": len(gains),
                    "gain_bits": math.fsum(gains) / len(gains),
                    "asset_months": _bootstrap(asset_months),
                    "months": _bootstrap(whole_months),
                    "tails": {
                        side: {"num_events": len(part), "gain_bits": math.fsum(part) / len(part) if len(part) else None}
                        for side, part in tails.items()
                    },
                },
                "diebold_mariano": _diebold_mariano(gains, events.target_times),
            }
        )
    return out


def _bootstrap(blocks: Blocks) -> dict[str, Any]:
    """One replicate after another: draw as many blocks as there are, add up their gains and their events."""
    sums = np.array([math.fsum(blocks[key]) for key in sorted(blocks)])
    sizes = np.array([len(blocks[key]) for key in sorted(blocks)], np.float64)
    wins = int((sums > 0).sum())
    out: dict[str, Any] = {"num_blocks": len(sums), "block_wins": wins, "win_rate": wins / len(sums)}
    if len(sums) < 2:
        return {**out, "interval": None, "win_rate_interval": None}
    rng = np.random.default_rng(SEED)
    means, rates = [], []
    for _ in range(REPLICATES):
        drawn = rng.integers(0, len(sums), len(sums))
        means.append(sums[drawn].sum() / sizes[drawn].sum())
        rates.append((sums[drawn] > 0).sum() / len(sums))
    return {
        **out,
        "interval": [float(np.quantile(means, share)) for share in SHARES],
        "win_rate_interval": [float(np.quantile(rates, share)) for share in SHARES],
    }


def _diebold_mariano(gains: Floats, times: npt.NDArray[np.datetime64]) -> dict[str, Any]:
    at: dict[Any, list[float]] = {}
    for time, gain in zip(times, gains, strict=True):
        at.setdefault(time, []).append(gain)
    series = [math.fsum(at[time]) / len(at[time]) for time in sorted(at)]
    count = len(series)
    mean = math.fsum(series) / count
    lags = min(int(4 * (count / 100) ** (2 / 9)), count - 1)
    centred = np.array(series) - mean
    variance = math.fsum(centred**2)
    for lag in range(1, lags + 1):
        variance += 2 * (1 - lag / (lags + 1)) * math.fsum(centred[lag:] * centred[:-lag])
    variance /= count
    statistic = mean / math.sqrt(variance / count) if variance > 0 else None
    return {
        "mean_gain_bits": mean,
        "statistic": statistic,
        "p_value": None if statistic is None else math.erfc(abs(statistic) / math.sqrt(2)),
        "num_times": count,
        "num_lags": lags,
    }


def _joined(parts: list[ScoredEvents]) -> ScoredEvents:
    common = [name for name in parts[0].bits if all(name in part.bits for part in parts)]
    return ScoredEvents(
        symbols=np.concatenate([part.symbols for part in parts]),
        target_times=np.concatenate([part.target_times for part in parts]),
        buckets=np.concatenate([part.buckets for part in parts]),
        bits={name: np.concatenate([part.bits[name] for part in parts]) for name in common},
    )


def compare_figures(proof: Proof, ours: Any, stored: Any, path: str) -> None:
    """Every leaf of what was computed again must be in the file."""
    if isinstance(ours, dict):
        for key, value in ours.items():
            compare_figures(proof, value, stored.get(key) if isinstance(stored, dict) else None, f"{path}.{key}")
    elif isinstance(ours, list):
        same_size = isinstance(stored, list) and len(stored) == len(ours)
        if proof.check(same_size, f"{path}: {len(ours)} entries recomputed, not those of the file"):
            for index, value in enumerate(ours):
                compare_figures(proof, value, stored[index], f"{path}[{index}]")
    else:
        proof.check(_same(ours, stored), f"{path}: the file says {stored}, its events {ours}")


def _same(ours: Any, stored: Any) -> bool:
    if isinstance(ours, float) and isinstance(stored, int | float):
        return math.isclose(ours, stored, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return bool(ours == stored)
