"""Programs of FastStream's command line, started in a folder of their own and stopped whatever happens."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def environment(database: str) -> dict[str, str]:
    return os.environ | {"SHOP_DATABASE": database, "PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": "1"}


def open_shop(folder: Path) -> Path:
    """Put the application into a folder, where `--reload` may watch it."""
    return Path(shutil.copy(Path(__file__).with_name("shop.py"), folder / "shop.py"))


@contextlib.contextmanager
def faststream(*arguments: str, folder: Path, database: str) -> Iterator[subprocess.Popen[str]]:
    """Run `faststream …`; its process, and those that it started, are gone at the end."""
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "faststream", *arguments],
            cwd=folder,
            env=environment(database),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a group of its own
            process.wait(timeout=30)
