"""Does a finding of the paper hold here? The sign of a comparison, beside what the chance of
training alone would do.

A comparison is the difference of Validation bits between a row and its reference, seed by seed. A
run stands for its best checkpoint up to the published step, or for exactly that step where the row
is about it; rows of one published length are compared over the checkpoints that both have. The
difference is resolved where its mean lies outside the two-sided interval of Student's t over the
seeds; with one seed, the spread of the main model's seeds stands in. Resolved and of the published
sign: it holds. Resolved and of the other sign: it fails. What ran too short, or not as long as what
it is compared with, is not judged.

Enters: a folder of records and a comparison. Leaves: what each row measured, and the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from reproduction.paper import MAIN, MAIN_TIMEFRAME, Comparison, Row
from reproduction.records import ENSEMBLE, PAIR, RUN, WALK, Record, read_records
from vaiom.errors import DataError

HOLDS = "holds"
FAILS = "fails"
UNRESOLVED = "unresolved"
NOT_RUN = "not run"
# Verdicts where the paper has no figure.
BETTER = "better"
WORSE = "worse"
NOT_CLAIMED = "too short to claim"
UNMATCHED = "lengths do not match"
STOPPED = "stopped before"
CONFIDENCE = 0.95


class Records:
    """All records of a folder, found by what a table asks for; of several lengths of one run the
    longest.
    """

    def __init__(self, records: list[Record]) -> None:
        self.all = records

    @classmethod
    def read(cls, folder: Path) -> Records:
        """The records of a folder, of which there must be some."""
        if records := read_records(folder):
            return cls(records)
        raise DataError(
            "no records to make tables from",
            where=folder,
            fix="name a --corpus to run on, or the --out",
        )

    def runs(self, experiment: str, timeframe: str = MAIN_TIMEFRAME) -> dict[int, Record]:
        """By seed, in their order."""
        return {each.seed: each for each in self._of(RUN, timeframe) if each.name == experiment}

    def walk_forward(self, experiment: str = MAIN) -> dict[int, Record]:
        """By test year, in their order."""
        return {each.year: each for each in self._of(WALK) if each.name == experiment}

    def pairs(self, experiment: str) -> dict[int, Record]:
        """The model beside the paper's, by seed."""
        return {each.seed: each for each in self._of(PAIR) if each.name == experiment}

    def ensemble(self, experiment: str) -> Record | None:
        """The seeds of the model together."""
        return next(
            (each for each in reversed(list(self._of(ENSEMBLE))) if each.name == experiment), None
        )

    def facts(self, kind: str) -> Mapping[str, Any]:
        """Of the corpus or of its baselines; empty where they are not recorded."""
        return next((each.facts for each in self._of(kind)), {})

    def _of(self, kind: str, timeframe: str = MAIN_TIMEFRAME) -> Iterator[Record]:
        """Records of a kind, by seed and year; of one run the claimed and longest last."""

        def order(record: Record) -> tuple[int, int, bool, int]:
            return (
                record.seed,
                record.year,
                record.claimed,
                record.last_step * record.windows_per_step,
            )

        return iter(
            sorted(
                (each for each in self.all if (each.kind, each.timeframe) == (kind, timeframe)),
                key=order,
            )
        )


