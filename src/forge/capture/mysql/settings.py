"""Check that a server's settings make its binary log complete: errors with a fix, or warnings."""

from collections.abc import Iterable, Mapping, Sequence

from forge.capture.mysql.cascades import ACTING, Cascade, Name
from forge.capture.mysql.catalog import MysqlServer
from forge.errors import SourceError

_FULL = ("FULL", "FULL_NODUP")


def check(told: MysqlServer) -> None:
    """Raise SourceError for a setting with which the log would be wrong."""
    if told.setting("log_bin") not in ("ON", "1"):
        raise SourceError("log_bin is OFF: the server keeps no binary log", fix="set log_bin=mysql-bin and restart it")
    if told.setting("server_id") in ("", "0"):
        raise SourceError("server_id is 0: the server sends its log to nobody", fix="set server_id=1 and restart it")
    wanted = (
        ("binlog_format", ("ROW", ""), "ROW"),
        ("binlog_row_image", (*_FULL, ""), "FULL"),
        ("binlog_row_value_options", ("",), "''"),
        ("binlog_transaction_compression", ("OFF", ""), "OFF"),
    )
    for name, right, value in wanted:
        found = told.setting(name)
        if found.upper() not in right:
            raise SourceError(
                f"{name} is {found}: the log does not have every row whole",
                fix=f"SET GLOBAL {name} = {value}, also in my.cnf, and let sessions connect again",
            )


def named(told: MysqlServer) -> bool:
    """Tell whether the log itself names columns."""
    return told.setting("binlog_row_metadata").upper() == "FULL"


def warnings(
    told: MysqlServer,
    engines: Mapping[Name, str],
    keyless: Iterable[Name],
    cascades: Sequence[Cascade],
    ignored: str = "",
) -> list[str]:
    """Return warnings about the server, each in one line."""
    found = []
    if not named(told):
        found.append(
            "binlog_row_metadata is not FULL: names, signs and keys come from the catalog of now, so rows of a table"
            " that was altered since are told as invalidate; SET GLOBAL binlog_row_metadata = FULL"
        )
    comments = "binlog_annotate_row_events" if told.mariadb else "binlog_rows_query_log_events"
    if told.setting(comments) != "ON":
        found.append(f"{comments} is OFF: changes carry no context; SET GLOBAL {comments} = ON")
    if not told.mariadb and told.setting("gtid_mode") != "ON":
        found.append("gtid_mode is not ON: a transaction is named by its place in the log of this server")
    if ignored:
        found.append(f"the server does not log everything ({ignored}): what is left out is never seen")
    for cascade in cascades:
        rules = [f"ON DELETE {cascade.on_delete}"] if cascade.on_delete in ACTING else []
        rules += [f"ON UPDATE {cascade.on_update}"] if cascade.on_update in ACTING else []
        found.append(
            f"foreign key {cascade.constraint} of {'.'.join(cascade.child)} has {' '.join(rules)}, which the server"
            f" does not log: when {'.'.join(cascade.parent)} changes, the child is told as invalidate"
        )
    for name, engine in engines.items():
        if engine not in ("InnoDB", "RocksDB", "TokuDB", ""):
            found.append(f"{'.'.join(name)} is a {engine} table: its snapshot may overlap with the stream")
    found += [f"{'.'.join(name)} has no primary key: its changes have no key" for name in keyless]
    return found


def retention(told: MysqlServer) -> str:
    """Return how long logs are kept, according to the server's settings.

    >>> retention(MysqlServer("1", (10, 11, 1), True, {"binlog_expire_logs_seconds": "604800"}))
    'binary logs are purged after 7 days'
    """
    seconds = float(told.setting("binlog_expire_logs_seconds") or 0)
    seconds = seconds or float(told.setting("expire_logs_days") or 0) * 86400
    if not seconds:
        return "binary logs are kept until someone purges them"
    return f"binary logs are purged after {seconds / 86400:g} days"
