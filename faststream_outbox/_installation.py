"""What is wrong with an installation: an extra is missing, or two packages of this name lie in one folder.

The original package on PyPI has the same name and the same folder. pip removes one of them before it installs the
other, but `--ignore-installed`, `--target` and copied folders leave files of both. Python then imports modules of each.
"""

import sys
from pathlib import Path
from typing import Final

from faststream_outbox.__about__ import __version__

# Modules of the original package that this one has never had. Our `parser.py` would be hidden by its `parser/`.
_FOREIGN: Final = ("autovacuum.py", "parser/parser.py", "registrator.py", "schema_validation.py")


def needs_extra(what: str, extra: str) -> str:
    """Return which extra `what` needs, and how to install it; a sentence without its full stop.

    A command with the name alone, `pip install 'faststream-outbox[…]'`, would install the original package.
    """
    install = f"pip install '<checkout or wheel>[{extra}]' (docs/install.md)"
    return f"{what} needs the extra `{extra}` of this package: {install}"


def foreign_parts(folder: Path, root_version: str | None) -> list[str]:
    """Return what of the original package is in the folder of this one; nothing, as a rule.

    `root_version` is what the imported `faststream_outbox/__init__.py` calls its version. The original sets none.
    """
    found = [name for name in _FOREIGN if (folder / name).exists()]
    return found if root_version == __version__ else ["__init__.py", *found]


def check_installation() -> None:
    """Raise `ImportError` if the original package and this one were installed into one folder."""
    folder = Path(__file__).parent
    if found := foreign_parts(folder, getattr(sys.modules["faststream_outbox"], "__version__", None)):
        raise ImportError(
            f"Two packages are mixed in {folder}: faststream-outbox {__version__}, which says this, and the original "
            f"faststream-outbox of PyPI, whose {', '.join(found)} lie there too. Remove both: run `pip uninstall "
            "faststream-outbox` until it finds nothing, delete the folder, and install the one that you want again."
        )


check_installation()
