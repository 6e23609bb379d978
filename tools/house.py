"""How large the house is: lines, statements, files, imports between rooms, modules with one
importer, repeated lines.

Enters: a checkout. Leaves: a table on stdout, or one JSON object. `python tools/house.py [--json]
[--rooms]`
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "reproduction", "benchmarks", "tests")
PACKAGE = ROOT / "src" / "vaiom"
REPEATED_LINES = 6


def count_statements(tree: ast.AST) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree))


def measure_folder(folder: Path) -> dict[str, int]:
    texts = [path.read_text() for path in sorted(folder.rglob("*.py"))]
    return {
        "files": len(texts),
        "lines": sum(len(text.splitlines()) for text in texts),
        "statements": sum(count_statements(ast.parse(text)) for text in texts),
        "functions": sum(text.count("def ") for text in texts),
    }


def module_name(path: Path) -> str:
    return ".".join(("vaiom", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


def imports_by_module() -> dict[str, set[str]]:
    """For each module of the package the modules of the package that it imports, lazily or not."""
    modules = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    imports: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            targets: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                targets = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            imports[name] |= {target for target in targets if target in modules and target != name}
    return imports


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 2 else "top"


def count_repeats(folders: list[Path]) -> int:
    """Runs of lines that stand in more than one place, blank lines, comments and imports passed
    over.
    """
    places: Counter[tuple[str, ...]] = Counter()
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        lines = [" ".join(line.split()) for line in path.read_text().splitlines()]
        kept = [
            line
            for line in lines
            if len(line) > 3 and not line.startswith(("#", "import ", "from "))
        ]
        places.update(
            {tuple(kept[at : at + REPEATED_LINES]) for at in range(len(kept) - REPEATED_LINES + 1)}
        )
    return sum(count > 1 for count in places.values())


def measure() -> dict[str, Any]:
    imports = imports_by_module()
    importers: Counter[str] = Counter(target for targets in imports.values() for target in targets)
    edges = {
        (room_of(name), room_of(target)) for name, targets in imports.items() for target in targets
    }
    rooms = sorted(path for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py")))
    return {
        "folders": {
            name: measure_folder(ROOT / name) for name in FOLDERS if (ROOT / name).is_dir()
        },
        "rooms": {path.name: measure_folder(path) for path in rooms},
        "room_edges": sum(ours != theirs for ours, theirs in edges),
        "modules_with_one_importer": sum(count == 1 for count in importers.values()),
        "longest_file": max(len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")),
        "repeated_runs": count_repeats(
            [ROOT / name for name in FOLDERS if name != "tests" and (ROOT / name).is_dir()]
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rooms", action="store_true", help="show each room too")
    args = parser.parse_args()
    measured = measure()
    if args.json:
        print(json.dumps(measured, indent=2))
        return
    tables = {**measured["folders"], **(measured["rooms"] if args.rooms else {})}
    print(f"{'':14}{'files':>8}{'lines':>8}{'statements':>12}{'functions':>11}")
    for name, row in tables.items():
        print(
            f"{name:14}{row['files']:8,}{row['lines']:8,}{row['statements']:12,}{row['functions']:11,}"
        )
    for name in ("room_edges", "modules_with_one_importer", "longest_file", "repeated_runs"):
        print(f"{name.replace('_', ' ')}: {measured[name]:,}")


if __name__ == "__main__":
    main()
