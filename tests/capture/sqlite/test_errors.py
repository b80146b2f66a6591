"""What is wrong with a file is said in one line, with what to do."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forge.capture import Filter, open_source
from forge.capture.sqlite import SqliteSource, enable
from forge.capture.sqlite.file import SqliteFile
from forge.errors import ConfigError, ForgeError, NotInstalled, SchemaTooNew, SourceError
from tests.capture.sqlite.files import url_of, writer

pytestmark = [pytest.mark.contract("W6")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "shop.db"
    connection = writer(found, wal=False)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    connection.close()
    enable(url_of(found), ["orders"])
    return found


async def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "no.db"
    with pytest.raises(SourceError, match="there is no file") as error:
        await SqliteSource(url_of(path)).now()
    assert "sqlite:////absolute" in error.value.fix
    with pytest.raises(SourceError, match="there is no file"):
        enable(url_of(path), ["t"])
    assert not [*os.scandir(tmp_path)]


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4080])
async def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "text.db"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"not a SQLite database|is damaged|cannot be"):
        await SqliteSource(url_of(path)).now()


async def test_a_folder_is_no_file(tmp_path: Path) -> None:
    for url in (url_of(tmp_path), "sqlite://///"):
        with pytest.raises(SourceError, match="is a folder") as error:
            await SqliteSource(url).now()
        assert error.value.fix == "name the database file in it"


async def test_slashes_too_many_do_no_harm(path: Path) -> None:
    assert await SqliteSource(f"sqlite:////{path}").now() == await SqliteSource(url_of(path)).now()


async def test_who_has_a_write_ahead_log_is_not_told_to_have_one(path: Path) -> None:
    connection = writer(path, wal=True)
    connection.execute("BEGIN IMMEDIATE")
    file = SqliteFile(url_of(path), patience=0.05)
    with closing(file.connect()) as other, pytest.raises(SourceError, match="was locked") as error, file.errors():
        other.execute("BEGIN IMMEDIATE")
    assert "transactions short" in error.value.fix
    assert "journal_mode" not in error.value.fix
    connection.close()


async def test_an_empty_file_is_an_untracked_database(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    for call in (SqliteSource(url_of(path)).now(), SqliteSource(url_of(path)).stream().__anext__()):
        with pytest.raises(NotInstalled) as error:
            await call
        assert error.value.fix == f"forge enable TABLE --database-url {url_of(path)}"


async def test_a_locked_file(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    source = SqliteSource(url_of(path), patience=0.05)
    for call in (source.now(), source.stream().__anext__(), source.snapshot().__anext__()):
        with pytest.raises(SourceError, match=r"was locked by another connection for 0\.05 s") as error:
            await call
        assert "journal_mode=WAL" in error.value.fix
    connection.execute("ROLLBACK")


@pytest.fixture
def nobody() -> Iterator[None]:
    """Root may write anything, so what may not be written is tried as somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def open_to_all(path: Path) -> None:
    path.parent.chmod(0o755)


async def test_a_file_that_may_not_be_written(path: Path, request: pytest.FixtureRequest) -> None:
    open_to_all(path)
    os.chmod(path, 0o444)
    request.getfixturevalue("nobody")
    async with SqliteSource(url_of(path)) as source:
        cursor = await source.now()
        with pytest.raises(SourceError, match="cannot be written") as error:
            await source.ack(cursor)
        assert "right to read and write the file and its folder" in error.value.fix
    with pytest.raises(SourceError, match="cannot be written"):
        enable(url_of(path), every=True)


async def test_a_folder_in_which_no_journal_may_be_made(path: Path, request: pytest.FixtureRequest) -> None:
    open_to_all(path)
    os.chmod(path, 0o666)
    request.getfixturevalue("nobody")
    with pytest.raises(SourceError, match=r"cannot be (opened|written)") as error:
        enable(url_of(path), every=True, mask=["note"])
    assert "its folder" in error.value.fix


async def test_a_file_that_may_not_be_read(path: Path, request: pytest.FixtureRequest) -> None:
    open_to_all(path)
    os.chmod(path, 0o200)
    request.getfixturevalue("nobody")
    with pytest.raises(SourceError, match="may not be read"):
        await SqliteSource(url_of(path)).now()


async def test_a_file_of_a_newer_forge(path: Path) -> None:
    writer(path, wal=False).execute("UPDATE forge_state SET format = 99")
    with pytest.raises(SchemaTooNew):
        await SqliteSource(url_of(path)).now()


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://host/x.db", "sqlite:///x?y=1"]
)
def test_urls_that_name_no_file(url: str) -> None:
    with pytest.raises(ConfigError):
        open_source(url)


def test_a_condition_that_cannot_be_decided_is_refused_at_once(path: Path) -> None:
    with pytest.raises(ConfigError):
        SqliteSource(url_of(path), Filter(where="lower(note) = 'x'"))


async def test_the_status_advises_wal(path: Path) -> None:
    async with SqliteSource(url_of(path)) as source:
        status = await source.status()
    assert status.warnings == ("readers and writers wait for each other: PRAGMA journal_mode=WAL",)
    assert status.details["tables"] == ["orders"]


async def test_messages_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ForgeError) as error:
        await SqliteSource(url_of(tmp_path / "no.db")).now()
    assert "\n" not in str(error.value)
    assert "\n" not in error.value.fix
