"""An experiment is what its name says."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from reproduction.paper import COMPARISONS
from vaiom.codec import to_json
from vaiom.errors import ConfigError
from vaiom.experiments.registry import EXPERIMENTS, experiment
from vaiom.features.fields import CONT_FIELDS, EXTRA_FIELDS, META_FIELDS
from vaiom.model.config import AUXILIARIES, PAPER_VOCABULARY, RUNGS, ModelConfig
from vaiom.model.vaiom import count_parameters

NAMES = sorted({row.experiment for each in COMPARISONS for row in each.rows})
OURS = [name for name in NAMES if name.split("-")[0] == "best"]
MATCHED = {"matched-cont", "matched-disc"}


def said_by(name: str) -> tuple[ModelConfig, str, int]:
    """Model, scope and steps as the words of a name give them."""
    changes: dict[str, Any] = {
        "input": {"main": "hybrid"}.get(name.split("-")[0], name.split("-")[0])
    }
    for rung, shape in RUNGS.items():
        if f"-{rung.lower()}" in name:
            changes |= shape
    if "independent" in name:
        changes["return_head"] = "independent"
    if states := re.search(r"states-(\d+)", name):
        changes["num_states"] = int(states[1])
    if "-1024" in name:
        changes["context"] = 1024
    without = {"no-gap": "gap", "no-vol-regime": "vol_regime", "no-ordinal": "ordinal"}
    only = {
        "disc-gap-": ("gap",),
        "disc-vol-regime": ("vol_regime",),
        "gap-vol-": ("gap", "vol_regime"),
        "no-aux": (),
    }
    for words, left_out in without.items():
        if words in name:
            changes["auxiliaries"] = tuple(each for each in AUXILIARIES if each != left_out)
    for words, kept in only.items():
        if words in name:
            changes["auxiliaries"] = kept
    length = re.search(r"-(\d+)k$", name)
    scope = "last" if "-last" in name else "full"
    return replace(ModelConfig(), **changes), scope, int(length[1]) * 1000 if length else 5_500


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in MATCHED and name not in OURS]
)
def test_an_experiment_is_what_its_name_says(name: str) -> None:
    chosen = experiment(name)
    assert (chosen.model, chosen.train.scope, chosen.train.steps) == said_by(name)
    weight = re.search(r"ordinal-(0\.\d+)", name)
    assert chosen.train.ordinal_weight == (float(weight[1]) if weight else 0.1)
    assert chosen.name == name
    assert chosen.about


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


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("main", 911_582),
        ("cont-0.9m-last-300k", 891_878),
        ("cont-5m-last-300k", 4_968_806),
        ("cont-15m-last-300k", 14_590_182),
        ("disc-last-50k", 909_494),
        ("disc-5m-last-180k", 5_039_280),
        ("cont-independent-10k", 885_170),
    ],
)
def test_parameter_counts(name: str, count: int) -> None:
    assert count_parameters(experiment(name).model, PAPER_VOCABULARY) == count


def test_only_the_reference_of_the_long_runs_does_not_accumulate() -> None:
    batches = {name: EXPERIMENTS[name].train.num_micro_batches for name in NAMES}
    assert batches["cont-last-50k"] == batches["main"] == batches["cont"] == 4
    assert batches["cont-0.9m-last-300k"] == 1


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
