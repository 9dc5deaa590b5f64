"""What the tests of examples have in common."""

import pytest


@pytest.fixture
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wish of whoever runs the tests about colours or widths."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
