"""A real browser, from the distribution: Playwright drives it, and downloads none."""

import shutil
from typing import ClassVar

from tests.servers.server import Installable


class Chromium(Installable):
    name: ClassVar[str] = "chromium"
    how: ClassVar[str] = "apt-get install chromium"

    @classmethod
    def path(cls) -> str | None:
        return shutil.which("chromium") or shutil.which("chromium-browser")

    @classmethod
    def lacks(cls) -> str | None:
        return None if cls.path() else "it is not installed"