@dataclass(frozen=True, kw_only=True)
class SeedNoise:
    """The spread of the main model's best Validation bits over its seeds."""

    bits: float
    num_seeds: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One row of a comparison as it came out here."""

    row: Row
    bits: float | None = None  # mean over the seeds
    seed_sd: float | None = None
    seeds: tuple[int, ...] = ()
    best_steps: tuple[int, ...] = ()
    """Where the runs were at their best: up to the published step, or at all where the row is about
    one step.
    """
    at_published_step: float | None = None
    delta_bits: float | None = None
    """Against the reference row, mean over the seeds that both have; negative is better."""
    delta_error: float | None = None  # half the width of its interval
    published_delta: float | None = None
    verdict: str = ""
    shortened: str = ""
    records: tuple[Record, ...] = ()


def measure(comparison: Comparison, records: Records) -> list[Measured]:
    """Every row with its verdict against its reference."""
    noise = seed_noise(records)
    runs = {row.label: records.runs(row.experiment, row.timeframe) for row in comparison.rows}
    rows = {row.label: row for row in comparison.rows}
    out = []
    for row in comparison.rows:
        reference = rows[row.against] if row.against else None
        others = runs[reference.label] if reference else {}
        out.append(_measure(row, runs[row.label], reference, others, noise))
    return out


def seed_noise(records: Records) -> SeedNoise | None:
    """The spread over seeds of the main model; None with fewer than two seeds."""
    bits = [
        best for record in records.runs(MAIN).values() if (best := record.best_bits()) is not None
    ]
    return SeedNoise(bits=stdev(bits), num_seeds=len(bits)) if len(bits) > 1 else None


def interval_half_width(deltas: Sequence[float], noise: SeedNoise | None) -> float | None:
    """Of the mean difference; None where nothing says how far chance alone would carry it."""
    from scipy.stats import t  # type: ignore[import-untyped]

    if len(deltas) > 1:
        num_seeds = len(deltas)
        error = stdev(deltas) / math.sqrt(len(deltas))
    elif deltas and noise is not None:
        # One run less another, each with the spread of the main model.
        num_seeds = noise.num_seeds
        error = math.sqrt(2) * noise.bits
    else:
        return None
    return float(t.ppf((1 + CONFIDENCE) / 2, num_seeds - 1)) * error


def verdict_of(deltas: Sequence[float], error: float | None, published: float | None) -> str:
    """What the differences say of the published one; without a published one, which way
    they point.
    """
    if error is None or abs(mean(deltas)) <= error:
        return UNRESOLVED
    improves = mean(deltas) < 0
    if published is None:
        return BETTER if improves else WORSE
    return HOLDS if improves == (published < 0) else FAILS


def gain_verdict(interval: tuple[float, float] | None, published: bool) -> str:
    """What the interval of a gain over a baseline says; the paper's own baselines all lose to the
    model.
    """
    if interval is None or interval[0] <= 0 <= interval[1]:
        return UNRESOLVED
    ahead = interval[0] > 0
    return (HOLDS if ahead else FAILS) if published else (BETTER if ahead else WORSE)


def _measure(
    row: Row,
    own: dict[int, Record],
    reference: Row | None,
    others: dict[int, Record],
    noise: SeedNoise | None,
) -> Measured:
    """One row of a comparison against its reference, seed by seed."""
    published = None
    if reference and row.bits is not None and reference.bits is not None:
        published = row.bits - reference.bits
    bits = {
        seed: value for seed, record in own.items() if (value := _bits(record, row)) is not None
    }
    run_facts: dict[str, Any] = {
        "shortened": "; ".join(
            dict.fromkeys(record.shortened for record in own.values() if record.shortened)
        ),
        "records": tuple(own.values()),
        "best_steps": tuple(
            each.best_step(None if row.at_step else row.steps) for each in own.values()
        ),
    }
    if not bits:
        verdict = STOPPED if own else NOT_RUN if reference else ""
        return Measured(row=row, published_delta=published, verdict=verdict, **run_facts)
    deltas = _deltas(row, own, reference, others) if reference else {}
    error = interval_half_width(list(deltas.values()), noise)
    verdict = ""
    if reference:
        pairs = [(own[seed], others[seed]) for seed in deltas]
        missing = "" if pairs else STOPPED if own.keys() & others.keys() else NOT_RUN
        verdict = (
            missing
            or _refusal(row, reference, pairs)
            or verdict_of(list(deltas.values()), error, published)
        )
    at_step = [
        record.validation[row.steps] for record in own.values() if row.steps in record.validation
    ]
    return Measured(
        row=row,
        bits=mean(bits.values()),
        seed_sd=stdev(bits.values()) if len(bits) > 1 else None,
        seeds=tuple(bits),
        at_published_step=mean(at_step) if at_step else None,
        delta_bits=mean(deltas.values()) if deltas else None,
        delta_error=error,
        published_delta=published,
        verdict=verdict,
        **run_facts,
    )


def _bits(record: Record, row: Row, common: Mapping[int, float] | None = None) -> float | None:
    """The figure of a run in a row, from the checkpoints in common where those are given."""
    if row.at_step:
        return record.validation.get(row.steps)
    within = [
        bits
        for step, bits in record.validation.items()
        if step <= row.steps and (common is None or step in common)
    ]
    return min(within, default=None)


def _deltas(
    row: Row, own: dict[int, Record], reference: Row, others: dict[int, Record]
) -> dict[int, float]:
    """Row minus reference in bits per event, for each seed that both have."""
    out = {}
    for seed in sorted(own.keys() & others.keys()):
        # Of one published length: only what both could have chosen, or the more often validated one
        # would be ahead.
        same = row.steps == reference.steps
        mine = _bits(own[seed], row, others[seed].validation if same else None)
        theirs = _bits(others[seed], reference, own[seed].validation if same else None)
        if mine is not None and theirs is not None:
            out[seed] = mine - theirs
    return out


def _refusal(row: Row, reference: Row, pairs: Sequence[tuple[Record, Record]]) -> str:
    """Why a comparison is not judged; empty where it is."""
    if not all(record.claimed for pair in pairs for record in pair):
        return NOT_CLAIMED
    if row.steps == reference.steps:
        return ""
    for mine, theirs in pairs:
        whole = mine.last_step >= row.steps and theirs.last_step >= reference.steps
        alike = (mine.last_step, mine.windows_per_step) == (
            theirs.last_step,
            theirs.windows_per_step,
        )
        if not whole and not alike:
            return UNMATCHED
    return ""
