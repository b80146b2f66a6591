"""The `source` block of an envelope, as the connector of the change's database writes it.

=================  ==========  ===============================================================================
Change.source      connector   its own fields
=================  ==========  ===============================================================================
postgres-log       postgresql  `schema`, `table`, `txId`; `lsn` and `xmin` are null
wal                postgresql  the same with `lsn`, and `db`
mysql              mysql, or   `table`, `gtid`, `file`, `pos`, `row`, `server_id` where the GTID has it; `db` is the
                   mariadb     schema. `thread` and `query` are null
mongo              mongodb     `collection`; `db` is the schema. `before` and `after` are texts of extended JSON
sqlite, hook       sqlite      `table`, `db` is `main`; Debezium has no such connector
anything else      postgresql  as of the log
=================  ==========  ===============================================================================
"""

import json
import re
from typing import Any, Final
from urllib.parse import urlsplit

from forge.change import Change, Op

_MARIADB_GTID: Final = re.compile(r"[0-9]+-([0-9]+)-[0-9]+")
_MYSQL_PLACE: Final = re.compile(r"([^:]+):0*([0-9]+)(?:\.[0-9]+\.0*([0-9]+))?(?:[^0-9].*)?")
_WAL_PLACE: Final = re.compile(r"[0-9a-f]{16}(?:\.([0-9a-f]{16}))?(?:\..*)?")
_NUMBER: Final = re.compile("[0-9]{1,20}")


def connector(change: Change) -> str:
    """Return the connector that would have captured the change."""
    kind = change.source.kind
    if kind == "mysql":
        return "mariadb" if _MARIADB_GTID.fullmatch(change.source.transaction or "") else "mysql"
    return _CONNECTORS.get(kind, "postgresql")


_CONNECTORS: Final = {"mongo": "mongodb", "sqlite": "sqlite", "hook": "sqlite"}


def block(change: Change, name: str, version: str, times: dict[str, int]) -> dict[str, Any]:
    """Return the whole block; `name` is the connector's."""
    return {
        "version": version,
        "connector": name,
        "name": change.source.name,
        **times,
        "snapshot": "true" if change.op is Op.READ else "false",
        **_OWN[name](change),
    }


def _postgresql(change: Change) -> dict[str, Any]:
    source = change.source
    wal = _WAL_PLACE.fullmatch(source.position) if source.kind == "wal" else None
    lsn = None if wal is None else int(wal[1] or source.position[:16], 16)
    place = source.position if lsn is None else str(lsn)
    transaction = source.transaction
    return {
        "db": urlsplit(source.name).path.lstrip("/") if source.kind == "wal" else "",
        "sequence": json.dumps([None, place], ensure_ascii=False, separators=(",", ":")),
        "schema": change.schema,
        "table": change.table,
        "txId": int(transaction) if transaction and _NUMBER.fullmatch(transaction) else None,
        "lsn": lsn,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }


def _mysql(change: Change) -> dict[str, Any]:
    source = change.source
    place = _MYSQL_PLACE.fullmatch(source.position)
    gtid = source.transaction
    server = _MARIADB_GTID.fullmatch(gtid or "")
    return {
        "db": change.schema,
        "sequence": None,
        "table": change.table,
        "server_id": int(server[1]) if server else 0,
        "gtid": gtid if gtid and (server or ":" in gtid) else None,
        "file": place[1] if place else "",
        "pos": int(place[2]) if place else 0,
        "row": int(place[3] or 0) if place else 0,
        "thread": None,
        "query": None,
    }


def _mongodb(change: Change) -> dict[str, Any]:
    return {
        "db": change.schema,
        "sequence": None,
        "collection": change.table,
        "ord": 0,
        "lsid": None,
        "txnNumber": None,
        "wallTime": None,
    }


def _sqlite(change: Change) -> dict[str, Any]:
    return {"db": change.schema, "sequence": None, "table": change.table}


_OWN: Final = {
    "postgresql": _postgresql,
    "mysql": _mysql,
    "mariadb": _mysql,
    "mongodb": _mongodb,
    "sqlite": _sqlite,
}
