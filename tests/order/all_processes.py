"""What the server of forks imports before any process of an ordered round is asked of it."""

from tests.order import producer, worker

__all__ = ["producer", "worker"]
