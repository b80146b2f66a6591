"""Follow Forge's change log with psycopg alone, without Forge's package: one line of JSON per change, none lost.

pip install 'psycopg[binary]>=3.2'
python own_reader.py postgresql://… --cursor shop.cursor >> changes.jsonl

Without a cursor it begins with the oldest change that is kept. The steps are those of "Read it yourself" in
docs/reference/log.md; values are printed in the wire form of docs/reference/values.md.

Invariants:
- The cursor is saved after the lines up to it are written. One run prints no change twice; the run after a crash may
  repeat the lines of the last page, with the same ids in the same order.
- A line that a crash cut off is not JSON, and its change is printed again. Skip it, and empty lines.
"""

import argparse
import base64
import json
import os
import random
import re
import stat
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import set_json_loads

START = "1:1:"  # the snapshot that has seen nothing
UNAVAILABLE = {"$unavailable": True}  # a value that is not in the log
OPS = {"I": "insert", "U": "update", "D": "delete", "T": "truncate", "S": "schema", "X": "invalidate", "R": "redact"}
COLUMNS = (
    "l.id, coalesce(l.rank, l.id) AS place, l.at, l.version, l.op, l.before, l.after, l.hidden, l.user_id, l.context"
)
UNSEEN = "(l.transaction_id >= %(xmax)s::xid8 OR l.transaction_id = ANY (%(running)s::xid8[])) AND l.id >= %(first_id)s"
TRIMMED = "forge.trimmed_since(%(xmax)s::xid8, %(running)s::xid8[], %(first_id)s)"
IDENTITY = """SELECT uuid::text, system_identifier, timeline, first_id, pg_snapshot_xmax(pg_current_snapshot())::text
    FROM forge.current_identity()"""
READ = f"""
WITH head AS MATERIALIZED (
    SELECT pg_current_snapshot()::text AS snapshot, pg_current_wal_insert_lsn()::text AS lsn, {TRIMMED} AS trimmed)
SELECT h.snapshot, h.lsn, h.trimmed, c.*
FROM head h LEFT JOIN LATERAL (
    SELECT {COLUMNS} FROM forge.forge_event_log l WHERE {UNSEEN}
    ORDER BY coalesce(l.rank, l.id), l.id LIMIT %(limit)s) c ON true
ORDER BY c.place, c.id"""
PAGE = f"""
SELECT {COLUMNS} FROM forge.forge_event_log l
WHERE {UNSEEN} AND pg_visible_in_snapshot(l.transaction_id, %(until)s::pg_snapshot)
  AND (coalesce(l.rank, l.id), l.id) > (%(place)s, %(id)s)
ORDER BY coalesce(l.rank, l.id), l.id LIMIT %(limit)s"""
TRIMMED_MEANWHILE = """EXISTS (SELECT FROM forge.trimmed t WHERE t.last_id > %(place)s AND (
    t.last_id >= %(id)s OR pg_snapshot_xmax(t.snapshot) >= pg_snapshot_xmax(%(until)s::pg_snapshot)))"""


Connection = psycopg.Connection[Any]


class Refused(Exception):
    """The cursor cannot be used: step 7."""


class Number(str):
    """A JSON number as it was written."""


@dataclass(frozen=True)
class Cursor:
    """The changes that the snapshot `old` sees and, within a batch, those of `until` up to `(place, id)`."""

    log: str
    system: str
    timeline: int
    old: str = START
    until: str | None = None
    place: int | None = None
    id: int | None = None


