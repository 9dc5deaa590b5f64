"""What a worker is told when it is started."""

import random
from dataclasses import dataclass
from typing import Any, Literal

Driver = Literal["asyncpg", "psycopg"]


@dataclass(frozen=True)
class Orders:
    """One worker; its connections carry its name, and what it counts and logs goes to two files."""

    url: str
    name: str
    seed: int
    variant: str
    counts: str
    log: str

    @property
    def rng(self) -> random.Random:
        """Its own source of chance."""
        return random.Random(f"{self.seed}/{self.name}")

    @property
    def connect_args(self) -> dict[str, Any]:
        """What names its connections, in the words of its driver."""
        named = {"application_name": self.name}
        return {"server_settings": named} if "+asyncpg" in self.url else named
