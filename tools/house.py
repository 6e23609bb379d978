"""How densely the code is written, and how its rooms hang together.

Enters: a checkout. Leaves: a table on stdout, or one JSON object: `python tools/house.py [--json]`.
The code is formatted to the project's width first, without magic commas, so that wrapping lines by
hand changes no figure.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import shutil
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "reproduction", "benchmarks", "verification", "tools", "tests")
PACKAGE = ROOT / "src" / "vaiom"
REPEATED_LINES = 6
"""So many lines in two places are a repeat."""
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Counts:
    """What some files hold."""

    files: int = 0
    lines: int = 0
    code_lines: int = 0
    """Without blank lines, comments and docstrings."""
    expressions: int = 0
    statements: int = 0
    """Without docstrings."""
    doc_words: int = 0
    packed: int = 0
    """Assignments of a tuple to a tuple, as in `a, b = 1, 2`."""

    def __add__(self, other: Counts) -> Counts:
        names = (each.name for each in fields(self))
        return Counts(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def per_line(self) -> float:
        """Expressions in a line of code."""
        return self.expressions / max(self.code_lines, 1)

    @property
    def per_statement(self) -> float:
        """Expressions in a statement."""
        return self.expressions / max(self.statements, 1)

    @property
    def doc_words_per_100(self) -> float:
        """Words of docstrings for each hundred expressions."""
        return 100 * self.doc_words / max(self.expressions, 1)

    def to_json(self) -> dict[str, float]:
        ratios = ("per_line", "per_statement", "doc_words_per_100")
        return {**asdict(self), **{name: round(getattr(self, name), 2) for name in ratios}}


def is_docstring(node: ast.AST) -> bool:
    """Whether a statement is a text that nothing reads: of a module, function, class or field."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def is_packed(node: ast.AST) -> bool:
    """Whether a statement assigns several values to several names at once."""
    if not isinstance(node, ast.Assign):
        return False
    return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def count(text: str) -> Counts:
    """Measure one file."""
    nodes = list(ast.walk(ast.parse(text)))
    docs: list[Any] = [node for node in nodes if is_docstring(node)]
    doc_lines = {line for doc in docs for line in range(doc.lineno, doc.end_lineno + 1)}
    code_lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            code_lines |= set(range(token.start[0], token.end[0] + 1))
    return Counts(
        files=1,
        lines=text.count("\n"),
        code_lines=len(code_lines - doc_lines),
        expressions=sum(isinstance(node, ast.expr) for node in nodes),
        statements=sum(isinstance(node, ast.stmt) for node in nodes) - len(docs),
        doc_words=sum(len(doc.value.value.split()) for doc in docs),
        packed=sum(is_packed(node) for node in nodes),
    )


def count_files(paths: Iterable[Path]) -> dict[Path, Counts]:
    """Measure files as the formatter writes them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    width = str(settings["line-length"])
    ruff = shutil.which("ruff", path=Path(sys.executable).parent) or "ruff"
    options = ["--isolated", "--quiet", "--line-length", width]
    commas = ["--config", "format.skip-magic-trailing-comma=true"]
    with tempfile.TemporaryDirectory() as folder:
        copies = {path: Path(folder) / f"{number}.py" for number, path in enumerate(paths)}
        for path, copy in copies.items():
            shutil.copyfile(path, copy)
        subprocess.run([ruff, "format", *options, *commas, folder], check=True)
        return {path: count(copy.read_text()) for path, copy in copies.items()}


def room_of(path: Path) -> str:
    """The folder of the package that a file stands in; `top` for the files beside the rooms."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "top"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("vaiom", *parts)).removesuffix(".__init__")


def imports_by_file() -> dict[Path, set[Path]]:
    """For each file of the package the files of the package that it imports, lazily or not."""
    modules = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    imports: dict[Path, set[Path]] = {}
    for path in modules.values():
        targets = set[str]()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                targets |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
            elif isinstance(node, ast.Import):
                targets |= {each.name for each in node.names}
        imports[path] = {modules[name] for name in targets & modules.keys()} - {path}
    return imports


def names_in_several_rooms() -> dict[str, list[str]]:
    """Class names and file names that stand in more than one room, with the rooms.

    The command line is left out: its files are called as the rooms that they make commands of.
    """
    rooms: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        if room_of(path) == "cli":
            continue
        rooms[path.name].add(room_of(path))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                rooms[node.name].add(room_of(path))
    several = {name: sorted(places) for name, places in rooms.items() if len(places) > 1}
    return dict(sorted(several.items()))


def count_repeats(paths: Iterable[Path]) -> int:
    """Runs of lines that stand in more than one place; blank lines, comments and imports are passed
    over.
    """
    passed_over = ("#", "import ", "from ")
    places: Counter[tuple[str, ...]] = Counter()
    for path in paths:
        lines = [" ".join(line.split()) for line in path.read_text().splitlines()]
        kept = [line for line in lines if len(line) > 3 and not line.startswith(passed_over)]
        starts = range(len(kept) - REPEATED_LINES + 1)
        places.update({tuple(kept[at : at + REPEATED_LINES]) for at in starts})
    return sum(times > 1 for times in places.values())


def measure() -> dict[str, Any]:
    """Counts by folder and by room, and what ties the rooms together."""
    files = {name: sorted((ROOT / name).rglob("*.py")) for name in FOLDERS}
    counts = count_files(path for paths in files.values() for path in paths)
    folders = {
        name: sum((counts[path] for path in paths), Counts()) for name, paths in files.items()
    }
    rooms: dict[str, Counts] = defaultdict(Counts)
    for path in files["src"]:
        rooms[room_of(path)] += counts[path]
    imports = imports_by_file()
    importers = Counter(target for targets in imports.values() for target in targets)
    edges = {(room_of(path), room_of(each)) for path in imports for each in imports[path]}
    code = [path for name, paths in files.items() if name != "tests" for path in paths]
    return {
        "folders": {name: each.to_json() for name, each in folders.items()},
        "rooms": {name: rooms[name].to_json() for name in sorted(rooms)},
        "room_edges": sum(ours != theirs for ours, theirs in edges),
        "modules_with_one_importer": sum(times == 1 for times in importers.values()),
        "longest_file": max(counts[path].lines for path in files["src"]),
        "repeated_runs": count_repeats(code),
        "names_in_several_rooms": names_in_several_rooms(),
    }


COLUMNS = {
    "files": "files",
    "lines": "lines",
    "expressions": "expressions",
    "per_line": "per line",
    "per_statement": "per statement",
    "doc_words_per_100": "doc words",
    "packed": "packed",
}


def show(measured: dict[str, Any]) -> None:
    print(f"{'':14}" + "".join(f"{title:>15}" for title in COLUMNS.values()))
    for group in ("folders", "rooms"):
        for name, row in measured[group].items():
            cells = (f"{row[column]:,}" for column in COLUMNS)
            print(f"{name:14}" + "".join(f"{cell:>15}" for cell in cells))
        print()
    for name in ("room_edges", "modules_with_one_importer", "longest_file", "repeated_runs"):
        print(f"{name.replace('_', ' ')}: {measured[name]:,}")
    for name, rooms in measured["names_in_several_rooms"].items():
        print(f"{name} stands in {', '.join(rooms)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    measured = measure()
    if options.json:
        print(json.dumps(measured, indent=2))
    else:
        show(measured)


if __name__ == "__main__":
    main()