class LogReader:
    """The changes after a cursor, page by page. What `page` returns is on the server's disk."""

    def __init__(self, db: Connection, listener: Connection, cursor: Cursor | None, limit: int = 500) -> None:
        self.db, self.listener, self.limit = db, listener, limit
        self.versions: dict[int, Any] = {}
        db.execute("SET synchronous_commit = local")  # step 1
        db.execute("SET enable_seqscan = off")
        db.execute("SET TimeZone = 'UTC'")
        set_json_loads(load, db)
        listener.execute("LISTEN forge_changes")
        [(*log, self.first_id, xmax)] = self.query(IDENTITY)
        self.cursor = cursor or Cursor(*log)  # step 2
        if [self.cursor.log, self.cursor.system, self.cursor.timeline] != log:
            raise Refused("the cursor is of another log: another database, or a failover, a restore or a copy since")
        if int(xmax) < int(unfinished(self.cursor.until or self.cursor.old)[0]):
            raise Refused("the server lost transactions that the cursor has seen")

    def query(self, statement: str, parameters: Any = None) -> list[Any]:
        return self.db.execute(statement, parameters).fetchall()

    def page(self) -> tuple[list[dict[str, Any]], Cursor]:
        """The next changes and the cursor after them; it has `until` while the batch goes on."""
        cursor = self.cursor
        xmax, running = unfinished(cursor.old)
        given = {**asdict(cursor), "xmax": xmax, "running": running, "first_id": self.first_id, "limit": self.limit}
        if cursor.until is None:  # step 3
            rows = self.query(READ, given)
            until, lsn, trimmed = rows[0][:3]
            trimmed = trimmed and cursor.old != START
            rows = [row for row in rows if row.id is not None]
        else:  # step 4
            rows, until, lsn = self.query(PAGE, given), cursor.until, None
            trimmed = self.query(f"SELECT {TRIMMED_MEANWHILE if cursor.old == START else TRIMMED}", given)[0][0]
        if trimmed:
            raise Refused("the log was trimmed beyond the cursor")
        if lsn and not self.query("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", [lsn])[0][0]:  # step 5
            if not rows:
                return [], cursor  # not worth a write: a later read finds it flushed
            self.query("SELECT pg_logical_emit_message(true, 'forge', '')")
        if len(rows) < self.limit:
            after = replace(cursor, old=until, until=None, place=None, id=None)
        else:
            after = replace(cursor, until=until, place=rows[-1].place, id=rows[-1].id)
        return [self.change(row) for row in rows], after

    def wait(self, seconds: float = 1) -> None:
        """Step 6."""
        list(self.listener.notifies(timeout=seconds, stop_after=1))

    def change(self, row: Any) -> dict[str, Any]:
        if row.version not in self.versions:
            statement = "SELECT schema_name, table_name, columns, key_columns FROM forge.table_version WHERE id = %s"
            self.versions[row.version] = self.query(statement, [row.version])[0]
        version = self.versions[row.version]
        kinds = {column["name"]: column["kind"] for column in version.columns}
        after = decode(row.after, kinds, {})
        before = decode(row.before, kinds, after or {})
        image = after or before
        changed = []
        if row.op == "U":
            changed = [name for name in kinds if name in (row.hidden or ()) or before[name] != after[name]]
        return {
            "op": OPS[row.op],
            "schema": version.schema_name,
            "table": version.table_name,
            "key": {name: image[name] for name in version.key_columns} if image and version.key_columns else None,
            "before": before if row.op != "R" else None,
            "after": after,
            "changed": changed,
            "at": f"{row.at:%Y-%m-%dT%H:%M:%S.%fZ}",
            "user": row.user_id,
            "id": f"{self.cursor.log}:{row.id}",
            "position": f"{row.place}.{row.id}",  # what a redaction's note refers to
            "note": tagged(row.context) if row.op in "SXR" else None,
        }


def unfinished(snapshot: str) -> tuple[str, str]:
    """The transactions that a snapshot does not see: all from xmax on, and an array of those that were running."""
    _, xmax, running = snapshot.split(":")
    return xmax, "{" + running + "}"


def load(text: bytes | str) -> Any:
    """Parse JSON, numbers as they are written; a member nested deeper than 200 levels becomes a string, its text."""
    text = text if isinstance(text, str) else text.decode()
    level = deepest = start = 0
    deep = []
    if text.count("[") + text.count("{") > 200:
        for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', text):
            level += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
            if level == 2 and token[0] in "[{":
                start, deepest = token.start(), 2
            deepest = max(deepest, level)
            if level == 1 and token[0] in "]}" and deepest > 201:
                deep.append(slice(start, token.end()))
    for member in reversed(deep):
        text = text[: member.start] + json.dumps(text[member]) + text[member.stop :]
    return json.loads(text, parse_int=Number, parse_float=Number)


def decode(image: Any, kinds: dict[str, str], missing: dict[str, Any]) -> Any:
    """A whole row in wire form; what the image leaves out is as in `missing`, or unavailable."""
    if image is None:
        return None
    redacted = () if "$redacted" in kinds else image.get("$redacted", ())
    row = {name: value(image[name], kind) for name, kind in kinds.items() if name in image}
    return {name: UNAVAILABLE if name in redacted else row.get(name, missing.get(name, UNAVAILABLE)) for name in kinds}


