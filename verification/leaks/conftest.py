"""Markets for the leaky pipelines; made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from verification.leaks.markets import Market, real_market, simulated_market


@pytest.fixture(scope="session")
def simulated() -> Market:
    return simulated_market()


@pytest.fixture(scope="session")
def real(shared_data: Path) -> Market:
    return real_market(shared_data / "bars_1h")
