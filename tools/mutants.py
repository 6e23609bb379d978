"""Breaks lines of the package one at a time, and runs the tests that cover each until one fails.

Enters: a checkout with `coverage` beside pytest. Leaves: the breaks that no test caught, and a last line of JSON.
Lines are drawn by a seed, the commit's hash unless another is named, in proportion to the lines of each room. Tests
that fail without a break are left out and named. `python tools/mutants.py [--mutants 200] [--workers N] [--seed TEXT]`
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/vaiom")
COPIED = (
    *(
        "src",
        "tests",
        "reproduction",
        "benchmarks",
        "tools",
        "docs",
        "examples",
        "monitoring",
        "pyproject.toml",
        "Makefile",
    ),
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "LICENSE", "constraints.txt"),
    *("mkdocs.yml", "Containerfile", "compose.yaml", ".dockerignore"),
)
MARKERS = "not slow and not gpu and not kills"
ELSEWHERE = {Path("src/vaiom/model/attention_gpu.py")}
"""Lines that only a GPU runs, which has tests of its own."""
STARTUP = "import coverage\n\ncoverage.process_startup()\n"
SUBPROCESSES = """[run]
source = {source}
data_file = {folder}/lines
parallel = true
sigterm = true
context = ${{MUTANTS_TEST}}
"""
"""How coverage looks at what a test starts; files of data have the test's own as their context."""
LONGEST_S = 900
"""For the tests of one break; a break that makes them hang is caught."""
SWAPPED: dict[type[ast.AST], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.And: "or",
    ast.Or: "and",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
}


@dataclass(frozen=True)
class Mutant:
    """One expression or statement, and what stands in its place."""

    file: Path
    lines: range
    """Of the statement that it stands in."""
    start: int
    """Bytes from the beginning of the file."""
    end: int
    text: str

    def apply(self, root: Path) -> None:
        source = (ROOT / self.file).read_bytes()
        (root / self.file).write_bytes(source[: self.start] + self.text.encode() + source[self.end :])

    def __str__(self) -> str:
        before = " ".join((ROOT / self.file).read_bytes()[self.start : self.end].decode().split())
        return f"{self.file}:{self.lines.start}: {before} -> {self.text}"


def find_mutants(file: Path) -> Iterator[Mutant]:
    """All breaks of a file. What only words an error, annotates or documents is left alone."""
    source = (ROOT / file).read_bytes()
    starts = [0]
    for each in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(each))

    def text(node: ast.expr) -> str:
        return f"({ast.unparse(node)})"

    def replaced(node: ast.AST) -> str | None:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return f"({text(left)} {SWAPPED[type(op)]} {text(right)})"
            case ast.BoolOp(op=op, values=values):
                return f"({f' {SWAPPED[type(op)]} '.join(map(text, values))})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return text(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPPED:
                return f"({text(left)} {SWAPPED[type(op)]} {text(right)})"
            case ast.Constant(value=bool(value)):
                return str(not value)
            case ast.Constant(value=int() | float() as value):
                return f"({value + 1!r})"
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                return "return None"
            case ast.Expr(value=ast.Call()):
                return "pass"
            case ast.AugAssign(target=target, op=op, value=value) if type(op) in SWAPPED:
                return f"{ast.unparse(target)} = {ast.unparse(target)} {SWAPPED[type(op)]} {text(value)}"
        return None

    def visit(node: ast.AST, lines: range) -> Iterator[Mutant]:
        if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
            return
        if isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "_repr_html_"):
            return
        if isinstance(node, ast.keyword) and node.arg == "strict":  # of zip, which asserts
            return
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            lines = range(node.lineno, body[0].lineno if body else (node.end_lineno or node.lineno) + 1)
        if (new := replaced(node)) is not None:
            place: Any = node
            start, end = (
                starts[line - 1] + column
                for line, column in ((place.lineno, place.col_offset), (place.end_lineno, place.end_col_offset))
            )
            yield Mutant(file, lines, start, end, new)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, lines)

    yield from visit(ast.parse(source), range(1))


def runs_at_import(mutant: Mutant) -> bool:
    """Whether a line lies outside of every function's body."""
    nodes = ast.walk(ast.parse((ROOT / mutant.file).read_bytes()))
    bodies = [node.body for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return not any(body[0].lineno <= mutant.lines.start <= (body[-1].end_lineno or 0) for body in bodies)


def draw_mutants(count: int, seed: str, rooms: Collection[str] = ()) -> list[Mutant]:
    """One break a line at most; each room has its share."""
    chance = random.Random(seed)
    by_room: dict[str, list[Mutant]] = defaultdict(list)
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        if path.relative_to(ROOT) in ELSEWHERE:
            continue
        by_line = defaultdict[int, list[Mutant]](list)
        for mutant in find_mutants(path.relative_to(ROOT)):
            by_line[mutant.lines.start].append(mutant)
        room = path.relative_to(ROOT / PACKAGE).parts[0]
        for each in by_line.values():  # most numbers are read beside something that weighs more
            weighty = [mutant for mutant in each if not mutant.text[1:-1].replace(".", "").isdigit()]
            by_room[room].append(chance.choice(weighty or each))
    by_room = {room: each for room, each in by_room.items() if not rooms or room in rooms}
    lines = sum(map(len, by_room.values()))
    drawn = [
        mutant
        for room in sorted(by_room)
        for mutant in chance.sample(by_room[room], min(len(by_room[room]), -(-count * len(by_room[room]) // lines)))
    ]
    return chance.sample(drawn, min(count, len(drawn)))


class Lines:
    """A plugin of pytest: which file of tests runs which lines, how long it takes, and what fails."""

    def __init__(self, folder: Path) -> None:
        from coverage import Coverage

        self.coverage = Coverage(data_file=str(folder / f"lines.{os.getpid()}"), source=[str(ROOT / PACKAGE)])
        self.folder = folder
        self.facts: dict[str, Any] = {"seconds": defaultdict(float), "failed": []}
        os.environ["COVERAGE_PROCESS_START"] = str(folder / "subprocesses.ini")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder / "startup"), os.environ["PYTHONPATH"]])
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        began = time.monotonic()
        file = item.nodeid.partition("::")[0]
        self.coverage.switch_context(file)
        os.environ["MUTANTS_TEST"] = file
        try:
            return (yield)
        finally:
            self.facts["seconds"][file] += time.monotonic() - began

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.facts["failed"].append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        (self.folder / f"facts.{os.getpid()}.json").write_text(json.dumps(self.facts))


def pytest_configure(config: pytest.Config) -> None:
    """In a process that runs tests, not in the one that hands them out."""
    if not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Lines(Path(os.environ["MUTANTS_LINES"])))