def value(logged: Any, kind: str) -> Any:
    """A value of an image in wire form."""
    if logged is None:
        return None
    if kind.endswith("[]"):
        if isinstance(logged, str):
            return logged  # a literal
        return [value(element, kind if isinstance(element, list) else kind[:-2]) for element in logged]
    if kind == "float":
        return {"$float": logged} if logged in ("NaN", "Infinity", "-Infinity", "-0") else float(logged)
    if kind == "numeric":
        return {"$numeric": logged}
    if kind == "bytea":
        return {"$bytes": base64.b64encode(bytes.fromhex(logged.removeprefix("\\x"))).decode()}
    if kind == "jsonb" and isinstance(logged, dict) and "$json" in logged:
        logged = logged["$json"]
        return {"$json": None} if logged is None else tagged(logged)
    return tagged(logged)


def tagged(part: Any) -> Any:
    """JSON in wire form: what a JavaScript number cannot hold, and objects that look like a tag, get a tag."""
    if isinstance(part, Number):
        if not re.fullmatch(r"-?\d{1,4300}", part):
            return {"$numeric": part}
        return int(part) if abs(int(part)) < 2**53 else {"$int": part}
    if isinstance(part, list):
        return [tagged(element) for element in part]
    if isinstance(part, dict):
        members = {name: tagged(member) for name, member in part.items()}
        return {"$object": members} if any(name.startswith("$") for name in members) else members
    return part


def connect(url: str) -> Connection:
    alive: dict[str, Any] = {"connect_timeout": 10, "keepalives_idle": 5, "tcp_user_timeout": 10_000}
    return psycopg.connect(url, autocommit=True, row_factory=namedtuple_row, client_encoding="utf8", **alive)


def restore(path: Path) -> Cursor:
    try:
        return Cursor(**json.loads(path.read_text()))
    except (TypeError, ValueError) as error:
        raise Refused(f"the file is not a cursor ({error})") from error


def save(cursor: Cursor, path: Path) -> None:
    """Replace the file, which has the old cursor or the new one whenever the machine stops."""
    new = path.with_name(path.name + ".new")
    with new.open("w") as file:
        json.dump(asdict(cursor), file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def follow(url: str, path: Path | None, once: bool) -> None:
    """Print changes and save the cursor, for ever or up to what is committed now; connect again when it is lost."""
    cursor = restore(path) if path and path.exists() else None
    output = os.fstat(sys.stdout.fileno())
    on_disk = stat.S_ISREG(output.st_mode)
    if on_disk and output.st_size:
        print()  # ends a line that a crash cut off
    connected, begun, failures = False, False, 0
    while True:
        try:
            with connect(url) as db, connect(url) as listener:
                connected = True
                reader = LogReader(db, listener, cursor)
                while True:
                    begun = begun or reader.cursor.until is None  # else it ends the batch of an earlier run first
                    changes, cursor = reader.page()
                    for change in changes:
                        print(json.dumps(change))
                    sys.stdout.flush()
                    if on_disk and changes:
                        os.fsync(sys.stdout.fileno())
                    if path and cursor != reader.cursor:
                        save(cursor, path)
                    reader.cursor, failures = cursor, 0
                    if cursor.until is None and once and begun:
                        return
                    if cursor.until is None and not once:
                        reader.wait()
        except psycopg.OperationalError as error:
            if not connected:
                raise
            pause = min(5, 0.1 * 2**failures) * random.uniform(0.5, 1)
            failures = min(failures + 1, 10)
            print(f"{str(error).splitlines()[0]}; next try in {pause:.1f} s", file=sys.stderr)
            time.sleep(pause)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the changes of Forge's log, one line of JSON each.")
    parser.add_argument("url", help="postgresql://…")
    parser.add_argument("--cursor", type=Path, metavar="FILE", help="go on from the cursor in FILE, and keep it there")
    parser.add_argument("--once", action="store_true", help="end after the changes that are there now")
    arguments = parser.parse_args()
    try:
        follow(arguments.url, arguments.cursor, arguments.once)
    except Refused as error:
        sys.exit(f"{error}; fix: delete {arguments.cursor}, read the tables again, apply what is printed then by key")
    except psycopg.Error as error:
        sys.exit(f"{str(error).splitlines()[0]}; fix: give the URL of the primary and a role that may read the log")


if __name__ == "__main__":
    main()
