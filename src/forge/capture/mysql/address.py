"""Parse a URL, connect to its server, and explain refusals.

`mysql://user:password@host:3306/shop` follows the database `shop`; without a database, all that are not the server's
own. Options: `ssl=yes` (encrypted, or refused), `ssl=no`, `ssl_ca=FILE` (encrypted and verified), `socket=PATH`,
`failover=yes` (see `MysqlSource`), `server_id=N`. Without `ssl` it is encrypted if the server can, and not verified.

>>> address = MysqlAddress.parse("mysql://forge:s%40cret@db.example/shop?failover=yes")
>>> address.name, address.password, address.failover
('db.example:3306/shop', 's@cret', True)
"""

from __future__ import annotations

import contextlib
import socket as sockets
import ssl
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from forge.errors import ConfigError, ForgeError, SourceError, SourceUnreachable

Connection = Any
"""A connection of PyMySQL, which has no types."""

GRANT = "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO the user of the URL (on MySQL also RELOAD)"
UTF8 = "utf8mb4"

_OPTIONS = {"ssl", "ssl_ca", "socket", "failover", "server_id"}
_DENIED = {1044, 1045, 1142, 1143, 1227, 1370, 1698}
_UNREACHABLE = {2002, 2003, 2005, 2006, 2013, 2055, 1040, 1053, 1927, 1129, 1152, 1158, 1159, 1160, 1161, 1184, 1203}


class MysqlAddress(msgspec.Struct, frozen=True):
    """The address of the server and the credentials."""

    host: str
    port: int
    user: str | None
    password: str
    database: str | None
    socket: str | None = None
    ssl: bool | None = None
    ssl_ca: str | None = None
    failover: bool = False
    server_id: int | None = None

    @classmethod
    def parse(cls, url: str) -> MysqlAddress:
        """Parse a URL; raise ConfigError for an invalid one."""
        fix = "mysql://user:password@host:3306/database, or mariadb://…"
        try:
            parts = urlsplit(url)
            port = parts.port or 3306
        except ValueError:
            raise ConfigError("the URL of the MySQL server cannot be read", fix=fix) from None
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.scheme not in ("mysql", "mariadb") or not (parts.hostname or "socket" in options):
            raise ConfigError("the URL of the MySQL server cannot be read", fix=fix)
        if unknown := sorted(options.keys() - _OPTIONS):
            raise ConfigError(f"no option {unknown[0]!r} of a MySQL URL", fix=f"one of {', '.join(sorted(_OPTIONS))}")
        server_id = options.get("server_id")
        if server_id is not None and not (server_id.isdigit() and 0 < int(server_id) < 1 << 32):
            raise ConfigError(f"server_id={server_id} is not a server id", fix="a number from 1 to 4294967295")
        return cls(
            parts.hostname or "localhost",
            port,
            unquote(parts.username) if parts.username else None,
            unquote(parts.password or ""),
            unquote(parts.path.lstrip("/")) or None,
            options.get("socket"),
            _yes(options, "ssl") if "ssl" in options else None,
            options.get("ssl_ca"),
            _yes(options, "failover"),
            int(server_id) if server_id else None,
        )

    @property
    def name(self) -> str:
        """Return the server and the database, without secrets."""
        place = self.socket or f"{self.host}:{self.port}"
        return f"{place}/{self.database}" if self.database else place

    def connect(
        self, timeout: float, held: list[sockets.socket] | None = None, *, patience: float | None = None
    ) -> Connection:
        """Return a connection whose every read and write ends within `patience`, or else `timeout`; or raise
        SourceError.

        Texts come as UTF-8, times in UTC. Its socket is put into `held` first, so that another thread can close it.
        """
        try:
            import pymysql  # type: ignore[import-untyped]
        except ModuleNotFoundError:
            raise SourceError("PyMySQL is not installed", fix='pip install "forge-changes[mysql]"') from None
        made: Connection = pymysql.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            unix_socket=self.socket,
            charset=UTF8,
            conv=dict(pymysql.converters.encoders),
            autocommit=True,
            connect_timeout=max(1, int(timeout)),
            read_timeout=patience or timeout,
            write_timeout=patience or timeout,
            ssl_disabled=True,
            init_command="SET time_zone = '+00:00', sql_mode = '', net_write_timeout = 600, wait_timeout = 28800",
            program_name="forge",
            defer_connect=True,
        )
        if self.ssl is not False or self.ssl_ca:
            made.ssl, made.ctx, made._ssl_required = True, _encryption(self.ssl_ca), bool(self.ssl or self.ssl_ca)
        try:
            link = self._socket(timeout)
            if held is not None:
                held[:] = [link]
            made.connect(link)
        except (pymysql.Error, OSError) as error:
            with contextlib.suppress(pymysql.Error, OSError):
                made._force_close()
            raise self.refused(error) from None
        return made

    def _socket(self, timeout: float) -> sockets.socket:
        if self.socket:
            made = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
            made.settimeout(timeout)
            try:
                made.connect(self.socket)
            except OSError:
                made.close()
                raise
            return made
        made = sockets.create_connection((self.host, self.port), timeout)
        made.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        made.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(sockets, name):
                made.setsockopt(sockets.IPPROTO_TCP, getattr(sockets, name), value)
        made.settimeout(None)
        return made

    def refused(self, error: Exception) -> ForgeError:
        """Return the meaning of an error of the client library; SourceUnreachable if it may be transient."""
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        words = " ".join(str(error.args[1] if len(error.args) > 1 else error).split())[:300]
        if "CERTIFICATE_VERIFY_FAILED" in words or code == 2026:
            return SourceError(f"{self.name} is not as safe as asked: {words}", fix="check ssl and ssl_ca in the URL")
        if isinstance(error, OSError) or code in _UNREACHABLE or (code == 0 and not words):
            return SourceUnreachable(
                f"{self.name} cannot be reached: {words or 'the connection ended'}", fix="start it"
            )
        if code in (1045, 1698, 1044):
            return SourceError(f"{self.name} refuses the user: {words}", fix="check user and password in the URL")
        if code in _DENIED:
            return SourceError(f"{self.name} refuses a right: {words}", fix=GRANT)
        return SourceError(f"{self.name}: {words} ({code})", fix="see the message of the server")


@lru_cache
def _encryption(ca: str | None) -> ssl.SSLContext:
    """Create the context once: the client library would load all certificates of the machine for each connection."""
    try:
        if ca is not None:
            return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ConfigError(f"ssl_ca={ca} cannot be read: {error}", fix="name a file of certificates") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _yes(options: dict[str, str], name: str) -> bool:
    value = options.get(name, "no")
    if value not in ("yes", "no", "true", "false", "1", "0"):
        raise ConfigError(f"{name}={value} is neither yes nor no", fix=f"{name}=yes or {name}=no")
    return value in ("yes", "true", "1")
