"""Proof (i): what a run knows beyond the next bar was fitted on Train alone, judged on targets of exactly those bars.

Fits are made again; targets are held to returns that are changed one by one; losses and figures are computed again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from vaiom.audit.figures import BASELINE_BITS, compare_figures
from vaiom.audit.pipeline import Rescorer
from vaiom.audit.proof import Claim, Proof
from vaiom.codec import to_json
from vaiom.evaluation.events_file import MODEL, read_events
from vaiom.evaluation.horizons import ROOT_OF_TIME, events_name, figures_of_horizon, judge_horizons
from vaiom.events.horizons import HorizonCorpus, at_horizon, fit_horizon
from vaiom.events.splits import SEALED
from vaiom.files import read_json
from vaiom.model.horizons import load_horizons
from vaiom.run import Run

CHANGED = 200
"""Returns that are changed to see which targets follow."""
FIGURE = 1e-3
"""Largest difference of a figure that rests on what the heads answer now."""


@Claim(
    "i. horizons",
    "Train alone fits the same horizons; a target is its own bars and no other; losses and figures computed again",
)
def prove_horizons(proof: Proof, run: Path, rescorer: Rescorer) -> None:
    corpus, horizons = rescorer.corpus, load_horizons(Run(run).horizons, rescorer.model.checkpoint)
    views = {fit.bars: at_horizon(corpus, fit) for fit in horizons.fitted.fits}
    for bars, view in views.items():
        same = to_json(fit_horizon(corpus, bars)) == to_json(view.at)
        proof.check(same, f"{bars} bars: Train fits other buckets, shape or scale")
        _prove_targets(proof, view, rescorer.seed)
    for split in Run(run).evaluated_splits():
        stored = read_json(Run(run).evaluation(split))
        scores = {each["bars"]: each for each in stored.get("horizons") or ()}
        if not scores:
            proof.notes.append(f"{split}: the evaluation has no horizons")
            continue
        fits, unseal = stored.get("baselines"), split if split == SEALED else None
        known = Path(fits) if fits and Path(fits).is_dir() else None
        for each in judge_horizons(rescorer.model, horizons, corpus, split, baselines=known, unseal=unseal):
            bars, view = each.score.bars, views[each.score.bars]
            where, events = f"{split}, {bars} bars", read_events(run, events_name(split, bars))
            columns = ("symbols", "target_times", "buckets")
            same = bars in scores and all(
                np.array_equal(getattr(events, name), getattr(each.events, name)) for name in columns
            )
            if not proof.check(same, f"{where}: other events or outcomes than those of the split", len(each.rows)):
                continue
            rows = each.rows
            compare_figures(proof, to_json(figures_of_horizon(view, rows, events)), scores[bars], where)
            again = to_json(each.score)
            for name in ("wider", "variance_of_steps", "variance_realised"):
                compare_figures(proof, again[name], scores[bars].get(name), f"{where}.{name}", FIGURE)
            for name, losses in events.bits.items():
                if name not in each.events.bits:
                    proof.notes.append(f"{where}: {name} was not computed again, no fit was found")
                    continue
                largest = float(np.abs(losses - each.events.bits[name]).max())
                allowed = FIGURE if name in (MODEL, ROOT_OF_TIME) else BASELINE_BITS
                otherwise = f"{where}: {name} gives an event {largest:.1e} bits more or fewer than the file"
                proof.check(largest <= allowed, otherwise, len(rows))


def _prove_targets(proof: Proof, view: HorizonCorpus, seed: int) -> None:
    """Other returns, far from each other: the targets that span one of them change, no other does, nor does a scale."""
    bars, size = view.horizon, len(view)
    places = np.arange(bars, size, 2 * bars + 1)
    places = np.sort(np.random.default_rng(seed).permutation(places)[:CHANGED])
    returns = np.array(view.columns["log_ret"])
    returns[places] += 1e-3
    other = at_horizon(replace(view.base, columns={**view.columns, "log_ret": returns}), view.at)
    moved = ~np.isclose(other.log_ret_next, view.log_ret_next, rtol=0, atol=1e-9, equal_nan=True)
    spans = np.zeros(size, bool)
    spans[(places[:, None] - np.arange(1, bars + 1)).ravel()] = True
    spans &= np.isfinite(view.log_ret_next)
    proof.check(np.array_equal(moved, spans), f"{bars} bars: targets of other bars than the next", len(places))
    proof.check(np.array_equal(other.sigma20, view.sigma20), f"{bars} bars: a scale that sees its target", size)
