"""Temporary real PostgreSQL servers and databases for tests, ours and our users'.

    with temporary_postgres() as server, fresh_database(server) as url:
        connection = psycopg.connect(url)

A server lives in a directory of its own that is deleted after the block, whatever happened inside, in memory where
there is plenty. It does not wait for the disk (`fsync=off`); a crash of its processes still loses nothing that was
committed, because what they wrote is with the operating system and full-page writes stay on.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from forge.embedded import EMBEDDED_SETTINGS, PostgresServer, wheel_binaries
from forge.testing.place import temporary_folder

__all__ = ["TEST_SETTINGS", "available_versions", "fresh_database", "temporary_postgres"]

TEST_SETTINGS: Mapping[str, str] = {**EMBEDDED_SETTINGS, "fsync": "off"}

_WHEEL = {16: "pginstall", 18: "pginstall18"}
_DEBIAN = Path("/usr/lib/postgresql")


def available_versions() -> dict[int, Path]:
    """The directories of PostgreSQL binaries on this machine by major version, oldest first.

    Those of the installed wheel, and Debian's; where both have a version, the wheel's.
    """
    found = {}
    for postgres in _DEBIAN.glob("*/bin/postgres"):
        if postgres.parent.parent.name.isdigit():
            found[int(postgres.parent.parent.name)] = postgres.parent
    for version, directory in _WHEEL.items():
        if binaries := wheel_binaries(directory):
            found[version] = binaries
    return dict(sorted(found.items()))


@contextmanager
def temporary_postgres(
    *, bin: Path | None = None, settings: Mapping[str, str] | None = None, tcp: bool = True
) -> Iterator[PostgresServer]:
    """A running server of its own, gone with all its data after the block.

    `settings` are added to TEST_SETTINGS and win over them. The server may be stopped, crashed and started
    again inside the block, its URL stays.
    """
    merged = {**TEST_SETTINGS, **(settings or {})}
    directory = temporary_folder("forge-pg-", on_disk=merged["fsync"] != "off")
    directory.chmod(0o711)
    try:
        server = PostgresServer(directory / "server", bin=bin, settings=merged, tcp=tcp, durable=False)
        try:
            server.start()
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def fresh_database(server: PostgresServer, template: str | None = None) -> Iterator[str]:
    """The URL of a new database with a name of its own, a copy of `template` where one is named.

    After the block it is dropped, with its connections, prepared transactions and slots. Nothing is dropped
    when the server does not run by then.
    """
    name = f"test_{uuid.uuid4().hex[:16]}"
    create = sql.SQL("create database {}").format(sql.Identifier(name))
    if template is not None:
        create += sql.SQL(" template {}").format(sql.Identifier(template))
    with psycopg.connect(server.url(), autocommit=True) as admin:
        if admin.info.server_version >= 150000:
            create += sql.SQL(" strategy file_copy")  # half the work of the default, and half of it to drop
        admin.execute(create)
    try:
        yield server.url(name)
    finally:
        if server.running:
            _drop(server, name)


def _drop(server: PostgresServer, name: str, timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    drop = sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
    with psycopg.connect(server.url(), autocommit=True) as admin:
        while True:
            try:
                admin.execute(drop)
                return
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > deadline:
                    raise
            _release(server, admin, name)


def _release(server: PostgresServer, admin: psycopg.Connection, name: str) -> None:
    """End what keeps a database from being dropped: walsenders of its slots, and prepared transactions."""
    admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
    prepared = admin.execute("select gid from pg_prepared_xacts where database = %s", [name]).fetchall()
    if prepared:
        with psycopg.connect(server.url(name), autocommit=True) as inside:
            for (gid,) in prepared:
                inside.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
    time.sleep(0.01)
