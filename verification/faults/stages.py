"""The stages of the work as commands that can be broken off: what each needs, how it is started,
how it goes on.

Enters: a folder of inputs, made once by `make_inputs`. Leaves: stages, each with what an
undisturbed run must equal.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from evaluation.simulated_market import TINY_SPLITS
from market.feed_server import FeedServer, made_up_feed
from strategies import random_bars
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.pack import pack
from vaiom.corpus.store import open_corpus
from vaiom.files import sha256_of
from vaiom.market.folder import read_bars, write_symbol
from vaiom.model.checkpoint import load_checkpoint, read_tensors
from vaiom.training.step import FORMAT, FORMAT_VERSION
from verification.faults.commands import contents

SYMBOLS = ("EURUSD", "XAUUSD")
ROWS, LATER_ROWS = 2_400, 2_700
LEDGER = (
    b'{"when": "2024-01-01T00:00:00+00:00", "split": "test-h1", "run": "before", '
    b'"checkpoint_sha256": "ab", "corpus_sha256": "cd", "num_events": 1}\n'
)
FEED_DAYS = 9
SETTINGS = {
    **{
        "num_layers": 1,
        "num_heads": 2,
        "width": 16,
        "context": 16,
        "micro_batch": 4,
        "num_micro_batches": 2,
    },
    **{"steps": 40, "validate_every": 5, "log_every": 2, "precision": "fp32"},
}

Contents = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One command that is killed, and how its work is finished."""

    start: list[str]
    """Its arguments; OUT stands for the folder that it writes to."""
    go_on: list[str] = field(default_factory=list)
    """What a user adds to go on, where the same command alone would refuse."""
    before: Callable[[Path], None] = lambda out: None
    """Puts into the folder what is there before."""
    whole: Callable[[Path], object] = lambda out: None
    """Raises where anything that can be seen is not whole, at any moment."""
    result: Callable[[Path], Contents] = contents
    weight: int = 1
    """Its part of the kills."""

    def arguments(self, out: Path, again: bool) -> list[str]:
        words = [*self.start, *(self.go_on if again else [])]
        return [word.replace("OUT", str(out)) for word in words]


def make_inputs(folder: Path) -> Path:
    """CSV files, bars, later bars, a corpus and the same packed."""
    for seed, symbol in enumerate(SYMBOLS):
        later = random_bars(LATER_ROWS, seed)
        write_symbol(folder / "later", symbol, later)
        write_symbol(folder / "bars", symbol, later.head(ROWS))
        (folder / "csv").mkdir(exist_ok=True)
        later.write_csv(folder / "csv" / f"{symbol}.csv", datetime_format="%Y-%m-%d %H:%M")
    build_corpus(folder / "bars", folder / "corpus", CorpusConfig(splits=TINY_SPLITS))
    pack(folder / "corpus", folder / "corpus.zip")
    return folder


