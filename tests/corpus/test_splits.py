from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

from vaiom.corpus.splits import NO_TARGET_CODE, SplitConfig
from vaiom.errors import ConfigError


def split_of(moment: str, config: SplitConfig | None = None) -> str:
    config = config or SplitConfig()
    return config.names[config.codes(np.array([moment], "datetime64[s]"))[0]]


@pytest.mark.parametrize(
    ("moment", "split"),
    [
        ("2023-12-31T23:59:59", "train"),
        ("2024-01-01T00:00:00", "buffer"),
        ("2024-06-30T23:00:00", "buffer"),
        ("2024-07-01T00:00:00", "validation"),
        ("2024-12-31T23:00:00", "validation"),
        ("2025-01-01T00:00:00", "test-h1"),
        ("2025-07-01T00:00:00", "test-h2"),
        ("2025-12-31T23:00:00", "test-h2"),
        ("2026-01-01T00:00:00", "sealed"),
        ("2031-01-01T00:00:00", "sealed"),
    ],
)
def test_boundaries_belong_to_what_follows_them(moment: str, split: str) -> None:
    assert split_of(moment) == split


def test_a_row_without_a_target_has_no_split() -> None:
    assert SplitConfig().codes(np.array(["NaT"], "datetime64[s]"))[0] == NO_TARGET_CODE


def test_all_boundaries_move_together() -> None:
    moved = SplitConfig().shifted_to(datetime(2015, 7, 1))
    assert moved.validation == (datetime(2016, 1, 1), datetime(2016, 7, 1))
    assert moved.tests[1] == (datetime(2017, 1, 1), datetime(2017, 7, 1))
    assert moved.seal == datetime(2017, 7, 1)
    with pytest.raises(ConfigError, match="start of a month"):
        SplitConfig().shifted_to(datetime(2015, 7, 2))


def test_a_gap_between_tests_is_buffer() -> None:
    config = SplitConfig(
        tests=((datetime(2025, 2, 1), datetime(2025, 3, 1)),), seal=datetime(2025, 6, 1)
    )
    assert split_of("2025-01-15", config) == "buffer"
    assert split_of("2025-04-15", config) == "buffer"
    assert split_of("2025-06-01", config) == "sealed"


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("follow each other", {"train_end": datetime(2024, 8, 1)}),
        ("empty", {"validation": (datetime(2024, 7, 1), datetime(2024, 7, 1))}),
        ("empty", {"tests": ((datetime(2025, 2, 1), datetime(2025, 2, 1)),)}),
    ],
)
def test_disorder_is_refused(words: str, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=words):
        SplitConfig(**change)


def test_json_round_trip() -> None:
    config = SplitConfig().shifted_to(datetime(2020, 1, 1))
    assert SplitConfig.from_json(config.to_json()) == config


def test_the_papers_boundaries_where_the_bars_reach_around_them() -> None:
    first, last = datetime(2021, 12, 31), datetime(2025, 5, 31)
    assert SplitConfig.covered_by(first, last) == SplitConfig()
    for other in ((first + timedelta(hours=1), last), (first, last - timedelta(hours=1))):
        assert SplitConfig.covered_by(*other) != SplitConfig()


@pytest.mark.parametrize("last", [datetime(2020, 4, 9), datetime(2020, 4, 9, 23, 59, 1, 7)])
def test_other_bars_are_shared_out_in_whole_days(last: datetime) -> None:
    """A hundred days: 70 of Train, 5 of buffer, 10 of Validation, 15 of test."""
    assert SplitConfig.covered_by(datetime(2020, 1, 1), last) == SplitConfig(
        train_end=datetime(2020, 3, 11),
        validation=(datetime(2020, 3, 16), datetime(2020, 3, 26)),
        tests=((datetime(2020, 3, 26), datetime(2020, 4, 10)),),
        seal=datetime(2020, 4, 10),
    )


def test_too_few_days_to_share_out() -> None:
    with pytest.raises(ConfigError, match="too few days"):
        SplitConfig.covered_by(datetime(2020, 1, 1), datetime(2020, 1, 2))


def test_boundaries_as_options_and_names() -> None:
    config = SplitConfig()
    assert config.to_options() == (
        "--train-end 2024-01-01 --validation 2024-07-01:2025-01-01 "
        "--test 2025-01-01:2025-07-01,2025-07-01:2026-01-01 --seal 2026-01-01"
    )
    assert config.names == ("train", "buffer", "validation", "test-h1", "test-h2", "sealed")
    assert [config.code(name) for name in config.names] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ConfigError, match="unknown split"):
        config.code("test-h3")
