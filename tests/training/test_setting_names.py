"""Settings of version 0.1 under their old names: read everywhere, and never a hash or a record's
key changes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reproduction.records import ALL_TESTS, CORPUS, RUN, WALK, YEAR, Record, read_record
from reproduction.tasks import Task
from vaiom.codec import from_json, to_json
from vaiom.errors import ConfigError
from vaiom.experiments.registry import experiment
from vaiom.model.checkpoint import Provenance
from vaiom.model.config import ModelConfig
from vaiom.training.experiment import Experiment, TrainConfig

RESULTS = Path(__file__).parents[2] / "docs" / "results"
GONE = {"norm=rms", "feed_forward=swiglu", "normed_keys=true"}


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [read_record(file) for file in sorted((RESULTS / "records").glob("*.json"))]


def test_no_record_changes_its_key(records: list[Record]) -> None:
    corpora = {each.timeframe: each.facts["sha256"] for each in records if each.kind == CORPUS}
    trained = [each for each in records if each.kind in (RUN, WALK)]
    assert len(trained) > 50

    def task(record: Record) -> Task:
        return Task(
            kind=record.kind,
            timeframe=record.timeframe,
            corpus_sha256=corpora[record.timeframe],
            experiment=from_json(Experiment, record.settings),
            year=record.year,
            splits=tuple(split for split in record.scored if split not in (ALL_TESTS, YEAR)),
        )

    assert {each.key: task(each).key for each in trained} == {
        each.key: each.key for each in trained
    }


def test_a_hash_is_over_the_old_names(records: list[Record]) -> None:
    stored = next(each for each in records if (each.kind, each.name) == (RUN, "best-512"))
    read = from_json(Experiment, stored.settings)
    assert (read.train.ema_decay, read.model.stochastic_depth) == (0.998, 0.2)
    assert {key: read.identity()["model"][key] for key in ("drop_layer", "norm")} == {
        "drop_layer": 0.2,
        "norm": "layer",
    }
    assert (
        read.sha256
        == replace(experiment("best-512"), about="").with_changes(seed=stored.seed).sha256
    )
    assert from_json(Experiment, to_json(read)).sha256 == read.sha256


@pytest.mark.parametrize(
    ("version", "name"), [("0.1.0", "best-512"), ("0.2.0", "best"), ("0.10.0", "best")]
)
def test_what_version_0_1_called_best_is_another_experiment_now(version: str, name: str) -> None:
    stored = {"kind": RUN, "key": "", "name": "best", "timeframe": "1h", "vaiom_version": version}
    assert from_json(Record, stored).name == name


def test_the_search_is_read_and_runs_but_for_what_is_gone() -> None:
    gone = 0
    for number, found in enumerate(json.loads((RESULTS / "search.json").read_text())):
        for run in found["runs"]:
            settings = [*found["common"], *run["settings"]]
            if GONE & set(settings):
                gone += 1
                with pytest.raises(ConfigError, match="a setting that is gone"):
                    experiment("main").with_settings(settings)
            elif not any("fields=" in each or "drop_field" in each for each in settings):
                changed = experiment(found.get("experiment", "main")).with_settings(settings)
                assert changed.train.ema_decay > 0, number
    assert gone


def test_old_names_on_the_command_line() -> None:
    main = experiment("main")
    renamed = main.with_settings(
        ["average=0.9", "drop_layer=0.1", "norm=layer", "normed_keys=false"]
    )
    assert renamed == main.with_settings(["ema_decay=0.9", "stochastic_depth=0.1"])
    with pytest.raises(ConfigError, match="norm can only be layer"):
        main.with_settings(["norm=rms"])


def test_old_names_in_checkpoints_and_states() -> None:
    value = {"norm": "layer", "feed_forward": "gelu", "normed_keys": False, "drop_layer": 0.2}
    assert from_json(ModelConfig, value) == ModelConfig(stochastic_depth=0.2)
    assert from_json(TrainConfig, {"average": 0.5}) == TrainConfig(ema_decay=0.5)
    with pytest.raises(ValueError, match="feed_forward can only be gelu"):
        from_json(ModelConfig, {**value, "feed_forward": "swiglu"})
    told = {
        "vaiom_version": "0.1.0",
        "corpus_sha256": "",
        "inputs": [],
        "splits": {},
        "experiment": "best",
    }
    told |= {"train": {"average": 0.5}, "seed": 1, "step": 2, "validation_bits": 3.0}
    assert from_json(Provenance, told).train == {"ema_decay": 0.5}
