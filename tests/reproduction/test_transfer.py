"""Each asset left out once: records of what a model is worth on it, and the table that is made of
them.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from reproduction.transfer import PAGE_NAME, main, write_transfer_page
from strategies import random_bars
from vaiom.corpus.store import open_corpus
from vaiom.files import read_json
from vaiom.market.folder import write_symbol
from vaiom.model.checkpoint import load_model

TINY = (
    *(
        "steps=4",
        "validate_every=2",
        "log_every=2",
        "warmup_steps=1",
        "width=12",
        "num_heads=2",
        "num_layers=1",
    ),
    *("context=16", "attention_window=8", "micro_batch=4", "dropout=0", "stochastic_depth=0"),
)


def test_an_asset_is_scored_unknown_adapted_and_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vaiom.experiments.adapt.SHORT",
        {"steps": 2, "validate_every": 2, "warmup_steps": 0, "teachers": 0},
    )
    for seed, symbol in enumerate(("EURUSD", "GBPUSD", "XAUUSD")):
        write_symbol(tmp_path / "bars", symbol, random_bars(11_000, seed, datetime(2023, 12, 1)))
    words = [
        "--bars",
        str(tmp_path / "bars"),
        "--out",
        str(tmp_path / "out"),
        "--asset",
        "EURUSD",
        "--device",
        "cpu",
    ]
    words += [word for setting in TINY for word in ("--set", setting)]
    main(words)
    file = tmp_path / "out" / "records" / "EURUSD-s17.json"
    record = read_json(file)
    source = load_model(tmp_path / "out" / "EURUSD-s17" / "unknown")
    assert source.tokenizer.symbols == ("GBPUSD", "XAUUSD")
    assert record["settings"]["train"]["teachers"] == 0
    assert list(open_corpus(tmp_path / "out" / "EURUSD-s17" / "corpus").asset_slices) == ["EURUSD"]
    for split in ("validation", "test-h1"):
        found = record["scored"][split]
        names = {"frequency", "hour_of_week", "unknown", "adapted", "from_nothing"}
        assert set(found["bits"]) == names
        gain = found["gains"]["adapted"]["unknown"]
        assert gain["gain_bits"] == pytest.approx(
            found["bits"]["unknown"] - found["bits"]["adapted"]
        )
        assert gain["interval"][0] <= gain["gain_bits"] <= gain["interval"][1]
    before = file.stat().st_mtime_ns
    main(words)  # finished work is reused
    assert file.stat().st_mtime_ns == before
    write_transfer_page(tmp_path / "out" / "records", tmp_path)
    page = (tmp_path / PAGE_NAME).read_text()
    assert f"{record['scored']['validation']['bits']['unknown']:.4f}" in page
    assert page.count("| EURUSD ") == 2


def test_the_page_in_the_docs_is_that_of_the_records(tmp_path: Path) -> None:
    docs = Path(__file__).parents[2] / "docs"
    write_transfer_page(docs / "results" / "transfer", tmp_path)
    assert (tmp_path / PAGE_NAME).read_text() == (docs / PAGE_NAME).read_text()
