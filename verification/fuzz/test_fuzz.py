"""The short fuzzing run: hypothesis spoils a valid file of every kind; kept beside it, what broke a
reader before.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vaiom.errors import UserError
from verification.fuzz.materials import make_materials
from verification.fuzz.run import execute
from verification.fuzz.targets import Target, targets

NAMES = (
    *("bar file", "bar manifest", "bi5 candles", "bi5 candles, records", "bi5 path", "bi5 ticks"),
    *(
        "bi5 ticks, records",
        "checkpoint",
        "checkpoint header, sealed",
        "class table",
        "corpus column",
    ),
    *(
        "corpus look ledger",
        "corpus manifest",
        "corpus manifest, sealed",
        "corpus state, sealed",
        "date",
    ),
    *(
        "dependence",
        "download ledger",
        "dukascopy csv",
        "evaluation",
        "events npz",
        "events parquet",
    ),
    *("forecast ledger", "forecast ledger, sealed", "histdata", "horizons"),
    *("horizons header, sealed", "metatrader"),
    *("packed corpus", "parquet table", "record", "run config", "run metrics", "setting", "span"),
    *(
        "splits",
        "stamps",
        "stored losses",
        "symbol",
        "table",
        "tokenizer, sealed",
        "training state",
        "truth",
        "zip",
    ),
)
SLOW = ("packed corpus", "corpus state, sealed", "checkpoint header, sealed", "evaluation")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    before = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("fuzz")
    make_materials(folder / "materials")
    yield targets(folder / "materials", folder / "scratch")
    torch.set_num_threads(before)


def test_every_reader_is_listed(known: dict[str, Target]) -> None:
    assert sorted(known) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_valid_file_is_accepted(known: dict[str, Target], name: str) -> None:
    """A target that refuses everything would prove nothing."""
    target = known[name]
    assert any(execute(target, seed) for seed in target.seeds)


@pytest.mark.parametrize("name", NAMES)
def test_a_spoiled_file_is_read_or_refused(known: dict[str, Target], name: str) -> None:
    target = known[name]

    @settings(
        max_examples=25 if name in SLOW else 100,
        database=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(st.randoms(use_true_random=False))
    def spoil(chance: random.Random) -> None:
        execute(target, target.mutate(target.seeds, chance))

    spoil()


@pytest.mark.parametrize(("name", "seed", "number"), [("parquet table", 1, 1459)])
def test_what_ended_the_process_is_refused(
    known: dict[str, Target], name: str, seed: int, number: int
) -> None:
    """Found by the long run, repeated by its number: a size that no machine has."""
    target = known[name]
    assert not execute(
        target, target.mutate(target.seeds, random.Random(f"{seed} {name} {number}"))
    )


def _with(seed: bytes, **changes: object) -> bytes:
    return json.dumps({**json.loads(seed), **changes}, indent=2).encode() + b"\n"


def _manifest(known: dict[str, Target], **changes: object) -> bytes:
    return _with(known["corpus manifest, sealed"].seeds[0], **changes)


DEEP = b"[" * 100_000
FAR = b"20190204 220000;1;1;1;1;1\n99991231 235900;1;1;1;1;1\n"

# What a reader once answered with a traceback, as a function of the seeds.
BROKE = {
    "a span of more hours than any calendar": ("span", lambda seed: b"9" * 40 + b"h"),
    "a span of too many digits to read": ("span", lambda seed: b"9" * 5_000 + b"h"),
    "stamps that a shift moves past the year 9999": ("histdata", lambda seed: FAR),
    "a carriage return inside a line": (
        "table",
        lambda seed: seed.replace(b"open,", b"open\rx,\r,", 1),
    ),
    "a log that is no UTF-8": ("run metrics", lambda seed: b"\xbf" + seed),
    "a log of numbers": ("run metrics", lambda seed: b"1\n2\n"),
    "a zip directory that points before the file": ("zip", lambda seed: seed[:40] + seed[44:]),
    "JSON deeper than the stack": ("bar manifest", lambda seed: DEEP),
    "a record deeper than the stack": ("record", lambda seed: DEEP),
    "TOML deeper than the stack": ("class table", lambda seed: b"a = " + DEEP),
    "a configuration deeper than the stack": ("run config", lambda seed: b"a = " + DEEP),
    "a look deeper than the stack": ("corpus look ledger", lambda seed: DEEP),
    "NaN in a manifest": ("corpus manifest", lambda seed: _with(seed, rows=float("nan"))),
    "a manifest of rows elsewhere": (
        "corpus manifest, sealed",
        lambda seed: _with(seed, folder="../../outside"),
    ),
    "a manifest without rows": ("corpus manifest, sealed", lambda seed: _with(seed, arrays={})),
    "a manifest with other types": (
        "corpus manifest, sealed",
        lambda seed: _with(seed, splits="2024", inputs=3),
    ),
    "a tokenizer that is a text": ("tokenizer, sealed", lambda seed: b'"x"\n'),
    "edges that fall": (
        "tokenizer, sealed",
        lambda seed: _with(seed, inner_edges={"return": [1, 0]}),
    ),
    "a class that is no word": ("tokenizer, sealed", lambda seed: _with(seed, classes=["FX", 3])),
    "a dependence of one asset twice": (
        "dependence",
        lambda seed: _with(seed, symbols=["EURUSD", "EURUSD"]),
    ),
    "a covariance that has no inverse": (
        "dependence",
        lambda seed: _with(seed, covariance=[[1.0, 0.4], [0.4, 1e308]]),
    ),
    "a state without an asset": ("corpus state, sealed", lambda seed: b"{}"),
    "a model of a billion layers": (
        "checkpoint header, sealed",
        lambda seed: _with(seed, model={**json.loads(seed)["model"], "num_layers": 10**9}),
    ),
    "a model that is a text": ("checkpoint header, sealed", lambda seed: _with(seed, model="x")),
    "a header deeper than the stack": ("checkpoint header, sealed", lambda seed: DEEP),
}


@pytest.mark.parametrize("case", BROKE)
def test_what_broke_a_reader_is_refused(known: dict[str, Target], case: str) -> None:
    name, spoil = BROKE[case]
    target = known[name]
    with pytest.raises(UserError):
        target.parse(spoil(target.seeds[0]))


def test_an_archive_that_claims_more_than_it_holds_takes_no_memory(
    known: dict[str, Target], tmp_path: Path
) -> None:
    """NumPy's reader would reserve a terabyte for this header of a hundred bytes."""
    import io
    import zipfile

    import numpy as np

    from vaiom.files import BAD_ARRAYS, read_arrays

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 37,)}
    )
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive:
        archive.writestr("bits_model.npy", header.getvalue())
    with pytest.raises(BAD_ARRAYS, match="does not hold"):
        read_arrays(tmp_path / "bomb.npz")
