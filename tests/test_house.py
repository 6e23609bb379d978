"""The house stays in order: rooms import only to their left, the light rooms stay light, and the
code does not get denser.
"""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vaiom
from vaiom.errors import EXTRAS

PACKAGE = Path(vaiom.__file__).parent
ROOT = Path(__file__).parents[1]
PYPROJECT = ROOT / "pyproject.toml"
HOUSE = runpy.run_path(str(ROOT / "tools" / "house.py"))
ROOMS = [
    "market",
    "simulation",
    "features",
    "distribution",
    "corpus",
    "model",
    "training",
    "baselines",
    "evaluation",
    "forecast",
    "experiments",
    "report",
    "auditing",
    "serve",
    "cli",
]  # in the order data flows
COMMON = {"errors", "files", "codec", "run", "__init__", "__main__"}


def imports_of(path: Path) -> set[str]:
    """Rooms of this package that a file imports anywhere, lazily or not."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{path}: relative import"
            names = (
                [node.module]
                if node.module != "vaiom"
                else [f"vaiom.{alias.name}" for alias in node.names]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("vaiom.")}
    return rooms & set(ROOMS)


def test_every_folder_is_a_known_room() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/*.py")}
    assert folders <= set(ROOMS)
    files = {path.stem for path in PACKAGE.glob("*.py")}
    assert files <= COMMON


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_rooms_import_only_to_their_left(path: Path) -> None:
    parts = path.relative_to(PACKAGE).parts
    room = parts[0] if len(parts) > 1 else None
    allowed = set() if room is None else set(ROOMS[: ROOMS.index(room) + 1])
    if path.name in ("__init__.py", "__main__.py") and room is None:
        allowed = set(ROOMS)  # public names, loaded lazily; the command
    assert imports_of(path) <= allowed


MOST = {"per_line": 4.83, "per_statement": 6.4, "packed": 20}
"""Of `src` as `tools/house.py` measures it. These numbers only ever fall."""
LEAST_DOC_WORDS = 40.0
"""Words of docstrings for each hundred expressions of `src`; this one only rises."""
LONGEST_FILE = 424
SEVERAL_ROOMS = {"__init__.py"}
"""Names of classes and files that may stand in several rooms."""


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return HOUSE["measure"]()


@pytest.mark.parametrize("figure", MOST)
def test_the_code_does_not_get_denser(measured: dict[str, Any], figure: str) -> None:
    assert measured["folders"]["src"][figure] <= MOST[figure]


def test_functions_and_classes_say_what_they_do(measured: dict[str, Any]) -> None:
    assert measured["folders"]["src"]["doc_words_per_100"] >= LEAST_DOC_WORDS


def test_no_file_is_long(measured: dict[str, Any]) -> None:
    assert measured["longest_file"] <= LONGEST_FILE


def test_one_name_means_one_thing(measured: dict[str, Any]) -> None:
    assert set(measured["names_in_several_rooms"]) <= SEVERAL_ROOMS


SAMPLE = '''"""Three words here."""

pair, other = (
    1,
    2,
)  # packed


def double(value):
    """Twice."""
    return 2 * value
'''


@pytest.mark.parametrize("text", [SAMPLE, SAMPLE.replace("(\n    1,\n    2,\n)", "1, 2")])
def test_density_does_not_depend_on_how_lines_are_wrapped(tmp_path: Path, text: str) -> None:
    file = tmp_path / "sample.py"
    file.write_text(text)
    [counts] = HOUSE["count_files"]([file]).values()
    expected = {"files": 1, "code_lines": 3, "expressions": 11, "statements": 3}
    assert counts.to_json().items() >= {**expected, "doc_words": 4, "packed": 1}.items()
    assert counts.per_line == pytest.approx(11 / 3)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)


HEAVY = (
    "polars",
    "pyarrow",
    "pandas",
    "lightgbm",
    "arch",
    "scipy",
    "matplotlib",
    "torch",
    "fastapi",
    "pydantic",
)


def test_importing_the_package_and_the_command_line_is_light() -> None:
    code = f"import sys, vaiom, vaiom.cli.main; print([m for m in {HEAVY} if m in sys.modules])"
    result = run_python(code)
    assert result.stdout.strip() == "[]", result.stderr


def test_a_corpus_opens_with_numpy_alone(tmp_path: Path) -> None:
    from strategies import random_bars
    from vaiom.corpus.build import build_corpus
    from vaiom.market.folder import write_symbol

    write_symbol(tmp_path / "bars", "EURUSD", random_bars(3000))
    build_corpus(tmp_path / "bars", tmp_path / "corpus")
    code = f"""
