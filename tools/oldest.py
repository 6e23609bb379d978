"""The oldest libraries that `pyproject.toml` allows, as constraints for pip on stdout: see `make
check-oldest`.

PyTorch stays at the tested version, because older builds without CUDA are not on PyPI; ONNX, Ray
and ccxt are free.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FREE = ("torch", "ray", "ccxt", "onnx", "onnxruntime", "onnxscript")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = project["optional-dependencies"].items()
    extras = [each for name, needs in groups if name not in ("docs", "dev") for each in needs]
    for name, least in re.findall(
        r"^([\w-]+)>=([\d.]+)", "\n".join([*project["dependencies"], *extras]), re.MULTILINE
    ):
        if name not in FREE:
            print(f"{name}=={least}")
    print(*re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


if __name__ == "__main__":
    main()
