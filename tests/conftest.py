"""What tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is not a bug: no test fails for being slow once.
settings.register_profile("vaiom", deadline=None)
settings.load_profile("vaiom")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real bars beside the checkout; they are never part of the repository."""
    path = Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip("real bars are not beside this checkout")
    return path
