import uuid

import pytest


@pytest.fixture
def name() -> str:
    """A topic, queue, subject or stream that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"