def stages(inputs: Path, server: FeedServer) -> dict[str, Stage]:
    """All that are commands with an end; serving has none and is tormented in `serving`."""
    server.files = made_up_feed("EURUSD", date(2019, 2, 4), FEED_DAYS)
    splits = TINY_SPLITS
    boundaries = [
        *(
            "--train-end",
            f"{splits.train_end:%Y-%m-%d}",
            "--validation",
            _interval(splits.validation),
        ),
        *(
            "--test",
            ",".join(_interval(test) for test in splits.tests),
            "--seal",
            f"{splits.seal:%Y-%m-%d}",
        ),
    ]
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    corpus = str(inputs / "corpus")
    build = ["corpus", "build", str(inputs / "bars"), "--out", "OUT/corpus", *boundaries]
    fetch = [
        "data",
        "download",
        "EURUSD",
        "--from",
        "2019-02-04",
        "--to",
        f"2019-02-{4 + FEED_DAYS:02d}",
    ]
    train = ["train", "--experiment", "demo", "--device", "cpu", *settings, "--out", "OUT/run"]
    reproduce = ["reproduce", "metadata", "--seed", "17", "--device", "cpu", "--out", "OUT/tables"]
    return {
        "import": Stage(
            start=["data", "import", str(inputs / "csv"), "--out", "OUT/bars"],
            go_on=["--replace"],
            whole=_whole_bars,
            weight=3,
        ),
        "import into a folder": Stage(
            start=["data", "import", str(inputs / "csv" / "XAUUSD.csv"), "--out", "OUT/bars"],
            go_on=["--replace"],
            before=lambda out: _copy(
                inputs / "bars" / "EURUSD.parquet", out / "bars" / "EURUSD.parquet"
            ),
            whole=_whole_bars,
            weight=3,
        ),
        "download": Stage(
            start=[*fetch, "--base-url", server.url, "--out", "OUT/bars"],
            result=_downloaded,
            whole=_whole_bars,
            weight=3,
        ),
        "resample": Stage(
            start=["data", "resample", str(inputs / "bars"), "--to", "4h", "--out", "OUT/bars"],
            go_on=["--overwrite"],
            whole=_whole_bars,
            weight=2,
        ),
        "corpus build": Stage(start=build, go_on=["--overwrite"], whole=_whole_corpus, weight=4),
        "corpus rebuild": Stage(
            start=[*build, "--overwrite"],
            before=lambda out: _old_corpus(inputs, out),
            whole=_whole_corpus,
            weight=4,
        ),
        "append": Stage(
            start=["corpus", "append", "OUT/corpus", str(inputs / "later")],
            before=lambda out: _old_corpus(inputs, out),
            whole=_whole_corpus,
            weight=4,
        ),
        "pack": Stage(start=["corpus", "pack", corpus, "OUT/corpus.zip"], weight=2),
        "unpack": Stage(
            start=["corpus", "unpack", str(inputs / "corpus.zip"), "OUT/corpus"],
            go_on=["--overwrite"],
            whole=_whole_corpus,
            weight=2,
        ),
        "training": Stage(
            start=[*train, corpus], go_on=["--resume"], whole=_whole_run, result=_trained, weight=4
        ),
        "reproduction": Stage(
            start=[*reproduce, "--corpus", corpus, *settings],
            whole=_whole_records,
            result=_reproduced,
            weight=2,
        ),
    }


def _interval(edges: tuple[Any, Any]) -> str:
    return f"{edges[0]:%Y-%m-%d}:{edges[1]:%Y-%m-%d}"


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True)
    shutil.copyfile(source, target)


def _old_corpus(inputs: Path, out: Path) -> None:
    shutil.copytree(inputs / "corpus", out / "corpus")
    (out / "corpus" / "ledger.jsonl").write_bytes(LEDGER)


def _whole_bars(out: Path) -> object:
    return [read_bars(file) for file in (out / "bars").glob("[!.]*.parquet")]


def _whole_corpus(out: Path) -> object:
    return open_corpus(out / "corpus") if (out / "corpus").exists() else None


def _whole_run(out: Path) -> object:
    files = [
        *(out / "run").glob("best.safetensors"),
        *(out / "run" / "checkpoints").glob("step-*.safetensors"),
    ]
    return [load_checkpoint(file) for file in files if ".state." not in file.name]


def _whole_records(out: Path) -> object:
    return [
        json.loads(file.read_bytes()) for file in (out / "tables" / "records").glob("[!.]*.json")
    ]


def _downloaded(out: Path) -> Contents:
    """The ledger by its last line about each day: days may finish in any order, and be asked for
    twice.
    """
    files: Contents = contents(out)
    for line in files.pop("bars/raw/ledger.jsonl").splitlines():
        try:
            files[f"ledger {json.loads(line)['day']}"] = line
        except ValueError:
            continue  # torn by a kill, and written again
    return files


def _trained(out: Path) -> Contents:
    """All files; of metrics and states, which count the seconds, all but those."""
    return _timeless(contents(out), out)


def _reproduced(out: Path) -> Contents:
    """As training; and a look at a test split that was broken off is a look more."""
    return _timeless(contents(out), out)


def _timeless(files: dict[str, bytes], out: Path) -> Contents:
    result: Contents = {}
    for name, data in files.items():
        if name.endswith(".state.safetensors"):
            header, _ = read_tensors(out / name, FORMAT, FORMAT_VERSION)
            result[name] = header["tensors_sha256"]
        elif name.endswith("metrics.jsonl"):
            result[name] = [_without(json.loads(line)) for line in data.splitlines()]
        elif name.endswith(".json"):
            result[name] = _without(json.loads(data))
        elif name.endswith((".md", ".svg")):
            result[name] = True  # tables of the records, which are compared themselves
        else:
            result[name] = sha256_of(data)
    return result


def _without(value: Any) -> Any:
    """Without what counts seconds and looks, or names a folder or the ledger, which has the times
    of looks.
    """
    if isinstance(value, dict):
        other = ("seconds", "looks", "ledger_sha256", "run", "corpus")
        return {key: _without(each) for key, each in value.items() if key not in other}
    return [_without(each) for each in value] if isinstance(value, list) else value
