"""What the Containerfile does, without a container engine: its steps in a fresh environment, its
service as nobody.

Enters: the Containerfile. Leaves: an exit code, and on stdout what was proved and what was not.
`python tools/container.py [--python PROGRAM]`
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[1]
BAR = {
    "datetime": "2026-01-01T00:00:00",
    "open": 1.08,
    "high": 1.081,
    "low": 1.079,
    "close": 1.0805,
    "volume": 10,
}


def read_stages(text: str) -> list[list[tuple[str, str]]]:
    """The instructions of each stage, as name and arguments."""
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    stages: list[list[tuple[str, str]]] = []
    for name, _, words in (line.partition(" ") for line in lines if line.strip()):
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, words.strip()))
    return stages


def the_one(stage: list[tuple[str, str]], name: str) -> str:
    (words,) = (words for each, words in stage if each == name)
    return words


def variables(stage: list[tuple[str, str]]) -> dict[str, str]:
    return dict(
        pair.split("=", 1) for name, words in stage if name == "ENV" for pair in words.split()
    )


class Machine:
    """A folder that stands for the root file system of the image."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder, self.source, self.state = folder, folder / "source", folder / "state"
        programs = folder / "programs"
        for each in (self.source, self.state, programs):
            each.mkdir()
        (programs / "python").symlink_to(shutil.which(python) or python)
        self.path = f"{folder}/opt/vaiom/bin:{programs}:/usr/bin:/bin"

    def here(self, words: str) -> str:
        return re.sub(r"(?<![\w.])/(opt/vaiom|state)\b", rf"{self.folder}/\1", words)

    def build(self, stage: list[tuple[str, str]]) -> None:
        for name, words in stage:
            if name == "RUN":
                print(f"RUN {words}", flush=True)
                subprocess.run(
                    ["sh", "-ec", self.here(words)],
                    cwd=self.source,
                    env=self.environment({}),
                    check=True,
                )
            elif name == "COPY":
                for each in words.split()[:-1]:
                    copy = shutil.copytree if (ROOT / each).is_dir() else shutil.copy
                    copy(ROOT / each, self.source / each)

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
        }
        return {**kept, "TORCH_INDEX": os.environ.get("TORCH_INDEX", ""), **more, "PATH": self.path}

    def freeze(self) -> None:
        """Make everything but the state and temporary files read-only for users other than root."""
        for path in self.folder.rglob("*"):
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222 | 0o444)
        for each in (self.state, self.folder / "tmp"):
            each.mkdir(exist_ok=True)
            each.chmod(0o700)

    def as_user(self, words: str) -> dict[str, Any]:
        """Options to start a process as the image's user; none unless this one is root."""
        if os.getuid():
            print("NOT PROVED: another user (only root can become one)")
            return {}
        user, group = map(int, words.split(":"))
        for each in (self.state, self.folder / "tmp"):
            os.chown(each, user, group)
        who: dict[str, Any] = {"user": user, "group": group, "extra_groups": []}
        program = [str(self.folder / "opt/vaiom/bin/python"), "-c", ""]
        try:
            subprocess.run(program, check=True, cwd="/", capture_output=True, **who)
        except (OSError, subprocess.CalledProcessError):
            sys.exit(
                "the interpreter is in a folder that others may not enter: name another with "
                "--python"
            )
        return who

    @contextmanager
    def service(self, stage: list[tuple[str, str]], who: dict[str, Any]) -> Iterator[int]:
        words = [*json.loads(the_one(stage, "ENTRYPOINT")), *json.loads(the_one(stage, "CMD"))]
        command = [*map(self.here, words), "--host", "127.0.0.1", "--port", "0"]
        more = {
            **variables(stage),
            "HOME": str(self.folder / "tmp"),
            "TMPDIR": str(self.folder / "tmp"),
        }
        more["MPLCONFIGDIR"] = more["TMPDIR"]
        command[0] = str(self.folder / "opt/vaiom/bin" / command[0])
        print("START", *command[1:], flush=True)
        options = {
            "env": self.environment(more),
            "cwd": self.state,
            "stderr": subprocess.PIPE,
            "text": True,
            **who,
        }
        process = subprocess.Popen(command, **options)
        try:
            assert process.stderr
            lines = []
            for line in process.stderr:
                lines.append(line)
                if found := re.search(r"http://[\w.]+:(\d+)", line):
                    break
            else:
                sys.exit(f"the service did not start: {''.join(lines)}")
            yield int(found[1])
        finally:
            process.terminate()
            process.communicate(timeout=60)
        if process.returncode not in (0, -signal.SIGTERM):  # a clean end, or the signal itself
            sys.exit(f"the service ended with {process.returncode}")


def ask(port: int, path: str, body: object = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def wait_until_ready(port: int) -> None:
    for _ in range(300):
        try:
            ask(port, "/readyz")
            return
        except OSError:
            time.sleep(0.2)
    sys.exit("the service is not ready after a minute")


def strays(machine: Machine, user: int) -> list[Path]:
    own = (machine.state, machine.folder / "tmp")
    return [
        path
        for path in machine.folder.rglob("*")
        if path.lstat().st_uid == user and not any(path.is_relative_to(each) for each in own)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter that every user may run"
    )
    args = parser.parse_args()
    build, image = read_stages((ROOT / "Containerfile").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        machine = Machine(Path(name), args.python)
        machine.folder.chmod(0o755)
        machine.build(build)
        machine.freeze()
        who = machine.as_user(the_one(image, "USER"))
        health = json.loads(the_one(image, "HEALTHCHECK").partition("CMD ")[2])
        with machine.service(image, who) as port:
            wait_until_ready(port)
            checked = [part.replace(":8000", f":{port}") for part in health]
            subprocess.run(checked, check=True, env=machine.environment({}))
            ask(port, "/v1/assets/EURUSD/bars", {"bars": [BAR]})
            print("the health check passes, and a bar is taken")
        with machine.service(image, who) as port:
            wait_until_ready(port)
            assert 'vaiom_last_bar_seconds{asset="EURUSD"}' in ask(port, "/metrics")
            print("after a restart the bar is still there")
        if who:
            assert not strays(machine, who["user"]), strays(machine, who["user"])
            print(
                "nothing was written but the state and temporary files; all of it as",
                the_one(image, "USER"),
            )
        size = sum(
            path.lstat().st_size for path in (machine.folder / "opt").rglob("*") if path.is_file()
        )
        print(f"the environment has {size / 1e6:,.0f} MB")
    print("NOT PROVED: the base images, and that an engine reads the files as this tool does")


if __name__ == "__main__":
    main()
