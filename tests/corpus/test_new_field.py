"""A field is one entry of the table: corpus, model, live rows, the proof of causality and the docs
follow it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import vaiom
from strategies import random_bars
from vaiom.corpus.build import build_corpus
from vaiom.features.fields import CONT_FIELDS, EXTRA_FIELDS, FIELDS, SIGNED_FIELDS
from vaiom.market.folder import write_symbol

PLACE = "    # Of the same closed bar in the other assets.\n"
ENTRY = """    _extra("body_z", "Close over Open", lambda s: (s.log_ret - s.log_gap) / s.sigma20_prev, signed=True),\n"""
TESTS = Path(__file__).parents[1]
FOLLOWED_BY = (
    "features/test_causality.py::test_own_extra_fields_do_not_see_the_future",
    "features/test_extra.py::test_a_history_in_pieces_gives_the_same_bits",
    "forecast/test_live_row.py::test_slots_of_finer_bars",
)
CODE = """
import os

import numpy as np
import pytest

from strategies import random_bars
from vaiom.corpus.build import build_corpus
from vaiom.corpus.store import open_corpus
from vaiom.errors import DataError
from vaiom.features.fields import OWN_FIELDS, SIGNED_FIELDS
from vaiom.features.rows import BarFeatures, bars_of
from vaiom.forecast.bars import parse_bar
from vaiom.market.folder import write_symbol
from vaiom.model.config import ModelConfig


def test_the_new_field(tmp_path):
    bars = random_bars(3000)
    write_symbol(tmp_path / "bars", "EURUSD", bars)
    build_corpus(tmp_path / "bars", tmp_path / "corpus")
    corpus = open_corpus(tmp_path / "corpus")
    model = ModelConfig(input="cont", fields=("ret_z", "body_z"))
    read = corpus.inputs(model)[:, 1]
    close, open_ = bars["Close"].to_numpy(), bars["Open"].to_numpy()
    expected = np.log(close[1:] / open_[1:]) / corpus.sigma20[:-1]
    good = ~corpus.mask_any[1:]
    assert good.sum() > 1000
    np.testing.assert_allclose(read[1:][good], expected[good], rtol=1e-3, atol=1e-6)

    maker = BarFeatures(model.input_fields, corpus.edges, "1h")
    _, state = maker(bars_of(bars[:-1]))
    row, _ = maker(parse_bar(bars.row(-1, named=True), "EURUSD"), state)
    assert row["body_z"][0] == corpus.columns["body_z"][-1] != 0
    assert "body_z" in OWN_FIELDS and "body_z" in SIGNED_FIELDS

    older = open_corpus(os.environ["OLDER_CORPUS"])
    assert len(older.inputs(ModelConfig(input="cont", fields=("ret_z", "range_z"))))
    with pytest.raises(DataError, match="no column body_z"):
        older.inputs(model)
"""


def test_one_entry_of_the_table_is_enough(tmp_path: Path) -> None:
    write_symbol(tmp_path / "bars", "EURUSD", random_bars(3000))
    build_corpus(tmp_path / "bars", tmp_path / "older")
    source = tmp_path / "src"
    shutil.copytree(
        Path(vaiom.__file__).parent, source / "vaiom", ignore=shutil.ignore_patterns("__pycache__")
    )
    table = source / "vaiom" / "features" / "fields.py"
    assert table.read_text().count(PLACE) == 1
    table.write_text(table.read_text().replace(PLACE, ENTRY + PLACE))
    paths = os.pathsep.join(map(str, (source, TESTS, TESTS.parent)))
    environment = {**os.environ, "PYTHONPATH": paths, "TZ": "UTC"}
    environment["OLDER_CORPUS"] = str(tmp_path / "older")
    (tmp_path / "test_body.py").write_text(CODE)
    tests = [str(tmp_path / "test_body.py"), *(str(TESTS / name) for name in FOLLOWED_BY)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *tests,
    ]
    done = subprocess.run(
        command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_every_field_has_one_entry_and_one_line_of_the_docs() -> None:
    assert len({(field.kind, field.name) for field in FIELDS}) == len(FIELDS)
    assert not set(EXTRA_FIELDS) & set(CONT_FIELDS)
    assert set(SIGNED_FIELDS) == {"ret_z", "gap_z", "close_location", "slot_surprise", "usd_factor"}
    page = (TESTS.parent / "docs" / "extra-fields.md").read_text()
    for field in FIELDS:
        if field.kind == "extra":
            assert f"| `{field.name}` | {field.doc} |" in page
