"""An experiment is what its name says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reproduction.paper import COMPARISONS
from vaiom.codec import to_json
from vaiom.errors import ConfigError
from vaiom.experiments.registry import experiment
from vaiom.features.fields import CONT_FIELDS, EXTRA_FIELDS, META_FIELDS
from vaiom.model.config import PAPER_VOCABULARY
from vaiom.model.vaiom import count_parameters

NAMES = sorted({row.experiment for each in COMPARISONS for row in each.rows})
OURS = [name for name in NAMES if name.split("-")[0] == "best"]


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda each: each.name)
def test_rows_name_their_references_and_reach_their_steps(comparison: Any) -> None:
    labels = [row.label for row in comparison.rows]
    assert len(set(labels)) == len(labels)
    for row in comparison.rows:
        assert row.against is None or row.against in labels
        train = experiment(row.experiment).train
        assert train.steps >= row.steps
        # The published step is one that is validated.
        assert row.steps % train.validate_every == 0 or row.steps == train.steps


def test_the_matched_pair_reads_the_same_information() -> None:
    disc = experiment("matched-disc")
    cont = experiment("matched-cont")
    same = {"return_bucket": ["ret_z"], "gap_bucket": ["gap_z"], "vol_regime": ["relative_log_vol"]}
    same |= {"years_since_2000": ["years_since_2000_norm"], "mask_any": ["mask_any"]}
    same |= {"month_of_year": ["month_sin", "month_cos"]}
    for name in ("day_of_month", "day_of_week", "day_of_year", "hour", "minute", "second"):
        same[name] = [f"{name}_sin", f"{name}_cos"]
    assert set(disc.model.input_fields) == same.keys()
    assert sorted(cont.model.input_fields) == sorted(
        field for fields in same.values() for field in fields
    )
    assert not set(META_FIELDS) & {*disc.model.input_fields, *cont.model.input_fields}
    # Nothing else differs.
    assert replace(disc.model, input="cont", fields=cont.model.fields) == cont.model
    assert disc.train == cont.train


def test_best_is_small_reads_no_dates_and_is_shown_everything_else() -> None:
    best = experiment("best").model
    assert count_parameters(best, PAPER_VOCABULARY) <= 1_000_000
    gone = {"years_since_2000_norm", "month_sin", "month_cos", "day_of_year_sin", "day_of_year_cos"}
    assert set(best.input_fields) == {*CONT_FIELDS, *EXTRA_FIELDS} - gone


@pytest.mark.parametrize("name", [name for name in OURS if name not in ("best", "best-512")])
def test_one_part_of_best_512_is_changed_in_each_ablation(name: str) -> None:
    best = to_json(experiment("best-512"))
    other = to_json(experiment(name))
    changed = [
        key
        for part in ("model", "train")
        for key, value in best[part].items()
        if other[part][key] != value
    ]
    assert len(changed) == 1


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="cont-last-50k"):
        experiment("nonsense")
