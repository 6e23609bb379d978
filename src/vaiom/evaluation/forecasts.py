"""Forecasts of any origin, judged on the events of a corpus as a model is; `docs/scoring.md` has
the rules.

Enters: a table of probabilities, quantiles or samples, or an object that computes one. Leaves: a
`ForecastScore` with the same figures as an evaluation. Not in the paper.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.baselines.base import PLAIN, Floats, Rows, baseline, count_targets, smooth
from vaiom.baselines.stored_losses import load_losses
from vaiom.codec import to_json
from vaiom.corpus.splits import TRAIN, VALIDATION
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.corpus.targets import DEFAULT_CONTEXT
from vaiom.errors import ConfigError, DataError
from vaiom.evaluation.access_ledger import record_access
from vaiom.evaluation.evaluate import judge, require_own
from vaiom.evaluation.predictor import rows_of
from vaiom.evaluation.quantiles import quantile_buckets
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

PROBABILITIES, QUANTILES, SAMPLES = FORMS
_LEVEL = r"q?(0?\.\d*[1-9]\d*|\d(?:\.\d+)?e-0*[1-9]\d*)"  # also as Python writes small ones, 1e-05
_COLUMN_NAMES = {
    PROBABILITIES: r"p(?:rob_)?([1-9]|1[0-6])",
    QUANTILES: _LEVEL,
    SAMPLES: r"s(?:ample|(\d+))",
}
_LEAST_COLUMNS = {PROBABILITIES: NUM_RETURN_BUCKETS, QUANTILES: 3, SAMPLES: 1}
"""The first form of which a table has so many columns is taken."""
SUM_TOLERANCE = 1e-4
PRIOR_SAMPLES = NUM_RETURN_BUCKETS / 2
"""Weight of Train's shares beside samples: half a sample in each bucket (Jeffreys)."""
SHIFTS = (1, -1, 2, -2, 3, -3)
"""Bars by which clocks are often off."""
LEAST_MISSED = 3
"""Fewer stamps on no event cannot tell of a shift."""


