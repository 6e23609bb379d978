"""Forecasts from any source, judged on the events of a corpus as a model is; `docs/scoring.md` has
the rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.baselines.base import PLAIN, Floats, Rows, baseline, count_targets, smooth
from vaiom.baselines.store import load_losses
from vaiom.codec import to_json
from vaiom.corpus.splits import TRAIN, VALIDATION
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.corpus.targets import DEFAULT_CONTEXT
from vaiom.distribution.shape import ReturnShape, Tail
from vaiom.errors import ConfigError, DataError
from vaiom.evaluation.evaluate import judge, require_own
from vaiom.evaluation.ledger import record_access
from vaiom.evaluation.predictor import rows_of
from vaiom.evaluation.record import FORMS, RUN_PREFIX, ForecastScore, caveat_of_missing
from vaiom.evaluation.scores import (
    MODEL,
    Labels,
    Times,
    find_rows,
    losses_of,
    read_events,
    score_events,
    write_events,
)
from vaiom.features.fields import NUM_RETURN_BUCKETS, bucket_of
from vaiom.files import ensure_folder, sha256_of, write_json
from vaiom.market.folder import read_parquet, readable_parquet
from vaiom.market.formats.stamps import parse_stamps
from vaiom.market.timeframes import step_seconds
from vaiom.model.checkpoint import load_model
from vaiom.run import Run, find_run

# What columns are called, and the fewest of them; the first form that a table has is taken.
_LEVEL = r"q?(0?\.\d*[1-9]\d*|\d(?:\.\d+)?e-0*[1-9]\d*)"  # also as Python writes small ones, 1e-05
_COLUMNS = (
    (r"p(?:rob_)?([1-9]|1[0-6])", NUM_RETURN_BUCKETS),
    (_LEVEL, 3),
    (r"s(?:ample|(\d+))", 1),
)
COLUMNS_BY_FORM = dict(zip(FORMS, _COLUMNS, strict=True))
SUM_TOLERANCE = 1e-4
PRIOR_SAMPLES = (
    NUM_RETURN_BUCKETS / 2
)  # of Train's shares: Jeffreys' weight, half a sample in each bucket
MOVES, FEW_MISSED = (
    (1, -1, 2, -2, 3, -3),
    3,
)  # bars that stamps or clocks may be off; fewer stamps cannot tell


class ForecastSource(Protocol):
    """An object that computes forecasts, instead of a file of them."""

    def forecast(self, corpus: Corpus, rows: Rows) -> Any:
        """A table with the columns of a file: the return after each of these rows, from the rows up
        to it.
        """


def score(
    forecasts: Any,
    corpus: Corpus | str | Path,
    split: str = VALIDATION,
    *,
    name: str = "forecasts",
    against: str | Path | None = None,
    baselines: str | Path | None = None,
    context: int = DEFAULT_CONTEXT,
    unseal: str | None = None,
    save: bool = False,
) -> ForecastScore:
    """Score a file, a table or a `ForecastSource` with baselines and a run on the events that all
    of them have.

    The context is that of the run, whose report shows forecasts saved in it.
    """
    corpus = open_corpus(corpus) if isinstance(corpus, str | Path) else corpus
    run, run_sha256 = find_run(Path(against)) if against is not None else None, None
    if run is not None:
        model = load_model(run)
        context, run_sha256 = model.config.history, model.sha256
    if save:
        if run is None:
            raise ConfigError(
                "forecasts are saved in a run", expected="--against RUN, which was evaluated"
            )
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ConfigError(
                "a name that no folder should have",
                expected="letters, digits, _, - and dots",
                got=name,
            )
        require_own(run, fix="vaiom evaluate MODEL --out RUN, and score against that")
    events = rows_of(corpus, split, context, unseal)
    table = forecasts.forecast(corpus, events) if hasattr(forecasts, "forecast") else forecasts
    rows, form, values = _read_forecasts(_read_table(table), corpus, events)
    common, losses = np.intersect1d(events, rows), {}
    stored = load_losses(Path(baselines), corpus, split, context) if baselines else {}
    if run is not None:
        theirs, run_bits = read_events(run, split), np.full(len(corpus), np.nan)
        place = find_rows(corpus, corpus.target_timestamps, theirs.symbols, theirs.target_times)
        if (place < 0).any() or (corpus.target_return[place] != theirs.buckets).any():
            fix = f"vaiom evaluate {run} --corpus {corpus.path} --split {split}"
            raise DataError(
                "the run was scored on other events than the corpus has", where=run, fix=fix
            )
        run_bits[place] = theirs.bits[MODEL]
        common = common[np.isfinite(run_bits[common])]
        losses = {RUN_PREFIX + run.name: run_bits[common]}
    if not len(common):
        expected = (
            f"some of {len(events):,} events, the first after the bar of "
            f"{corpus.timestamps[events[0]]}"
        )
        got = f"{len(rows):,} lines, {(rows >= 0).sum():,} of them after a bar of the corpus"
        raise DataError("no forecast belongs to an event of the split", expected=expected, got=got)
    losses |= losses_of(
        [baseline(each) for each in PLAIN if each not in stored], corpus, common, context
    )
    losses |= {each: bits[np.isin(events, common)] for each, bits in stored.items()}
    probs, missing = (
        _probabilities(rows, form, values, corpus, common, context),
        len(events) - len(common),
    )
    folder = ensure_folder(Run(run).forecasts / name) if save and run is not None else None
    # Whatever can be refused has been: from here on it is a look.
    digest = sha256_of(probs.tobytes())
    looks = record_access(corpus, split, run=name, checkpoint_sha256=digest, num_events=len(common))
    scored = score_events(corpus, common, losses, probs)
    figures = judge(corpus, split, common, scored)
    unused = int((~np.isin(rows, events)).sum())
    figures["caveats"].insert(0, caveat_of_missing(missing, len(events), unused, form))
    figures |= {
        "split": split,
        "run": name,
        "experiment": name,
        "checkpoint_sha256": digest,
        "looks": looks,
    }
    figures |= {
        "corpus": str(corpus.path),
        "corpus_sha256": corpus.sha256,
        "form": form,
        "num_missing": missing,
    }
    figures |= {
        "baselines": str(baselines) if baselines else None,
        "run_sha256": run_sha256,
        "num_unused": unused,
    }
    result = ForecastScore(**figures, seed=0, step=0, all_tests=None, seeds=None)
    if folder is not None:
        write_events(folder, split, scored)
        write_json(Run(folder).evaluation(split), to_json(result))
    return result


def quantile_buckets(
    levels: Sequence[float], quantiles: Floats, bounds: Floats, shape: ReturnShape
) -> Floats:
    """Probabilities (n, K) between bounds (n, K - 1) of distributions with these quantiles (n, L),
    in log returns.
    """
    below = np.stack([np.interp(*pair, levels) for pair in zip(bounds, quantiles, strict=True)])
    low, high = (levels[0], -1, shape.lower, 0, 1), (1 - levels[-1], 1, shape.upper, -1, -2)
    for mass, sign, tail, outer, inner in (low, high):
        excess = sign * (bounds - quantiles[:, [outer]])
        slope = (levels[outer] - levels[inner]) / (quantiles[:, [outer]] - quantiles[:, [inner]])
        # Train's shape of the tail, with the scale that lets the density go on as it was.
        beyond = mass * Tail(scale=1.0, shape=tail.shape).survival(
            np.maximum(excess, 0) * slope / mass
        )
        below = np.where(excess > 0, beyond if sign < 0 else 1 - beyond, below)
    return np.diff(below, axis=1, prepend=0.0, append=1.0)


def _probabilities(
    lines: Rows, form: str, table: pl.DataFrame, corpus: Corpus, rows: Rows, context: int
) -> Floats:
    """Probabilities (n, K) after these rows, from the lines of a table and the row that each line
    belongs to.
    """
    used, edges, sigma = np.isin(lines, rows), corpus.edges["return"], corpus.target_scale[rows]
    at, values = np.searchsorted(rows, lines[used]), table.to_numpy()[used]
    if form == "samples":
        line, column = np.nonzero(values)
        counts = np.zeros((len(rows), NUM_RETURN_BUCKETS))
        np.add.at(
            counts, (at[line], bucket_of(edges, values[line, column] / sigma[at[line]]) - 1), 1.0
        )
        counts += PRIOR_SAMPLES * smooth(count_targets(corpus, corpus.endpoints(TRAIN, context)))
        return np.asarray(counts / counts.sum(axis=1, keepdims=True))
    values = values[np.argsort(at)]
    if form == "quantiles":
        levels = [float(each) for each in table.columns]
        return quantile_buckets(levels, values, edges[1:-1] * sigma[:, None], corpus.return_shape)
    return values


def _read_table(source: Any) -> pl.DataFrame:
    """A Parquet or CSV file, packed or not, or a table in memory."""
    if isinstance(source, str | Path):
        file = Path(source)
        if file.suffix == ".parquet":
            return read_parquet(file, file)
        if file.is_dir():
            raise DataError(
                "a folder is no table of forecasts", where=file, expected="a Parquet or CSV file"
            )
        with readable_parquet(file, "CSV"):
            return pl.read_csv(file, infer_schema_length=None)
    if isinstance(
        source, Mapping
    ):  # Polars refuses arrays of seconds, such as the stamps of a corpus
        columns = {name: np.asarray(column) for name, column in source.items()}
        stamps = {
            name: each.astype("datetime64[us]")
            for name, each in columns.items()
            if each.dtype.kind == "M"
        }
        source = {**source, **stamps}
    return pl.DataFrame(source.collect() if isinstance(source, pl.LazyFrame) else source)


def _read_forecasts(
    frame: pl.DataFrame, corpus: Corpus, events: Rows
) -> tuple[Rows, str, pl.DataFrame]:
    """The corpus row before each line's target, the form of the forecasts, and their values with a
    column per level.
    """
    matches = {
        form: map(re.compile(own).fullmatch, frame.columns)
        for form, (own, _) in COLUMNS_BY_FORM.items()
    }
    named = {
        form: {match[1] or "": match[0] for match in own if match} for form, own in matches.items()
    }
    form = next(
        (form for form, (_, fewest) in COLUMNS_BY_FORM.items() if len(named[form]) >= fewest), ""
    )
    known = {"time": corpus.timestamps, "target_time": corpus.target_timestamps}
    times = [each for each in known if each in frame.columns]
    if "symbol" not in frame.columns or not times or not form:
        expected = (
            "symbol; time or target_time; p1 to p16, quantiles such as q0.05, sample, or "
            "s1, s2 and so on"
        )
        raise DataError("not a table of forecasts", expected=expected, got=", ".join(frame.columns))
    bars = (
        frame.get_column("horizon", default=pl.Series([1]))
        .cast(pl.Float64, strict=False)
        .to_numpy()
    )
    _refuse("a forecast is of several bars", bars > 1, bars[:, None], "horizon 1, the next bar")
    ordered = sorted(named[form], key=lambda each: float(each or 0))
    table = frame.select(
        pl.col(named[form][each]).cast(pl.Float64, strict=False).alias(each) for each in ordered
    )
    values = table.to_numpy()
    _refuse(
        "a forecast is not a finite number",
        ~np.isfinite(values).all(axis=1),
        values,
        "numbers, none missing",
    )
    if form == "probabilities":
        wrong = (np.abs(values.sum(axis=1) - 1) > SUM_TOLERANCE) | (values < 0).any(axis=1)
        expected = f"{NUM_RETURN_BUCKETS} of them from 0 on, with a sum within {SUM_TOLERANCE} of 1"
        _refuse("probabilities do not sum to one, or are negative", wrong, values, expected)
    if form == "quantiles":
        crossed = (values[:, 1:] <= values[:, :-1]).any(axis=1)
        _refuse(
            "quantiles cross or coincide", crossed, values, "values that rise with their levels"
        )
    symbols = frame["symbol"].cast(pl.String).fill_null("").to_numpy().astype(np.str_)
    assets = [*corpus.asset_slices]
    _refuse(
        "the corpus does not have this symbol",
        ~np.isin(symbols, assets),
        symbols[:, None],
        ", ".join(assets[:20]),
    )
    parsed = [
        parse_stamps(frame[each], lambda line: f"forecast {line + 1}", utc=True) for each in times
    ]
    stamps: list[Times] = [each.to_numpy() for each in parsed]
    rows = [
        find_rows(corpus, known[each], symbols, own)
        for each, own in zip(times, stamps, strict=True)
    ]
    keys = np.stack([symbols, *(each.astype(np.str_) for each in stamps)], axis=1)
    if len(times) == 2:
        _refuse(
            "a forecast was made after its target began",
            stamps[0] >= stamps[1],
            keys,
            "time before target_time",
        )
        other, expected = (
            (rows[1] >= 0) & (rows[1] != rows[0]),
            "in target_time the bar after that of time",
        )
        _refuse("a forecast is of another bar than the next", other, keys, expected)
    if "" not in ordered:  # samples have as many lines as they like
        twice, expected = (
            pl.DataFrame(keys[:, :2]).is_duplicated().to_numpy(),
            "a line for each symbol and time",
        )
        _refuse("an event is forecast more than once", twice, keys, expected)
    _require_in_place(corpus, events, known[times[0]], symbols, stamps[0], rows[0])
    return rows[0], form, table


def _refuse(problem: str, lines: Any, shown: npt.NDArray[Any], expected: str) -> None:
    """Refuse the table if any of its lines is marked, and show the first."""
    if lines.any():
        first = int(lines.argmax())
        got = (
            f"{lines.sum():,} of {len(lines):,} lines, the first: "
            f"{', '.join(map(str, shown[first].tolist()))}"
        )
        raise DataError(problem, where=f"forecast {first + 1}", expected=expected, got=got)


def _require_in_place(
    corpus: Corpus, events: Rows, known: Times, symbols: Labels, stamps: Times, rows: Rows
) -> None:
    """Refuse stamps that fit the events, or the bars, only after a common shift."""
    step = np.timedelta64(step_seconds(corpus.tokenizer.timeframe), "s")
    moved = [(late, find_rows(corpus, known, symbols, stamps - late * step)) for late in MOVES]
    for usable in (events, np.flatnonzero(~np.isnat(known))):
        inside = np.zeros(
            len(symbols), bool
        )  # before and after those of its asset a table may just be longer
        for symbol, asset in corpus.asset_slices.items():
            if len(own := known[usable[(usable >= asset.start) & (usable < asset.stop)]]):
                inside |= (symbols == symbol) & (stamps >= own[0]) & (stamps <= own[-1])
        missed = int((inside & ~np.isin(rows, usable)).sum())
        for late, shifted in [*moved, (1, rows - 1), (-1, rows + 1)]:
            left = int((inside & ~np.isin(shifted, usable)).sum())
            if missed >= FEW_MISSED and 10 * left <= missed:
                problem = (
                    f"the stamps are shifted: they fit {abs(late)} bar(s) "
                    f"{'earlier' if late > 0 else 'later'}"
                )
                expected = (
                    "in time the start of the last known bar, in target_time that of the "
                    "bar after it"
                )
                raise DataError(
                    problem,
                    expected=expected,
                    got=f"{missed:,} stamps on no event, {left:,} if moved so",
                )
