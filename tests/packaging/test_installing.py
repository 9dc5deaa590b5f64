"""The lines of docs/install.md, run as they are printed, in an empty environment."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from faststream_outbox import __version__
from tests.packaging.environments import ROOT, Environment
from tests.packaging.test_archives import EXTRAS

PAGE = (ROOT / "docs" / "install.md").read_text()
LINES = re.findall(r"^pip install .*$", PAGE, re.MULTILINE)
# A program that shows that what was installed works: a message is published, and handled.
PROGRAM = """
import asyncio

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from faststream_outbox import OutboxBroker, __file__, make_dlq_table, make_outbox_table
from faststream_outbox.embedded import EmbeddedPostgres


async def main() -> None:
    with EmbeddedPostgres() as postgres:
        metadata = MetaData()
        engine = create_async_engine(postgres.url("asyncpg"))
        broker = OutboxBroker(engine, outbox_table=make_outbox_table(metadata), dlq_table=make_dlq_table(metadata))
        handled = asyncio.get_running_loop().create_future()

        @broker.subscriber("orders")
        async def handle(order_id: int) -> None:
            handled.set_result(order_id)

        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        async with async_sessionmaker(engine)() as session, session.begin():
            await broker.publish(7, queue="orders", session=session)
        await broker.start()
        print("handled", await asyncio.wait_for(handled, 60), "by", __file__)
        await broker.stop()
        await engine.dispose()


asyncio.run(main())
"""


# pip asks a registry, and builds the package three times.
@pytest.mark.timeout(900)
def test_every_line_installs_a_package_that_works(
    wheel: Path, sources: Path, environment: Environment, tmp_path: Path
) -> None:
    from_checkout, from_wheel, from_git = LINES
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (sources / "dist").mkdir()
    (sources / "dist" / wheel.name).write_bytes(wheel.read_bytes())

    environment.install(from_wheel, sources)
    assert origin(environment)["archive_info"]
    done = environment.shell(f"python {program}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"handled 7 by {environment.packages}/faststream_outbox/__init__.py\n")
    assert environment.shell("faststream-outbox --version", tmp_path).stdout == f"{__version__}\n"

    environment.install(from_checkout, sources)
    assert origin(environment)["dir_info"] == {}

    # pip would keep what has the same version. git takes the local repository in place of the address.
    environment.install("pip uninstall --yes faststream-outbox", tmp_path)
    address, instead = "https://git.example/faststream-outbox.git", f"url.file://{as_repository(sources)}.insteadOf"
    local = f"GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0='{instead}' GIT_CONFIG_VALUE_0={address}"
    environment.install(f"{local} {from_git.replace('ADDRESS', address)}", tmp_path)
    assert origin(environment)["vcs_info"]["vcs"] == "git"

    asked = environment.shell(re.findall(r"^python -c .*faststream_outbox.*$", PAGE, re.MULTILINE)[0], tmp_path)
    assert asked.stdout == f"{__version__}\n"


def origin(environment: Environment) -> dict[str, dict[str, str]]:
    """Return where pip has the package from, as it recorded it."""
    [file] = environment.packages.glob("faststream_outbox-*.dist-info/direct_url.json")
    record: dict[str, dict[str, str]] = json.loads(file.read_text())
    return record


def as_repository(folder: Path) -> Path:
    """Commit a folder, so that it can be cloned."""
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    commit = [*identity, "commit", "--quiet", "--message", "All"]
    for command in (["init", "--quiet", "--initial-branch", "main"], ["add", "."], commit):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def test_the_lines_name_this_version_and_extras_that_are_there() -> None:
    assert len(LINES) == 3
    assert f"dist/faststream_outbox-{__version__}-py3-none-any.whl" in LINES[1]
    named = {extra for line in LINES for extra in re.findall(r"\[([\w,]+)\]", line)[0].split(",")}
    assert named <= EXTRAS.keys()