def run_tests(root: Path, words: list[str], **more: str) -> int:
    """Pytest's exit code; a time limit counts as a failure."""
    paths = os.pathsep.join(str(root / each) for each in ("src", "tools", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([paths, os.environ.get("PYTHONPATH", "")])}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **more}
    command = [sys.executable, "-m", "pytest", "-q", "-m", MARKERS, "-p", "no:cacheprovider", *words]
    try:
        quiet = None if "-n" in words else subprocess.DEVNULL
        return subprocess.run(
            command, cwd=root, env=environment, stdout=quiet, stderr=quiet, timeout=LONGEST_S
        ).returncode
    except subprocess.TimeoutExpired:
        return int(pytest.ExitCode.TESTS_FAILED)


def measure(
    folder: Path, workers: int, tests: list[str]
) -> tuple[dict[str, dict[int, list[str]]], dict[str, float], list[str]]:
    """Run all tests once: for each line of each file the test files that run it, their seconds, and what failed."""
    from coverage import Coverage

    (folder / "startup").mkdir()
    (folder / "startup/sitecustomize.py").write_text(STARTUP)
    (folder / "subprocesses.ini").write_text(SUBPROCESSES.format(source=ROOT / PACKAGE, folder=folder))
    words = ["-p", "mutants", "-n", str(workers), "--dist", "loadfile", *tests]
    run_tests(ROOT, words, MUTANTS_LINES=str(folder))
    coverage = Coverage(data_file=str(folder / "lines"))
    coverage.combine([str(folder)])
    data = coverage.get_data()
    lines = {str(Path(file).relative_to(ROOT)): data.contexts_by_lineno(file) for file in data.measured_files()}
    seconds, failed = defaultdict[str, float](float), list[str]()
    for each in folder.glob("facts.*.json"):
        facts = json.loads(each.read_text())
        failed += facts["failed"]
        for file, spent in facts["seconds"].items():
            seconds[file] += spent
    return lines, seconds, sorted(set(failed))


def main() -> int:
    parser = argparse.ArgumentParser(description="Break lines of src one at a time and see whether a test fails.")
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--room", action="append", default=[], help="lines of this one alone; may be repeated")
    parser.add_argument("--tests", nargs="*", default=[], help="some of them alone")
    parser.add_argument("--seed", help="what draws the lines; else the commit's hash")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further break after them")
    parser.add_argument("--least", type=float, default=0.95, help="the share that must be caught")
    options = parser.parse_args()
    head = ["git", "rev-parse", "HEAD"]
    seed = options.seed or subprocess.run(head, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as name:
        folder, places = Path(name), SimpleQueue[Path]()
        lines, seconds, failed = measure(folder, options.workers, options.tests)
        for number in range(options.workers):
            for each in COPIED:
                copy = shutil.copytree if (ROOT / each).is_dir() else shutil.copy
                (folder / str(number)).mkdir(exist_ok=True)
                copy(ROOT / each, folder / str(number) / each)
            places.put(folder / str(number))
        left_out = [word for test in failed for word in ("--deselect", test)]

        def is_caught(mutant: Mutant) -> bool | None:
            if time.monotonic() > deadline:
                return None
            own = f"tests/{mutant.file.parts[2]}/"  # a room's own tests are the likeliest to notice
            by_line = lines.get(str(mutant.file), {})
            covering = {test for line in mutant.lines for test in by_line.get(line, [])}
            if runs_at_import(mutant):  # coverage names whoever imported the file first: all that use it are meant
                covering = {test for each in by_line.values() for test in each}
            covering.discard("")
            tests = sorted(covering, key=lambda test: (not test.startswith(own), seconds[test]))
            place = places.get()
            mutant.apply(place)
            caught = bool(tests) and run_tests(place, ["-x", *left_out, *tests]) != pytest.ExitCode.OK
            shutil.copy(ROOT / mutant.file, place / mutant.file)
            places.put(place)
            print(f"{'caught  ' if caught else 'survived'} {mutant}", flush=True)
            return caught

        mutants = draw_mutants(options.mutants, seed, options.room)
        with ThreadPoolExecutor(options.workers) as pool:
            outcomes = list(zip(mutants, pool.map(is_caught, mutants), strict=True))
    tried = [mutant for mutant, caught in outcomes if caught is not None]
    survivors = [str(mutant) for mutant, caught in outcomes if caught is False]
    print("\nSurvivors:", *survivors, sep="\n")
    print("\nLeft out, failing without a break:", *failed, sep="\n")
    counts = {"seed": seed, "mutants": len(tried), "caught": len(tried) - len(survivors), "survivors": len(survivors)}
    print(json.dumps(counts))
    return int(len(survivors) > (1 - options.least) * len(tried))


if __name__ == "__main__":
    sys.exit(main())
