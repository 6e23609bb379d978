# %% [markdown]
# # Forecasts, cell by cell
#
# This file is a script and a notebook: VS Code, Jupyter (with jupytext) and PyCharm open its `# %%`
# cells. It needs a folder with a run, its corpus and its bars, as `make demo` leaves one: `python
# docs/example.py [FOLDER]`.

# %%
from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import vaiom
from vaiom.baselines.counts import Frequency
from vaiom.evaluation.scores import event_bits

in_notebook = "ipykernel" in sys.modules
FOLDER = Path("runs/demo" if in_notebook or len(sys.argv) < 2 else sys.argv[1])
BASIS_POINTS = 1e4

# %% [markdown]
# ## A model and bars
# Bars are Polars frames here; pandas frames do as well. A forecast is for the bar after the last
# one.

# %%
forecaster = vaiom.Forecaster.load(FOLDER / "run")
bars = vaiom.read_bars(FOLDER / "bars")
about = forecaster.describe()
print(
    f"{about['experiment']}, {about['timeframe']} bars, context {about['context']}, for "
    f"{about['purpose']}"
)

# %% [markdown]
# ## The next bar
# A notebook shows a `ReturnDistribution` as a table, a terminal as text. All of it but `prob_zero`
# is given that the next close differs from the last one.

# %%
dists = forecaster.predict(bars)
symbol, dist = next(iter(dists.items()))
print(dist)

# %%
levels = np.array([0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
quantiles = dist.quantile(levels)
print(
    "quantiles in bp:",
    dict(zip(levels.tolist(), np.round(BASIS_POINTS * quantiles, 1).tolist(), strict=True)),
)
print(f"chances of a rise {dist.prob_up:.3f}, of a fall by 10 bp or more {dist.cdf(-0.001):.3f}")
print(
    f"of a move of more than 10 bp either way {dist.prob_beyond(0.001):.3f}, of none "
    f"{dist.prob_zero:.3f}"
)

# %% [markdown]
# ## What could be lost
# Losses are positive, in log returns; a short position loses when prices rise.

# %%
for side in ("long", "short"):
    for level in (0.95, 0.99):
        value_at_risk, shortfall = (
            dist.value_at_risk(level, side),
            dist.expected_shortfall(level, side),
        )
        print(
            f"{side:>5} {level:.0%}: VaR {BASIS_POINTS * value_at_risk:.1f} bp, ES "
            f"{BASIS_POINTS * shortfall:.1f} bp"
        )

draws = dist.rvs(100_000, seed=1)
print(f"by simulation, long 99%: VaR {-BASIS_POINTS * np.quantile(draws, 0.01):.1f} bp")

# %% [markdown]
# ## What it would have said, and what came
# `predict_all` forecasts after every bar of a history, each time from what was known then. The bars
# are those of Validation: whoever plays with a test split has used it up, and here no ledger would
# count it.

# %%
corpus = vaiom.open_corpus(FOLDER / "corpus")
validation_end = corpus.splits.validation[1]
past = {
    name: frame.filter(pl.col("Datetime") < validation_end).tail(1_500)
    for name, frame in bars.items()
}
history = forecaster.predict_all(past, symbol)
print(history.to_frame().tail(3))

# %% [markdown]
# Its bits beside Frequency's. An event is a row of the corpus whose next return is there and is not
# zero; its loss is minus the binary logarithm of the probability of the bucket that came.

# %%
own = corpus.asset_slices[symbol]
events = corpus.endpoints("validation", forecaster.context)
events = events[(events >= own.start) & (events < own.stop)][-500:]
at = np.searchsorted(history.as_of, corpus.timestamps[events])
came = corpus.target_return[events]

frequency = Frequency().fit(corpus, corpus.endpoints("train", forecaster.context))
bits = {
    "model": event_bits(history.probs[at], came),
    "frequency": event_bits(frequency.predict_proba(corpus, events), came),
}
for name, losses in bits.items():
    print(f"{name:>9}: {losses.mean():.4f} bits/event over {len(events)} events")
gain = bits["frequency"] - bits["model"]
print(f"     gain: {gain.mean():+.4f}; `vaiom evaluate` says how sure that is")

# %% [markdown]
# ## Fans against what came
# The middle half and the middle 90% of each forecast, and the return that followed it.

# %%
shown = at[-72:]
fan = BASIS_POINTS * history.distributions.quantile([0.05, 0.25, 0.5, 0.75, 0.95])[shown]
returns = BASIS_POINTS * corpus.log_ret_next[events[-72:]]
hours = np.arange(len(shown))

figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
axes.fill_between(hours, fan[:, 0], fan[:, 4], alpha=0.2, color="tab:blue", label="middle 90%")
axes.fill_between(hours, fan[:, 1], fan[:, 3], alpha=0.4, color="tab:blue", label="middle half")
axes.plot(hours, returns, ".", color="black", label="what came")
axes.set(
    xlabel="events, oldest first",
    ylabel="log return, basis points",
    title=f"{symbol}: forecasts and outcomes",
)
axes.legend()
picture = FOLDER / "fans.png"
figure.savefig(picture)
inside = np.mean((returns > fan[:, 0]) & (returns < fan[:, 4]))
print(f"{inside:.0%} of these returns fell into the middle 90%; the picture is {picture}")

# %% [markdown]
# ## Live
# `online()` takes a history at once and then the bars of one stamp after another, each in the same
# short time, and says what `predict` says. `push` takes a single bar, for models that forecast each
# asset by itself.

# %%
stamps = pl.concat([frame["Datetime"] for frame in bars.values()]).unique().sort().tail(3)
live = forecaster.online()
live.extend_many(
    {name: frame.filter(pl.col("Datetime") < stamps[0]) for name, frame in bars.items()}
)
for stamp in stamps:
    closed = {
        name: frame.filter(pl.col("Datetime") == stamp).to_dicts() for name, frame in bars.items()
    }
    for each in live.push_many({name: rows[0] for name, rows in closed.items() if rows}).values():
        print(repr(each))
difference = np.abs(live.forecast(symbol).probs - dist.probs).max()
print(f"largest difference to predict: {difference:.0e}")
