"""No way in: no shell, no eval, no pickle in the source; bombs, absurd sizes and climbing paths
refused; the SBOM.
"""

from __future__ import annotations

import ast
import json
import lzma
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import vaiom
from vaiom.errors import UserError
from vaiom.market.folder import check_symbol
from vaiom.market.formats import dukascopy
from vaiom.market.formats.source import Options, SourceFile

PACKAGE = Path(vaiom.__file__).parent
TOOL = Path(__file__).parents[1] / "tools" / "sbom.py"
FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "yaml",
    "pty",
    "ctypes",
}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
FORBIDDEN_METHODS = {
    ("os", "system"),
    ("os", "popen"),
    ("torch", "load"),
    ("torch", "save"),
    ("np", "fromfile"),
}


def offences(source: str) -> list[str]:
    """Calls and imports that could run what a file says."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [
                alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES
            ]
        elif (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] in FORBIDDEN_MODULES
        ):
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in FORBIDDEN_CALLS:
                found.append(function.id)
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                named = function.value.id, function.attr
                found += [".".join(named)] if named in FORBIDDEN_METHODS else []
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else True
                found += (
                    [str(keyword.arg)] if keyword.arg in ("shell", "allow_pickle") and value else []
                )
    return found


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_the_source_runs_nothing_that_a_file_says(path: Path) -> None:
    assert offences(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        *(
            "import pickle",
            "from yaml import load",
            "eval('1')",
            "exec(text)",
            "torch.load(file)",
            "os.system('ls')",
        ),
        *(
            "subprocess.run('ls', shell=True)",
            "np.load(file, allow_pickle=True)",
            "np.load(f, allow_pickle=flag)",
        ),
    ],
)
def test_that_check_finds_what_it_looks_for(source: str) -> None:
    assert offences(source)


def test_a_bi5_bomb_is_refused_before_it_fills_the_memory() -> None:
    bomb = lzma.compress(bytes(dukascopy.MAX_UNPACKED + 24), format=lzma.FORMAT_ALONE, preset=0)
    assert len(bomb) < 1 << 20
    file = SourceFile(path=Path("EURUSD_2019_01_04_BID_candles_min_1.bi5"))
    with pytest.raises(UserError, match="unpacks to too much"):
        dukascopy.read_bi5(file, bomb, Options())


@pytest.mark.parametrize(
    "symbol", ["../EURUSD", "a/b", "", ".hidden", "a" * 33, "EUR\0USD", "EUR\nUSD", "é"]
)
def test_no_symbol_names_a_file_elsewhere(symbol: str) -> None:
    with pytest.raises(UserError, match="symbol"):
        check_symbol(symbol)


def bill(*arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, TOOL, *arguments], capture_output=True, text=True, check=True
    )
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def test_the_bill_of_materials_names_what_is_shipped() -> None:
    document = bill()
    components = {each["name"].lower(): each["version"] for each in document["components"]}  # type: ignore[attr-defined]
    assert document["metadata"]["component"]["version"] == version("vaiom")  # type: ignore[index]
    for name in ("numpy", "polars", "safetensors", "typer"):
        assert components[name] == version(name)
    assert "pytest" not in components
    refs = {each["ref"] for each in document["dependencies"]}  # type: ignore[attr-defined]
    assert {ref for each in document["dependencies"] for ref in each["dependsOn"]} <= refs  # type: ignore[attr-defined]
    assert document == bill()


def test_extras_add_to_the_bill() -> None:
    names = [
        {each["name"] for each in bill(*more)["components"]} for more in ((), ("--extra", "serve"))
    ]  # type: ignore[attr-defined]
    assert names[0] < names[1]
    assert "fastapi" in names[1]