class ForecastSource(Protocol):
    """An object that computes forecasts, instead of a file of them."""

    def forecast(self, corpus: Corpus, rows: Rows) -> Any:
        """A table with the columns of a file: the return after each of these rows, from the rows up
        to it.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class ForecastTable:
    """Forecasts as they were given, one a line."""

    rows: Rows
    """Row of the corpus before each line's target; below 0 where there is none."""
    form: str
    columns: tuple[str, ...]
    """Numbers of the buckets, levels of the quantiles, or numbers of the samples."""
    values: Floats
    """(lines, columns)."""

    def probabilities(self, corpus: Corpus, rows: Rows, context: int) -> Floats:
        """(n, 16) bucket probabilities after these rows, each of which has a line."""
        used = np.isin(self.rows, rows)
        at = np.searchsorted(rows, self.rows[used])
        values = self.values[used]
        edges = corpus.edges["return"]
        sigma = corpus.target_scale[rows]
        if self.form == SAMPLES:
            line, column = np.nonzero(values)
            event = at[line]
            buckets = bucket_of(edges, values[line, column] / sigma[event])
            counts = np.zeros((len(rows), NUM_RETURN_BUCKETS))
            np.add.at(counts, (event, buckets - 1), 1.0)
            train_counts = count_targets(corpus, corpus.endpoints(TRAIN, context))
            counts += PRIOR_SAMPLES * smooth(train_counts)
            return np.asarray(counts / counts.sum(axis=1, keepdims=True))
        ordered: Floats = values[np.argsort(at)]
        if self.form == PROBABILITIES:
            return ordered
        levels = [float(level) for level in self.columns]
        bounds = edges[1:-1] * sigma[:, None]
        return quantile_buckets(levels, ordered, bounds, corpus.return_shape)


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
    """Score a file, a table or a `ForecastSource`, with baselines, on the events that all have.

    `against` is a run that was evaluated on the split: its context is taken, and its losses are
    compared. With `save` the result is kept in that run, whose report then shows it.
    """
    if isinstance(corpus, str | Path):
        corpus = open_corpus(corpus)
    run = find_run(Path(against)) if against is not None else None
    model = load_model(run) if run else None
    if model:
        context = model.config.history
    if save:
        _require_savable(run, name)
    events = rows_of(corpus, split, context, unseal)
    if hasattr(forecasts, "forecast"):
        forecasts = forecasts.forecast(corpus, events)
    frame = _read_table(forecasts)
    table = _read_forecasts(frame, corpus, events)
    common = np.intersect1d(events, table.rows)
    losses = {}
    if run:
        run_bits = _bits_of_run(run, corpus, split)
        common = common[np.isfinite(run_bits[common])]
        losses[RUN_PREFIX + run.name] = run_bits[common]
    if not len(common):
        first = corpus.timestamps[events[0]]
        num_known = (table.rows >= 0).sum()
        raise DataError(
            "no forecast belongs to an event of the split",
            expected=f"some of {len(events):,} events, the first after the bar of {first}",
            got=f"{len(table.rows):,} lines, {num_known:,} of them after a bar of the corpus",
        )
    stored = load_losses(Path(baselines), corpus, split, context) if baselines else {}
    fitted_now = [baseline(each) for each in PLAIN if each not in stored]
    losses |= losses_of(fitted_now, corpus, common, context)
    is_common = np.isin(events, common)
    losses |= {each: bits[is_common] for each, bits in stored.items()}
    probs = table.probabilities(corpus, common, context)
    folder = ensure_folder(Run(run).forecasts / name) if save and run else None
    # Whatever can be refused has been refused: from here on the split is accessed.
    digest = sha256_of(probs.tobytes())
    looks = record_access(corpus, split, run=name, checkpoint_sha256=digest, num_events=len(common))
    scored = score_events(corpus, common, losses, probs)
    num_missing = len(events) - len(common)
    is_unused = ~np.isin(table.rows, events)
    num_unused = int(is_unused.sum())
    figures = judge(corpus, split, common, scored)
    caveat = caveat_of_missing(num_missing, len(events), num_unused, table.form)
    result = ForecastScore(
        **{**figures, "caveats": [caveat, *figures["caveats"]]},
        split=split,
        run=name,
        experiment=name,
        seed=0,
        step=0,
        checkpoint_sha256=digest,
        looks=looks,
        corpus=str(corpus.path),
        corpus_sha256=corpus.sha256,
        form=table.form,
        num_missing=num_missing,
        num_unused=num_unused,
        baselines=str(baselines) if baselines else None,
        run_sha256=model.sha256 if model else None,
        all_tests=None,
        seeds=None,
    )
    if folder:
        write_events(folder, split, scored)
        write_json(Run(folder).evaluation(split), to_json(result))
    return result


def _require_savable(run: Path | None, name: str) -> None:
    """Refuse to save without a run of one's own, or under a name that no folder should have."""
    if run is None:
        expected = "--against RUN, which was evaluated"
        raise ConfigError("forecasts are saved in a run", expected=expected)
    if not re.fullmatch(r"\w[\w.-]*", name):
        expected = "letters, digits, _, - and dots"
        raise ConfigError("a name that no folder should have", expected=expected, got=name)
    require_own(run, fix="vaiom evaluate MODEL --out RUN, and score against that")


def _bits_of_run(run: Path, corpus: Corpus, split: str) -> Floats:
    """(N,) losses of an evaluated run by row of the corpus, NaN where it was not scored."""
    theirs = read_events(run, split)
    rows = find_rows(corpus, corpus.target_timestamps, theirs.symbols, theirs.target_times)
    missing = rows < 0
    differing = corpus.target_return[rows] != theirs.buckets
    if missing.any() or differing.any():
        raise DataError(
            "the run was scored on other events than the corpus has",
            where=run,
            fix=f"vaiom evaluate {run} --corpus {corpus.path} --split {split}",
        )
    bits = np.full(len(corpus), np.nan)
    bits[rows] = theirs.bits[MODEL]
    return bits


