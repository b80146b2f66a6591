"""System resources of an embedded server: a user to run as, locks, processes, a port, files that it can reach."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pwd
import random
import re
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypedDict

from forge.errors import ServerError

USE_ANOTHER: Final = "set FORGE_DATABASE_URL to use a PostgreSQL server of your own"

_SYSTEM_USERS: Final = ("postgres", "pgserver")
_PORTS: Final = range(20000, 32000)  # below the ports that kernels assign automatically
_PROC: Final = Path("/proc/self/cmdline").exists()

logger = logging.getLogger("forge.embedded")


def server_account() -> pwd.struct_passwd | None:
    """Return the system user to run the server as, or None for ourselves. Only root needs one; created if missing."""
    if os.getuid() != 0:
        return None
    for name in _SYSTEM_USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    name = _SYSTEM_USERS[-1]
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", name]
    try:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        said = result.stderr.strip()
    except OSError as error:
        said = str(error)
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ServerError(
            f"PostgreSQL does not run as root, and no user {name} can be created: {' '.join(said.split())}",
            fix=f"create a system user named {name}, run as another user than root, or {USE_ANOTHER}",
        ) from None


class SystemUser(TypedDict):
    user: int | None
    group: int | None
    extra_groups: list[int] | None


def identity() -> SystemUser:
    account = server_account()
    if account is None:
        return {"user": None, "group": None, "extra_groups": None}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not re.match(r"PG|LC_|LANG", name)}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def locked(path: Path, operation: int) -> int:
    """Return a descriptor that holds a flock on the file until it is closed or its last process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, operation)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def command(pid: int) -> str:
    """Return the command line of a live process; empty for a dead one or a zombie."""
    if _PROC:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    answer = subprocess.run(["ps", "-ww", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True)
    state, _, command = answer.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else command


def children(pid: int) -> list[int]:
    if not _PROC:
        answer = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True)
        pairs = [line.split() for line in answer.stdout.splitlines()]
        return [int(child) for child, parent in pairs if int(parent) == pid]
    children = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(after_name[1]) == pid:
                    children.append(int(entry.name))
    return children


def wait(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def free_port() -> int:
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerError("no free port on 127.0.0.1", fix=f"free a port of {_PORTS.start} to {_PORTS.stop}")


def give(path: Path) -> None:
    """Make the server's user the owner of the file, unless that is the current user."""
    account = server_account()
    if account:
        os.chown(path, account.pw_uid, account.pw_gid)


def open_prefixes(path: Path) -> None:
    """Let the server's user traverse every directory above the path."""
    account = server_account()
    if account is None:
        return
    for prefix in (*path.parents, *path.resolve().parents):
        info = prefix.stat()
        if info.st_uid == account.pw_uid:
            passable = info.st_mode & stat.S_IXUSR
        elif info.st_gid == account.pw_gid:
            passable = info.st_mode & stat.S_IXGRP
        else:
            passable = info.st_mode & stat.S_IXOTH
        if not passable:
            logger.warning("opening %s for passing through (o+x) to user %s", prefix, account.pw_name)
            prefix.chmod(stat.S_IMODE(info.st_mode) | stat.S_IXOTH)


def open_tree(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        opened = mode | stat.S_IROTH | (stat.S_IXOTH if path.is_dir() or mode & stat.S_IXUSR else 0)
        if opened != mode:
            path.chmod(opened)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
