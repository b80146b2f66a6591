"""Detect a pooler in transaction mode in front of the server: LISTEN through it is silently lost.

The check uses two connections of one client. A pooler reports its own process id for the server's (or that of a backend
that the session is not on later). And while one connection is in a transaction, the other begins one too: with a pooler
in transaction mode it moves to another backend, or a notification that it LISTENs for never arrives.
"""

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import psycopg
from psycopg import sql

from forge.doctor.finding import Case, Finding, info, ok, problem
from forge.postgres.connection import Connection, connect

WAIT = 2.0


def pooler(case: Case) -> Iterator[Finding]:
    """Check that a session keeps its backend, and receives the notifications that it listens for."""
    with closing(_session(case.url)) as one, closing(_session(case.url)) as other:
        announced = one.info.backend_pid
        try:
            moved = _moves(one, other)
            deaf = moved or not _hears(one, other)
        except psycopg.Error as error:
            yield problem(
                "pooler",
                f"a second session could not be used beside the first: {str(error).splitlines()[0]}",
                "give Forge a URL that goes straight to the server",
            )
            return
        if moved or deaf:
            yield problem(
                "pooler",
                "a pooler in transaction mode stands before the server: LISTEN and session locks are lost in it",
                "give Forge the server's own address, or a pool in session mode",
            )
        elif announced != _backend(one):
            yield info("pooler", "a pooler in session mode stands before the server")
        else:
            yield ok("pooler", "sessions are the server's own, and hear what they listen for")


def _session(url: str) -> Connection:
    connection = connect(url)
    connection.prepare_threshold = None
    return connection


def _moves(one: Connection, other: Connection) -> bool:
    """Whether a session moves to another backend when another transaction has taken its own."""
    first = _backend(one)
    with other.transaction():
        _backend(other)
        with one.transaction():
            return _backend(one) != first


def _hears(one: Connection, other: Connection) -> bool:
    """Whether a notification from another session arrives."""
    channel = f"forge_probe_{uuid4().hex}"
    one.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    other.execute("SELECT pg_notify(%s, '')", (channel,))
    heard = any(one.notifies(timeout=WAIT, stop_after=1))
    one.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))
    return heard


def _backend(connection: Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])
