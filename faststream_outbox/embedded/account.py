"""The unprivileged account a server runs under when Python runs as root, since PostgreSQL refuses root."""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from faststream_outbox.embedded.errors import AccountError

# `postgres` is the account an administrator would choose; `nobody` exists on nearly every other system.
DEFAULT_ACCOUNTS = ("postgres", "nobody")


class SwitchOptions(TypedDict, total=False):
    """The arguments of `subprocess.Popen` that change the account."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class Account:
    """An existing account of this machine."""

    name: str
    uid: int
    gid: int

    def can_enter(self, directory: Path) -> bool:
        """Whether the mode bits let this account pass through `directory` and all its parents."""
        resolved = directory.resolve()
        return all(self._can_pass(step) for step in (resolved, *resolved.parents))

    def _can_pass(self, directory: Path) -> bool:
        status = directory.stat()
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid == self.gid:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)


def account_to_run_as(name: str | None) -> Account | None:
    """Choose the account to switch to, or `None` when the server simply runs as the current user."""
    if os.geteuid() != 0:
        _check_current_user(name)
        return None
    candidates = (name,) if name is not None else DEFAULT_ACCOUNTS
    for candidate in candidates:
        account = _find(candidate)
        if account is not None:
            return account
    wanted = " or ".join(repr(candidate) for candidate in candidates)
    raise AccountError(
        "PostgreSQL refuses to run as root, and there is no unprivileged account "
        f"{wanted} on this machine to run it under. Name an existing one with "
        "EmbeddedPostgres(account=...), or run Python as a normal user."
    )


def switch_to(account: Account | None) -> SwitchOptions:
    """Give the arguments of `subprocess.Popen` that start a process under `account`."""
    if account is None:
        return {}
    # No supplementary groups: the server needs none of them, and root's must not leak into it.
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def _find(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    if entry.pw_uid == 0:
        return None
    return Account(name, entry.pw_uid, entry.pw_gid)


def _check_current_user(name: str | None) -> None:
    uid = os.geteuid()
    if name is not None:
        account = _find(name)
        if account is None or account.uid != uid:
            raise AccountError(
                f"account={name!r} needs root to switch to it. Leave it out to run the server as the current user."
            )
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise AccountError(
            f"The current user id {uid} has no account on this machine, and PostgreSQL needs its name. "
            "Add the id to /etc/passwd (in a container: in its image), or run under a user who is there."
        ) from None