def _read_table(source: Any) -> pl.DataFrame:
    """A Parquet or CSV file, packed or not, or a table in memory."""
    if isinstance(source, str | Path):
        file = Path(source)
        if file.suffix == ".parquet":
            return read_parquet(file, file)
        if file.is_dir():
            expected = "a Parquet or CSV file"
            raise DataError("a folder is no table of forecasts", where=file, expected=expected)
        with readable_parquet(file, "CSV"):
            return pl.read_csv(file, infer_schema_length=None)
    if isinstance(source, Mapping):
        # Polars refuses arrays of seconds, such as the stamps of a corpus.
        columns = {}
        for name, column in source.items():
            is_time = np.asarray(column).dtype.kind == "M"
            columns[name] = np.asarray(column, "datetime64[us]") if is_time else column
        return pl.DataFrame(columns)
    if isinstance(source, pl.LazyFrame):
        source = source.collect()
    return pl.DataFrame(source)


def _read_forecasts(frame: pl.DataFrame, corpus: Corpus, events: Rows) -> ForecastTable:
    """Check a table of forecasts and find the row that each of its lines belongs to."""
    form, named = _find_form(frame)
    times = [name for name in ("time", "target_time") if name in frame.columns]
    if "symbol" not in frame.columns or not times or not form:
        raise DataError(
            "not a table of forecasts",
            expected=(
                "symbol; time or target_time; p1 to p16, quantiles such as q0.05, sample, or s1, "
                "s2 and so on"
            ),
            got=", ".join(frame.columns),
        )
    horizon = frame.get_column("horizon", default=pl.Series([1]))
    bars = horizon.cast(pl.Float64, strict=False).to_numpy()
    _refuse("a forecast is of several bars", bars > 1, bars[:, None], "horizon 1, the next bar")
    columns = sorted(named, key=lambda key: float(key or 0))
    numbers = frame.select(named[key] for key in columns).cast(pl.Float64, strict=False)
    values = numbers.to_numpy()
    _require_values(form, values)
    names = frame["symbol"].cast(pl.String).fill_null("")
    symbols = names.to_numpy().astype(np.str_)
    assets = list(corpus.asset_slices)
    unknown = ~np.isin(symbols, assets)
    problem = "the corpus does not have this symbol"
    _refuse(problem, unknown, symbols[:, None], ", ".join(assets[:20]))
    rows = _find_lines(frame, times, symbols, corpus, events, repeatable="" in columns)
    return ForecastTable(rows=rows, form=form, columns=tuple(columns), values=values)


def _find_form(frame: pl.DataFrame) -> tuple[str, dict[str, str]]:
    """The form of a table's forecasts, and its column of each bucket, level or sample."""
    for form, pattern in _COLUMN_NAMES.items():
        matches = [re.fullmatch(pattern, column) for column in frame.columns]
        named = {match[1] or "": match[0] for match in matches if match}
        if len(named) >= _LEAST_COLUMNS[form]:
            return form, named
    return "", {}


def _require_values(form: str, values: Floats) -> None:
    """Refuse forecasts that are no numbers, no probabilities, or no quantiles."""
    finite = np.isfinite(values).all(axis=1)
    _refuse("a forecast is not a finite number", ~finite, values, "numbers, none missing")
    if form == PROBABILITIES:
        excess = values.sum(axis=1) - 1
        negative = (values < 0).any(axis=1)
        wrong = (np.abs(excess) > SUM_TOLERANCE) | negative
        expected = f"{NUM_RETURN_BUCKETS} of them from 0 on, with a sum within {SUM_TOLERANCE} of 1"
        _refuse("probabilities do not sum to one, or are negative", wrong, values, expected)
    if form == QUANTILES:
        steps = np.diff(values, axis=1)
        crossed = (steps <= 0).any(axis=1)
        expected = "values that rise with their levels"
        _refuse("quantiles cross or coincide", crossed, values, expected)


