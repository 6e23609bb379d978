"""An installation for forecasts alone: a wheel in a fresh environment, its size, and a forecast of
a file there.

Enters: a wheel. Leaves: an exit code, and on stdout the size and the forecast. `python
tools/light.py WHEEL`
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import venv
from datetime import datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 350  # megabytes of the whole environment
BARS, SEED = 1_200, 17


def main(wheel: str) -> None:
    folder = ROOT / "build/light"
    venv.create(folder, clear=True, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        ROOT / "constraints.txt",
        wheel,
    ]
    # A checkout on the path would stand for the wheel.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run(pip, check=True, env=alone)
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
    file, now, price = folder / "EURUSD.csv", datetime(2026, 1, 5), 1.1
    lines, draw = ["Datetime,Open,High,Low,Close"], random.Random(SEED)
    for number in range(BARS):
        before, price = price, price * (1 + draw.gauss(0, 1e-3))
        stamp = now + timedelta(hours=number)
        lines.append(
            f"{stamp},{before},{max(before, price) * 1.0002},{min(before, price) * 0.9998},{price}"
        )
    file.write_text("\n".join(lines))
    start = time.monotonic()
    command = [python, "-m", "vaiom", "forecast", file, "--json"]
    answer = json.loads(
        subprocess.run(command, check=True, capture_output=True, cwd=folder, env=alone).stdout
    )
    seconds, [forecast] = time.monotonic() - start, answer["forecasts"]
    assert answer["model"]["engine"] == "numpy"
    print(
        f"{size:.0f} MB; {forecast['symbol']}: up with {forecast['prob_up']:.1%}, after "
        f"{seconds:.1f} s of the command"
    )
    if size > MOST:
        sys.exit(f"more than {MOST} MB")


if __name__ == "__main__":
    main(sys.argv[1])