import sys
for name in {HEAVY}:
    sys.modules[name] = None
import vaiom.evaluation.scores, vaiom.evaluation.calibration, vaiom.simulation.oracle
import vaiom.baselines.counts
from vaiom.corpus.split_quality import split_quality
from vaiom.corpus.store import open_corpus
from vaiom.corpus.pack import pack, unpack
corpus = open_corpus({str(tmp_path / "corpus")!r})
print(corpus.cont.shape, corpus.disc.shape, corpus.extra.shape)
print(len(corpus.endpoints("train")), len(split_quality(corpus)))
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("(3000, 25) (3000, 15) (3000, 14)")


def test_a_reproduction_runs_without_dataframes_trees_and_services(tmp_path: Path) -> None:
    from datetime import datetime

    from strategies import random_bars
    from vaiom.corpus.build import CorpusConfig, build_corpus
    from vaiom.corpus.splits import SplitConfig
    from vaiom.market.folder import write_symbol

    # As the paper's, but with months for half-years, and the year 2024 to walk.
    new_year = datetime(2025, 1, 1)
    months = {
        "validation": (datetime(2024, 11, 1), new_year),
        "tests": ((new_year, datetime(2025, 2, 15)),),
    }
    write_symbol(tmp_path / "bars", "EURUSD", random_bars(45_000, start=datetime(2020, 1, 1)))
    build_corpus(tmp_path / "bars", tmp_path / "corpus", CorpusConfig(splits=SplitConfig(**months)))
    blocked = (
        *(name for name in HEAVY if name not in ("scipy", "matplotlib", "torch")),
        "ray",
        "uvicorn",
    )
    settings = {
        "steps": 1,
        "width": 8,
        "num_heads": 1,
        "num_layers": 1,
        "micro_batch": 2,
        "context": 8,
    }
    changes = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    code = f"""
import sys
for name in {blocked}:
    sys.modules[name] = None
import torch
torch.set_num_threads(1)
from reproduction.__main__ import main
tables = ["main-test", "walk-forward", "splits"]
where = ["--corpus", {str(tmp_path / "corpus")!r}, "--out", {str(tmp_path / "out")!r}]
main([*tables, *where, "--budget", "fast", "--device", "cpu", *{changes}])
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "out" / "reproduction.md").read_text()
    assert "## Main model, 2025H1" in page
    assert "## Walk-forward" in page
    assert (tmp_path / "out" / "walk-forward.svg").is_file()


def test_a_forecast_needs_neither_torch_nor_what_else_trains_and_draws(tmp_path: Path) -> None:
    """From text and from Parquet, of the next bar and of more; what cannot be had without them
    names its extra.
    """
    from strategies import random_bars
    from vaiom.market.folder import read_bars, write_symbol

    write_symbol(tmp_path / "bars", "EURUSD", random_bars(1_100))
    bars = read_bars(tmp_path / "bars")["EURUSD"]
    bars.write_csv(tmp_path / "EURUSD.csv")
    missing = tuple(library for libraries in EXTRAS.values() for library in libraries)
    code = f"""