def _find_lines(
    frame: pl.DataFrame,
    times: Sequence[str],
    symbols: Labels,
    corpus: Corpus,
    events: Rows,
    *,
    repeatable: bool,
) -> Rows:
    """The row before each line's target, by its stamp in the first of `times`.

    Lines of `repeatable` samples may name an event more than once.
    """
    known = {"time": corpus.timestamps, "target_time": corpus.target_timestamps}
    stamps = {}
    rows = {}
    for name in times:
        parsed = parse_stamps(frame[name], lambda line: f"forecast {line + 1}", utc=True)
        stamps[name] = parsed.to_numpy()
        rows[name] = find_rows(corpus, known[name], symbols, stamps[name])
    printed = [each.astype(np.str_) for each in stamps.values()]
    keys = np.stack([symbols, *printed], axis=1)
    if len(times) == 2:
        late = stamps["time"] >= stamps["target_time"]
        problem = "a forecast was made after its target began"
        _refuse(problem, late, keys, "time before target_time")
        target_rows = rows["target_time"]
        other = (target_rows >= 0) & (target_rows != rows["time"])
        expected = "in target_time the bar after that of time"
        _refuse("a forecast is of another bar than the next", other, keys, expected)
    if not repeatable:
        twice = pl.DataFrame(keys[:, :2]).is_duplicated().to_numpy()
        expected = "a line for each symbol and time"
        _refuse("an event is forecast more than once", twice, keys, expected)
    first = times[0]
    _require_in_place(corpus, events, known[first], symbols, stamps[first], rows[first])
    return rows[first]


def _refuse(problem: str, wrong: Any, shown: npt.NDArray[Any], expected: str) -> None:
    """Refuse the table if any of its lines (n,) is wrong, and show the first of them."""
    if wrong.any():
        first = int(wrong.argmax())
        example = ", ".join(map(str, shown[first].tolist()))
        raise DataError(
            problem,
            where=f"forecast {first + 1}",
            expected=expected,
            got=f"{wrong.sum():,} of {len(wrong):,} lines, the first: {example}",
        )


def _require_in_place(
    corpus: Corpus, events: Rows, known: Times, symbols: Labels, stamps: Times, rows: Rows
) -> None:
    """Refuse stamps that fit the events, or the bars, only after a common shift.

    `known` (N,) are the stamps of the corpus's rows, `rows` the rows that the lines' own fit.
    """
    step = np.timedelta64(step_seconds(corpus.tokenizer.timeframe), "s")
    by_clock = [(bars, find_rows(corpus, known, symbols, stamps - bars * step)) for bars in SHIFTS]
    shifts = [*by_clock, (1, rows - 1), (-1, rows + 1)]
    for usable in (events, np.flatnonzero(~np.isnat(known))):
        # Before the first and after the last of its asset a table may just be longer.
        inside = np.zeros(len(symbols), bool)
        for symbol, asset in corpus.asset_slices.items():
            is_own = (usable >= asset.start) & (usable < asset.stop)
            own = known[usable[is_own]]
            if len(own):
                between = (stamps >= own[0]) & (stamps <= own[-1])
                inside |= between & (symbols == symbol)
        missed = _num_missed(rows, usable, inside)
        for bars, shifted in shifts:
            left = _num_missed(shifted, usable, inside)
            if missed >= LEAST_MISSED and 10 * left <= missed:
                direction = "earlier" if bars > 0 else "later"
                raise DataError(
                    f"the stamps are shifted: they fit {abs(bars)} bar(s) {direction}",
                    expected=(
                        "in time the start of the last known bar, in target_time that of the bar "
                        "after it"
                    ),
                    got=f"{missed:,} stamps on no event, {left:,} if moved so",
                )


def _num_missed(rows: Rows, usable: Rows, inside: npt.NDArray[np.bool_]) -> int:
    """How many of the lines inside have a row (n,) that is not usable."""
    missed = inside & ~np.isin(rows, usable)
    return int(missed.sum())
