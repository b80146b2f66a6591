"""Real MariaDB servers for tests, from the binaries of this machine, in a temporary folder, on a free port of loopback.

    with temporary_mariadb() as server, fresh_mariadb(server) as url:
        run(url, "create table t (id int primary key)")

A data directory is made once for each process and copied for each server. Nothing is left afterwards.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from forge.errors import SourceError
from forge.testing.server import ServerProcess

MARIADB_SETTINGS: dict[str, str] = {
    "log_bin": "mysql-bin",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "server_id": "1",
    "innodb_flush_log_at_trx_commit": "2",
    "innodb_buffer_pool_size": "32M",
    "innodb_log_file_size": "16M",
    "sync_binlog": "0",
    "performance_schema": "OFF",
    "skip_name_resolve": "ON",
}
"""What a server is given unless told otherwise: a log that tells everything, and no durability beyond the process."""

_template: Path | None = None


def mariadb_missing() -> str | None:
    """Why no server can be started here, or None."""
    for name in ("mariadbd", "mariadb-install-db"):
        if _binary(name) is None:
            return f"{name} is not installed: apt install mariadb-server"
    return None


class MariadbServer(ServerProcess):
    """A MariaDB server; it may be stopped, killed and started again, and its URL stays."""

    name = "MariaDB"

    def __init__(self, folder: Path, settings: Mapping[str, str | None]) -> None:
        super().__init__(folder)
        self._settings = settings

    def url(self, database: str = "", *, user: str = "root", password: str = "") -> str:
        """The URL of a database, or of the server."""
        who = f"{user}:{password}" if password else user
        return f"mysql://{who}@127.0.0.1:{self.port}/{database}"

    def argv(self) -> list[str]:
        binary = _binary("mariadbd")
        assert binary is not None
        command = [str(binary), "--no-defaults", f"--datadir={self.folder / 'data'}", f"--port={self.port}"]
        command += ["--bind-address=127.0.0.1", f"--socket={self.folder / 'sock'}", f"--pid-file={self.folder / 'pid'}"]
        command += [f"--{name}" if value is None else f"--{name}={value}" for name, value in self._settings.items()]
        return [*command, "--user=root"] if os.getuid() == 0 else command

    def answers(self) -> bool:
        try:
            run(self.url(), "SELECT 1")
        except OSError:
            return False
        return True


@contextmanager
def temporary_mariadb(settings: Mapping[str, str | None] | None = None) -> Iterator[MariadbServer]:
    """A running server of its own, gone with all its data after the block.

    `settings` are added to MARIADB_SETTINGS and win over them; None is an option without a value. Raises SourceError
    where MariaDB is not installed.
    """
    if missing := mariadb_missing():
        raise SourceError(f"no MariaDB server can be started: {missing}", fix="apt install mariadb-server")
    with tempfile.TemporaryDirectory(prefix="forge-maria-", ignore_cleanup_errors=True) as folder:
        shutil.copytree(_made_template() / "data", Path(folder, "data"), symlinks=True)
        with MariadbServer(Path(folder), {**MARIADB_SETTINGS, **(settings or {})}) as server:
            yield server


@contextmanager
def fresh_mariadb(server: MariadbServer) -> Iterator[str]:
    """The URL of a new database with a name of its own, which is dropped after the block if the server runs."""
    name = f"test_{uuid.uuid4().hex[:16]}"
    run(server.url(), f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    try:
        yield server.url(name)
    finally:
        if server.running:
            run(server.url(), f"DROP DATABASE IF EXISTS {name}")


def connect_mariadb(url: str, **options: Any) -> Any:
    """A connection of PyMySQL to a URL, in autocommit; OSError when nobody answers."""
    try:
        import pymysql  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise SourceError("PyMySQL is not installed", fix='pip install "forge-changes[mysql]"') from None
    parts = urlsplit(url)
    given = {
        "ssl_disabled": True,
        "autocommit": True,
        "charset": "utf8mb4",
        "read_timeout": 60,
        "write_timeout": 60,
        **options,
    }
    try:
        return pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=parts.username,
            password=unquote(parts.password or ""),
            database=parts.path.strip("/") or None,
            **given,
        )
    except pymysql.err.OperationalError as error:
        if error.args[0] in (2003, 2013, 2006):
            raise ConnectionError(str(error)) from None
        raise


def run(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements one after the other on a connection of their own; the rows of the last."""
    connection = connect_mariadb(url)
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())
    finally:
        connection.close()


def _binary(name: str) -> Path | None:
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/usr/local/bin"))
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def _made_template() -> Path:
    """A data directory with the server's own tables, made when first asked for and gone with the process."""
    global _template
    if _template is None:
        folder = Path(tempfile.mkdtemp(prefix="forge-maria-template-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        command = [str(_binary("mariadb-install-db")), "--no-defaults", f"--datadir={folder / 'data'}"]
        command += ["--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=16M"]
        if os.getuid() == 0:
            command.append("--user=root")
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            said = " ".join((done.stderr + done.stdout).split())[-500:]
            raise SourceError(f"MariaDB cannot be prepared: {said}", fix="apt install mariadb-server")
        _template = folder
    return _template
