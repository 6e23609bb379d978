"""The commands on real bars and on real files of other tools."""

from __future__ import annotations

import shutil
from pathlib import Path

from command_line import Vaiom

HIDDEN = "hidden_higher_timeframe_bar"


def test_a_corpus_of_real_bars(vaiom: Vaiom, shared_data: Path, tmp_path: Path) -> None:
    answer = vaiom(
        "corpus", "build", shared_data / "bars_1h", "--out", tmp_path / "corpus", "--json"
    ).json()
    assert answer["rows"] == 1_267_826
    events = answer["events"]
    assert (events["train"], events["validation"], events["test-h1"]) == (1_128_594, 33_878, 33_174)
    rows = sum(file.stat().st_size for file in tmp_path.rglob("*.npy")) / answer["rows"]
    assert rows <= 64


def test_real_bars_have_few_findings_and_none_grave(
    vaiom: Vaiom, shared_data: Path, tmp_path: Path
) -> None:
    for symbol in ("EURUSD", "USDJPY", "XAUUSD"):
        shutil.copy(shared_data / "bars_1h" / f"{symbol}.parquet", tmp_path)
    answer = vaiom("data", "check", tmp_path, "--json").json()
    rows = sum(asset["rows"] for asset in answer["assets"])
    assert rows > 300_000
    found = answer["findings"]
    assert {finding["severity"] for finding in found} == {"warning", "info"}
    assert not {"price_scale", "other_grid", "few_train_events"} & {
        finding["kind"] for finding in found
    }
    warned = sum(finding["count"] for finding in found if finding["severity"] == "warning")
    assert warned < 1e-4 * rows
    assert {row["split"] for row in answer["splits"]} == {
        "train",
        "buffer",
        "validation",
        "test-h1",
    }


def test_the_days_hidden_in_a_metatrader_export_are_found(
    vaiom: Vaiom, shared_data: Path, tmp_path: Path
) -> None:
    file = shared_data / "raw" / "mt5_export_EURUSD_H1_head8000.csv"
    assert vaiom("data", "import", file, "--out", tmp_path / "bars").code == 0
    answer = vaiom("data", "check", tmp_path / "bars", "--json").json()
    [found] = [finding for finding in answer["findings"] if finding["kind"] == HIDDEN]
    assert found["symbol"] == "EURUSD"
    assert found["severity"] == "error"
    assert found["count"] >= 320
    assert found["examples"]


def test_stamps_with_an_offset_need_a_word(vaiom: Vaiom, shared_data: Path, tmp_path: Path) -> None:
    file = shared_data / "raw" / "ork-ad_USDCNH_1h.csv"
    refused = vaiom("data", "import", file, "--out", tmp_path / "bars")
    assert refused.code == 2
    assert "--utc" in refused.err
    assert list(tmp_path.iterdir()) == []
    answer = vaiom("data", "import", file, "--utc", "--out", tmp_path / "bars", "--json").json()
    assert answer["symbols"]["USDCNH"]["clock"] == {"shift": "0min", "utc": True}
