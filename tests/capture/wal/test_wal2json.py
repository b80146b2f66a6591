"""The second plug-in. wal2json.jsonl was recorded from wal2json 2.6 on PostgreSQL 18 (of the large text, only its
beginning is kept); where a server has the plug-in, it is run too.

`FORGE_TEST_WAL2JSON` names a directory with a wal2json.so for the newest PostgreSQL of this machine.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge.capture.wal import WalSource, protocol
from forge.capture.wal.decode import WalDecoder
from forge.capture.wal.position import Timelines
from forge.capture.wal.protocol import RelationColumn, RelationMessage
from forge.capture.wal.relations import Facts, WalRelation
from forge.capture.wal.wal2json import Translator, event
from forge.change import UNAVAILABLE, Change, Op, same
from forge.changelog.install import install
from forge.errors import ConfigError, DecodeError, SourceError
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database, temporary_postgres
from tests.capture.wal.reading import changes, mark, to_end
from tests.changelog.test_capture_values import TYPES, VALUES, write

pytestmark = pytest.mark.contract("W4")

RECORDED = (Path(__file__).parent / "wal2json.jsonl").read_text("utf-8").splitlines()
SHAPE = RelationMessage(
    16384,
    "public",
    "t",
    "d",
    (
        RelationColumn("id", 23, -1, True),
        RelationColumn("price", 1700, (8 << 16 | 2) + 4, False),
        RelationColumn("raw", 17, -1, False),
        RelationColumn("big", 25, -1, False),
        RelationColumn("ok", 16, -1, False),
    ),
)
FORMS = [("integer", "int"), ("numeric(8,2)", "numeric"), ("bytea", "bytea"), ("text", "text"), ("boolean", "bool")]


def translated(lines: list[str]) -> list[Change]:
    """What a session would make of these lines."""
    translator = Translator()
    decoder = WalDecoder("shop", "1", Timelines(1), None, 700)
    for number, line in enumerate(lines):
        data = b"w" + struct.pack(">qqq", 1000 + number, 1000 + number, 0) + line.encode()
        found = event(data)
        messages = [] if translator.knows(found) else [translator.define(data, found, SHAPE)]
        for message in (*messages, translator.message(data, found)):
            kind = message[25:26]
            if kind == b"B":
                begin = protocol.begin(message)
                decoder.begin(begin.xid, begin.commit, begin.at)
            elif kind == b"R":
                said = protocol.relation(message)
                decoder.relations[message[26:30]] = WalRelation(said, Facts(FORMS, ("id",)))
            elif kind == b"M":
                decoder.message(message)
            elif kind == b"T":
                decoder.truncate(message)
            elif kind == b"C":
                assert protocol.commit(message).end == 0x171C0E8
                decoder.commit()
            else:
                assert decoder.rows([message], 0, 100) == 1
    return decoder.take()[0]


def test_recorded_lines() -> None:
    insert, update, delete, moved, gone, truncate = translated(RECORDED)
    assert insert.op is Op.INSERT
    assert insert.after is not None
    assert same(insert.after["raw"], b"\x00\xff")
    assert str(insert.after["price"]) == "NaN"
    assert (insert.after["big"], insert.after["ok"], insert.key) == ('a "b" \x01', True, {"id": 1})
    assert insert.context.user_id == "7"
    assert insert.source.transaction == "754"
    assert insert.at.isoformat() == "2026-11-16T06:06:25.606859+00:00"
    assert (update.op, update.key) == (Op.UPDATE, {"id": 1})
    assert update.after is not None
    assert (update.after["big"], update.after["raw"], str(update.after["price"])) == (UNAVAILABLE, None, "1.50")
    assert [(c.op, c.row_id) for c in (delete, moved, gone)] == [(Op.DELETE, "1"), (Op.INSERT, "2"), (Op.DELETE, "2")]
    assert (truncate.op, truncate.table, truncate.key) == (Op.TRUNCATE, "t", None)


@pytest.mark.parametrize("text", ["", "[]", '{"xid":1}', '{"action":"I","columns":7}', "\x00"])
def test_what_is_no_event(text: str) -> None:
    with pytest.raises(DecodeError, match="wal2json") as raised:
        event(b"w" + bytes(24) + text.encode())
    assert "pgoutput" in raised.value.fix


def test_plug_ins_that_there_are_not() -> None:
    with pytest.raises(ConfigError, match="no plug-in"):
        WalSource("postgresql://db/shop?plugin=decoderbufs")
    with pytest.raises(ConfigError, match="no size"):
        WalSource("postgresql://db/shop?limit=much")
    with pytest.raises(ConfigError, match="on_limit"):
        WalSource("postgresql://db/shop?on_limit=panic")
    assert WalSource("postgresql://db/shop?plugin=wal2json").capabilities.filters == ()


async def test_a_server_without_it(database: str) -> None:
    source = WalSource(database, plugin="wal2json")
    with pytest.raises(SourceError, match="not installed") as raised:
        await source.now()
    assert raised.value.fix == "use plugin=pgoutput"


@pytest.fixture
def with_plugin() -> Iterator[tuple[str, Connection]]:
    directory = os.environ.get("FORGE_TEST_WAL2JSON")
    if directory is None:
        pytest.skip("FORGE_TEST_WAL2JSON names no directory with wal2json.so")
    settings = {"dynamic_library_path": f"{directory}:$libdir"}
    with temporary_postgres(settings=settings) as server, fresh_database(server) as url, connect(url) as connection:
        install(connection)
        yield url, connection


async def test_both_plug_ins_say_the_same(with_plugin: tuple[str, Connection]) -> None:
    url, connection = with_plugin
    connection.execute(TYPES)
    columns = ", ".join(f"c{n} {kind}" for n, (kind, *_) in enumerate(VALUES))
    connection.execute(f"CREATE TABLE every_type (id int PRIMARY KEY, {columns})")
    connection.execute("ALTER TABLE every_type REPLICA IDENTITY FULL")
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, big text, v int)")
    connection.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    sources = [WalSource(url, slot="one"), WalSource(url, slot="two", plugin="wal2json")]
    cursors = [await source.now() for source in sources]
    write(connection)
    connection.execute("INSERT INTO t VALUES (1, repeat('x', 20000), 1)")
    connection.execute("UPDATE t SET v = 2")
    connection.execute("UPDATE t SET id = 3")
    connection.execute("ALTER TABLE t ADD w int")
    connection.execute("INSERT INTO t VALUES (4, 'y', 1, 9)")
    connection.execute("TRUNCATE t")
    mark(connection)
    first, second = [changes(await to_end(each, at)) for each, at in zip(sources, cursors, strict=True)]
    assert [(c.id, c.op, c.table, c.key) for c in first] == [(c.id, c.op, c.table, c.key) for c in second]
    for one, two in zip(first, second, strict=True):
        assert same(one.before and dict(one.before), two.before and dict(two.before)), (one.before, two.before)
        assert same(one.after and dict(one.after), two.after and dict(two.after)), (one.after, two.after)
