"""Breaks lines of the package one at a time, and runs the tests that cover each until one fails.

Enters: a checkout with `coverage` beside pytest. Leaves: the breaks that no test caught, and a last
line of JSON. Lines are drawn by a seed, the commit's hash unless another is named, in proportion to
the lines of each room. A break is first put into a process that keeps its imports and fixtures,
where being caught takes a second; what survives there is tried again in a fresh process, whose word
counts. Tests that fail without a break are left out and named. `python -m verification.mutants
[--mutants 200] [--workers N] [--seed TEXT] [--room NAME] [--own] [--tests PATH]`
"""

from __future__ import annotations

import argparse
import ast
import gc
import inspect
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
from dataclasses import astuple, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/vaiom")
FOLDERS = (
    "src",
    "tests",
    "verification",
    "reproduction",
    "benchmarks",
    "tools",
    "docs",
    "examples",
    "monitoring",
)
FILES = (
    ".dockerignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Containerfile",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "compose.yaml",
    "conftest.py",
    "constraints.txt",
    "mkdocs.yml",
    "pyproject.toml",
)
"""What tests need of a checkout: each worker has a copy of its own."""
MARKERS = "not slow and not gpu and not kills"
ELSEWHERE = {Path("src/vaiom/model/attention_gpu.py")}
"""Lines that only a GPU runs, which has tests of its own."""
STARTUP = """
import os
import coverage

def leave(code, leave=os._exit, started=coverage.process_startup()):
    if started:
        started.stop()
        started.save()
    leave(code)

os._exit = leave
"""
SUBPROCESSES = """[run]
source = {source}
data_file = {folder}/lines
parallel = true
sigterm = true
context = ${{MUTANTS_TEST}}
"""
"""How coverage looks at what a test starts; files of data have the test's own as their context."""
FIXTURE = "fixture "
"""Begins the context of what runs once for several tests."""
STARTING_S, TIMES_LONGER = 120.0, 10.0
"""What starting takes at most, and how much longer than without a break tests may take until they
are taken to hang.
"""
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

    def broken(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def apply(self, root: Path) -> None:
        (root / self.file).write_bytes(self.broken((ROOT / self.file).read_bytes()))

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
                return (
                    f"{ast.unparse(target)} = {ast.unparse(target)} {SWAPPED[type(op)]} "
                    f"{text(value)}"
                )
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
            lines = range(
                node.lineno, body[0].lineno if body else (node.end_lineno or node.lineno) + 1
            )
        if (new := replaced(node)) is not None:
            place: Any = node
            start, end = (
                starts[line - 1] + column
                for line, column in (
                    (place.lineno, place.col_offset),
                    (place.end_lineno, place.end_col_offset),
                )
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
    bodies = [
        node.body for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    return not any(
        body[0].lineno <= mutant.lines.start <= (body[-1].end_lineno or 0) for body in bodies
    )


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
            weighty = [
                mutant for mutant in each if not mutant.text[1:-1].replace(".", "").isdigit()
            ]
            by_room[room].append(chance.choice(weighty or each))
    by_room = {room: each for room, each in by_room.items() if not rooms or room in rooms}
    lines = sum(map(len, by_room.values()))
    drawn = [
        mutant
        for room in sorted(by_room)
        for mutant in chance.sample(
            by_room[room], min(len(by_room[room]), -(-count * len(by_room[room]) // lines))
        )
    ]
    return chance.sample(drawn, min(count, len(drawn)))


class Lines:
    """A plugin of pytest: which test or shared fixture runs which lines, what each test uses and
    takes, what fails.
    """

    def __init__(self, folder: Path) -> None:
        from coverage import Coverage

        self.coverage = Coverage(
            data_file=str(folder / f"lines.{os.getpid()}"), source=[str(ROOT / PACKAGE)]
        )
        self.folder, self.contexts = folder, [""]
        self.facts: dict[str, Any] = {"seconds": {}, "fixtures": {}, "failed": []}
        os.environ["COVERAGE_PROCESS_START"] = str(folder / "subprocesses.ini")
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(folder / "startup"), os.environ["PYTHONPATH"]]
        )
        self.coverage.start()

    def _enter(self, context: str) -> None:
        self.contexts.append(context)
        self.coverage.switch_context(context)
        os.environ["MUTANTS_TEST"] = context

    def _leave(self) -> None:
        self.contexts.pop()
        self.coverage.switch_context(self.contexts[-1])
        os.environ["MUTANTS_TEST"] = self.contexts[-1]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        began = time.monotonic()
        self.facts["fixtures"][item.nodeid] = getattr(item, "fixturenames", [])
        self._enter(item.nodeid)
        try:
            return (yield)
        finally:
            self._leave()
            self.facts["seconds"][item.nodeid] = time.monotonic() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        if fixturedef.scope == "function":
            return (yield)
        self._enter(FIXTURE + fixturedef.argname)
        try:
            return (yield)
        finally:
            self._leave()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.facts["failed"].append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        (self.folder / f"facts.{os.getpid()}.json").write_text(json.dumps(self.facts))


class Judge:
    """A plugin of pytest that runs tests as it is told to, each time with another break in the
    functions at hand.
    """

    def __init__(self, told: Connection) -> None:
        from hypothesis import Phase, settings

        self.told = told
        # A failing example need not be a small one.
        settings.register_profile(
            "mutants", settings.get_profile("vaiom"), phases=(Phase.explicit, Phase.generate)
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        while (job := self.told.recv()) is not None:
            fields, tests = job
            self.told.send(self._is_caught(Mutant(*fields), tests))
        return True

    def _is_caught(self, mutant: Mutant, tests: list[str]) -> bool:
        """Whether a test fails with the break and passes without it; no means that nothing is
        known.
        """
        replaced, source = replaced_code(mutant), mutant.file.read_bytes()
        mutant.apply(Path.cwd())  # for what tests start
        try:
            for function, _, new in replaced:
                function.__code__ = new
            failed = next(
                (item for test in tests if (item := self.items.get(test)) and self._fails(item)),
                None,
            )
        finally:
            for function, old, _ in replaced:
                function.__code__ = old
            mutant.file.write_bytes(source)
        if not replaced or failed is None:
            return False
        for each in gc.get_objects():
            if hasattr(type(each), "cache_clear") and str(
                getattr(each, "__module__", "")
            ).startswith("vaiom"):
                each.cache_clear()
        if self._fails(failed):
            failed.session._setupstate.teardown_exact(None)
            if self._fails(failed):
                os._exit(1)  # the break has left something behind
        return True

    def _fails(self, item: pytest.Item) -> bool:
        from _pytest.runner import runtestprotocol

        item.session._setupstate.teardown_exact(item)
        # Fixtures of the module and the session stay for the tests to come.
        return any(each.failed for each in runtestprotocol(item, log=False, nextitem=item.parent))  # type: ignore[arg-type]


def replaced_code(mutant: Mutant) -> list[tuple[FunctionType, CodeType, CodeType]]:
    """The living functions that a break changes, with their code before and after; none where only
    import runs it.
    """
    path, source = str(Path.cwd() / mutant.file), mutant.file.read_bytes()

    def functions(text: bytes) -> list[CodeType]:
        found: list[CodeType] = []
        waiting = [compile(text, path, "exec", dont_inherit=True)]
        while waiting:
            for code in (each for each in waiting.pop().co_consts if isinstance(each, CodeType)):
                (found if code.co_flags & inspect.CO_OPTIMIZED else waiting).append(code)
        return found

    before, after = functions(source), functions(mutant.broken(source))
    changed = dict(zip(before, after, strict=False)) if len(before) == len(after) else {}
    living = (each for each in gc.get_objects() if isinstance(each, FunctionType))
    own = [
        each for each in living if each.__code__.co_filename == path and each.__code__ in changed
    ]
    pairs = [(each, each.__code__, changed[each.__code__]) for each in own]
    return [(each, old, new) for each, old, new in pairs if old != new]


def pytest_configure(config: pytest.Config) -> None:
    """In a process that runs tests, not in the one that hands them out."""
    if "MUTANTS_LINES" in os.environ and not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Lines(Path(os.environ["MUTANTS_LINES"])))
    elif "MUTANTS_JOBS" in os.environ:
        config.pluginmanager.register(Judge(Connection(int(os.environ["MUTANTS_JOBS"]))))


def start_tests(
    root: Path, words: list[str], *, quiet: bool, **more: Any
) -> subprocess.Popen[bytes]:
    """Pytest over a tree, in a process of its own."""
    paths = os.pathsep.join(str(root / each) for each in ("src", ""))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([paths, os.environ.get("PYTHONPATH", "")]),
    }
    environment |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **more.pop("environment", {}),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        MARKERS,
        "-p",
        "no:cacheprovider",
        *words,
    ]
    output = subprocess.DEVNULL if quiet else None
    return subprocess.Popen(
        command, cwd=root, env=environment, stdout=output, stderr=output, **more
    )


def own_tests(room: str) -> str:
    """The folder of a room's tests; the file of those of a module outside of the rooms."""
    return f"tests/test_{room}" if room.endswith(".py") else f"tests/{room}/"


@dataclass(frozen=True)
class Measured:
    """What one run of all tests tells."""

    lines: dict[str, dict[int, list[str]]]
    """By file and line: the tests and fixtures that run it."""
    seconds: dict[str, float]
    users: dict[str, set[str]]
    """By fixture: the tests that use it, themselves or through others."""
    failed: list[str]

    def covering(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """The tests that run a line by themselves, and all that run it; likely and quick ones
        first.
        """
        by_line = self.lines.get(str(mutant.file), {})
        contexts = {each for line in mutant.lines for each in by_line.get(line, [])}
        own = own_tests(mutant.file.parts[2])  # the likeliest to notice
        if runs_at_import(
            mutant
        ):  # coverage names whoever imported the file first: all that use it are meant
            contexts = {each for line in by_line.values() for each in line}
        if (
            runs_at_import(mutant) or not contexts
        ):  # a process that leaves at once has told nobody what it ran
            contexts |= {test for test in self.seconds if test.startswith(own)}
        direct = contexts & self.seconds.keys()
        every = direct.union(
            *(
                self.users[each.removeprefix(FIXTURE)]
                for each in contexts
                if each.startswith(FIXTURE)
            )
        )

        def ordered(tests: Collection[str]) -> list[str]:
            kept = (test for test in tests if test not in self.failed)
            return sorted(kept, key=lambda test: (not test.startswith(own), self.seconds[test]))

        return ordered(direct), ordered(every)


def measure(folder: Path, workers: int, tests: list[str]) -> Measured:
    """Run tests once: which of them run which lines."""
    from coverage import Coverage

    (folder / "startup").mkdir()
    (folder / "startup/sitecustomize.py").write_text(STARTUP)
    (folder / "subprocesses.ini").write_text(
        SUBPROCESSES.format(source=ROOT / PACKAGE, folder=folder)
    )
    words = ["-p", "verification.mutants", "-n", str(workers), "--dist", "loadfile", *tests]
    start_tests(ROOT, words, quiet=False, environment={"MUTANTS_LINES": str(folder)}).wait()
    coverage = Coverage(data_file=str(folder / "lines"))
    coverage.combine([str(folder)])
    data = coverage.get_data()
    lines = {
        str(Path(file).relative_to(ROOT)): data.contexts_by_lineno(file)
        for file in data.measured_files()
    }
    seconds, users, failed = dict[str, float](), defaultdict[str, set[str]](set), set[str]()
    for each in folder.glob("facts.*.json"):
        facts = json.loads(each.read_text())
        failed |= {*facts["failed"]}
        seconds |= facts["seconds"]
        for test, fixtures in facts["fixtures"].items():
            for name in fixtures:
                users[name].add(test)
    return Measured(lines, seconds, users, sorted(failed))


class Worker:
    """A tree of its own, and a process there that has imported and set up what tests need."""

    def __init__(self, place: Path, tests: list[str]) -> None:
        self.place, self.tests = place, tests
        self.process: subprocess.Popen[bytes] | None = None

    def is_caught(
        self, mutant: Mutant, direct: list[str], every: list[str], limit_s: float
    ) -> bool:
        """Whether a test fails with the break; one that makes tests hang is caught."""
        if direct and not runs_at_import(mutant) and self._judge(mutant, direct, limit_s):
            return True
        mutant.apply(self.place)
        listed = self.place / "tests.txt"
        listed.write_text("\n".join(every))
        process = start_tests(self.place, ["-x", f"@{listed}"], quiet=True, start_new_session=True)
        try:
            return process.wait(limit_s) != pytest.ExitCode.OK
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return True
        finally:
            shutil.copy(ROOT / mutant.file, self.place / mutant.file)

    def _judge(self, mutant: Mutant, tests: list[str], limit_s: float) -> bool:
        if self.process is None:
            self.jobs, theirs = Pipe()
            environment = {"MUTANTS_JOBS": str(theirs.fileno())}
            pipe: dict[str, Any] = {"pass_fds": [theirs.fileno()], "start_new_session": True}
            words = ["-p", "verification.mutants", *self.tests]
            self.process = start_tests(
                self.place, words, quiet=True, environment=environment, **pipe
            )
            theirs.close()
            limit_s += STARTING_S
        try:
            self.jobs.send((astuple(mutant), tests))
            if self.jobs.poll(limit_s):
                return bool(self.jobs.recv())
            self.stop()
            return True
        except (EOFError, OSError):  # it fell, or left: a fresh process decides
            self.stop()
            return False

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None
            shutil.copytree(ROOT / PACKAGE, self.place / PACKAGE, dirs_exist_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Break lines of src one at a time and see whether a test fails."
    )
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--room", action="append", default=[], help="lines of this one alone; may be repeated"
    )
    parser.add_argument("--own", action="store_true", help="run the tests of these rooms alone")
    parser.add_argument("--tests", nargs="*", default=["tests", "verification"], help="some alone")
    parser.add_argument("--seed", help="what draws the lines; else the commit's hash")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no further break after them"
    )
    parser.add_argument("--least", type=float, default=0.95, help="the share that must be caught")
    options = parser.parse_args()
    tests = [own_tests(room) for room in options.room] if options.own else options.tests
    head = ["git", "rev-parse", "HEAD"]
    seed = (
        options.seed
        or subprocess.run(head, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    )
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as name:
        folder, idle = Path(name), SimpleQueue[Worker]()
        measured = measure(folder, options.workers, tests)
        if (ROOT.parent / "shared").is_dir():  # real bars
            (folder / "shared").symlink_to(ROOT.parent / "shared")
        workers = [Worker(folder / str(number), tests) for number in range(options.workers)]
        for worker in workers:
            worker.place.mkdir()
            for each in FOLDERS:
                shutil.copytree(ROOT / each, worker.place / each)
            for each in FILES:
                shutil.copy(ROOT / each, worker.place / each)
            idle.put(worker)

        def is_caught(mutant: Mutant) -> bool | None:
            if time.monotonic() > deadline:
                return None
            direct, every = measured.covering(mutant)
            limit_s = STARTING_S + TIMES_LONGER * sum(measured.seconds[test] for test in every)
            worker = idle.get()
            caught = bool(every) and worker.is_caught(mutant, direct, every, limit_s)
            idle.put(worker)
            print(f"{'caught  ' if caught else 'survived'} {mutant}", flush=True)
            return caught

        mutants = draw_mutants(options.mutants, seed, options.room)
        with ThreadPoolExecutor(options.workers) as pool:
            outcomes = list(zip(mutants, pool.map(is_caught, mutants), strict=True))
        for worker in workers:
            worker.stop()
    tried = [mutant for mutant, caught in outcomes if caught is not None]
    survivors = [str(mutant) for mutant, caught in outcomes if caught is False]
    print("\nSurvivors:", *survivors, sep="\n")
    print("\nLeft out, failing without a break:", *measured.failed, sep="\n")
    counts = {
        "seed": seed,
        "mutants": len(tried),
        "caught": len(tried) - len(survivors),
        "survivors": len(survivors),
    }
    print(json.dumps(counts))
    return int(len(survivors) > (1 - options.least) * len(tried))


if __name__ == "__main__":
    sys.exit(main())
