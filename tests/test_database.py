"""What to do about a connection that failed depends on where its URL came from."""

from pathlib import Path

import psycopg
import pytest

from forge.config import Config
from forge.database import connection_fix
from forge.errors import ForgeError, ServerError


def failed(message: str, kind: type[psycopg.Error] = psycopg.OperationalError) -> ForgeError:
    try:
        raise ServerError("cannot reach the database", fix="?") from kind(message)
    except ServerError as error:
        return error


def named(origin: str) -> Config:
    return Config(database_url="postgresql://db", origins={"database_url": origin})


@pytest.mark.parametrize(
    ("config", "fix"),
    [
        (named("--database-url"), "start the server, or correct --database-url"),
        (named("FORGE_DATABASE_URL"), "start the server, or correct FORGE_DATABASE_URL"),
        (named("conf/forge.toml"), "start the server, or correct database_url in conf/forge.toml"),
        (Config(data=Path("here")), "try again; if that does not help, see here/postgres/server.log"),
    ],
)
def test_the_fix_names_the_source_of_the_url(config: Config, fix: str) -> None:
    assert connection_fix(failed("connection refused"), config) == fix


def test_a_server_that_answers_needs_no_start() -> None:
    fix = connection_fix(failed('database "x" does not exist'), named("FORGE_DATABASE_URL"))
    assert fix == "check the user, password and database in FORGE_DATABASE_URL"


def test_other_errors_keep_their_fix() -> None:
    assert connection_fix(failed("no", psycopg.ProgrammingError), named("--database-url")) is None
    assert connection_fix(ServerError("full", fix="?"), named("--database-url")) is None