import sys
sys.modules.update(dict.fromkeys({missing}))
import vaiom, json
from vaiom.cli.main import main
def run(*words):
    sys.argv = ["vaiom", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
run("forecast", {str(tmp_path / "EURUSD.csv")!r}, "--json")
print("----")
forecaster = vaiom.Forecaster.pretrained("fx-1h")
bars = vaiom.read_bars({str(tmp_path / "bars")!r})["EURUSD"]
history = forecaster.predict_all(bars, "EURUSD").probs[-3:]
print(json.dumps([forecaster.predict(bars, "EURUSD", horizon=4).probs.tolist(), history.tolist()]))
run("demo", "--out", {str(tmp_path / "demo")!r})
"""
    said = run_python(code)
    assert said.returncode == 2, said.stderr
    assert (
        "this needs torch, which is not installed\n  try:      pip install 'vaiom[train]'"
        in said.stderr
    )
    assert not (tmp_path / "demo").exists()
    answer, more = said.stdout.split("----")
    full = vaiom.Forecaster.pretrained("fx-1h")
    assert json.loads(answer)["model"]["engine"] == "numpy"
    assert full.backend.name == "torch"
    [one] = json.loads(answer)["forecasts"]
    further, history = json.loads(more)
    np.testing.assert_allclose(one["probs"], full.predict(bars, "EURUSD").probs, atol=1e-6, rtol=0)
    np.testing.assert_allclose(
        further, full.predict(bars, "EURUSD", horizon=4).probs, atol=1e-6, rtol=0
    )
    np.testing.assert_allclose(
        history, full.predict_all(bars, "EURUSD").probs[-3:], atol=1e-6, rtol=0
    )


def test_commands_of_few_forecasts_leave_torch_alone(tmp_path: Path) -> None:
    """It takes longer to import than they take: they answer by NumPy, as PyTorch does; a device has
    it back.
    """
    from strategies import random_bars
    from vaiom.forecast.backend import TOLERANCE
    from vaiom.market.folder import read_bars, write_symbol

    write_symbol(tmp_path / "bars", "EURUSD", random_bars(1_100))
    bars = read_bars(tmp_path / "bars")["EURUSD"]
    bars.write_csv(tmp_path / "EURUSD.csv")
    (tmp_path / "positions.csv").write_text("EURUSD,1000\n")
    where = f"--bars {tmp_path / 'bars'}"
    commands = [
        "models --json",
        f"forecast {tmp_path / 'EURUSD.csv'} --json",
        f"predict fx-1h {where} --json",
        f"risk fx-1h {where} --positions {tmp_path / 'positions.csv'} --json",
        f"predict fx-1h {where} --device cpu --json",
    ]
    code = f"""
import sys
from vaiom.cli.main import main
for words in {commands}:
    sys.argv = ["vaiom", *words.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code
    print("----", *(name for name in ("scipy.special", "torch") if name in sys.modules), "----")
"""
    said = run_python(code)
    assert said.returncode == 0, said.stderr
    models, no_1, file, no_2, folder, no_3, _, at_risk, by_torch, both, _ = said.stdout.split(
        "----"
    )
    assert [no_1, no_2, no_3, at_risk, both] == [
        " ",
        " ",
        " ",
        " scipy.special ",
        " scipy.special torch ",
    ]
    assert [each["name"] for each in json.loads(models)["models"]] == ["fx-1h", "fx-1h-evidence"]
    answers = [json.loads(each) for each in (file, folder, by_torch)]
    assert [each["model"]["engine"] for each in answers] == ["numpy", "numpy", "torch"]
    *few, whole = (each["forecasts"][0]["probs"] for each in answers)
    np.testing.assert_allclose(few, [whole, whole], atol=TOLERANCE, rtol=0)


def test_every_extra_brings_what_errors_say_it_does() -> None:
    """And the extra of all has them all."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = {
        extra: {re.match(r"[\w-]+", words)[0] for words in libraries}
        for extra, libraries in project["optional-dependencies"].items()
    }
    assert all(extras[extra] >= set(libraries) for extra, libraries in EXTRAS.items())
    assert project["optional-dependencies"]["all"] == [f"vaiom[{','.join(sorted(EXTRAS))}]"]
    core = {re.match(r"[\w-]+", words)[0] for words in project["dependencies"]}
    assert not core & {library for libraries in extras.values() for library in libraries}


def test_public_names() -> None:
    assert callable(vaiom.read_bars)
    with pytest.raises(AttributeError, match="read_bars"):
        vaiom.nonsense  # noqa: B018


def test_products_stay_below_matrix_units_that_may_trap() -> None:
    code = "import os, vaiom; print(os.environ['ONEDNN_MAX_CPU_ISA'])"
    for chosen, used in (({}, "AVX512_CORE_FP16"), ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, "AVX2")):
        others = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
        said = subprocess.run(
            [sys.executable, "-c", code], env={**others, **chosen}, capture_output=True, text=True
        )
        assert said.stdout.strip() == used
