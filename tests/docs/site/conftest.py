import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from tests.docs.site.pages import Page, read

ROOT = Path(__file__).parents[3]
MKDOCS = ROOT / ".venvs" / "docs" / "bin" / "mkdocs"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The built site: one for all workers of a run, built by the first one that asks for it."""
    if not MKDOCS.exists():
        pytest.skip("the site is built by another environment: `make docs` installs it")
    here = tmp_path_factory.getbasetemp()
    shared = here if worker_id == "master" else here.parent
    folder = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            build(folder)
    return folder


def build(folder: Path) -> None:
    """Build the site; a warning of MkDocs is an error. An unfinished site has another name."""
    unfinished = folder.with_suffix(".unfinished")
    command = [str(MKDOCS), "build", "--strict", "--quiet", "--site-dir", str(unfinished)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    unfinished.rename(folder)


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[str, Page]:
    """The pages of the site, by their path in it."""
    return {str(file.relative_to(site)): read(file) for file in sorted(site.rglob("*.html"))}
