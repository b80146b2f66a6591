"""The settings: top-level ones in `Config`, and one Struct for each table of forge.toml.

A setting is declared once, as a field with its kind, its default and its docstring. Names (`realtime.debounce`),
environment variables (`FORGE_REALTIME_DEBOUNCE`), checks, `forge config` and the tables of
docs/reference/configuration.md are derived from that (`SETTINGS`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_type_hints

import msgspec

from forge.config.kinds import (
    DATABASE,
    DAYS,
    DURATION,
    FOLDER,
    HELD_DAYS,
    LOCATION,
    PORT,
    RATE,
    SIZE,
    TEXT,
    TEXTS,
    WAKEUP,
    Count,
    Duration,
    SettingKind,
    Size,
    Wakeup,
)

PREFIX: Final = "FORGE_"


class Realtime(msgspec.Struct, frozen=True, kw_only=True):
    """Live queries: what one client may have, and when queries run again. Each limit is of one node."""

    max_sessions_per_user: Count = 8
    """Streams and sockets of one user"""
    max_sessions_per_ip: Count = 32
    """Streams and sockets of one address, whoever uses it"""
    max_subscriptions_per_user: Count = 500
    """Subscriptions of one user; users without a name are counted by address"""
    max_cached_result_bytes: Size = 10 * 1024 * 1024
    """Size of one result"""
    debounce: Duration = 0.05
    """A query runs again after this long without a further change"""
    max_debounce: Duration = 0.2
    """And at the latest this long after the first change"""
    max_concurrent_runs: Count = 64
    """Subscribed queries that run at the same time"""
    resync_interval: Duration = 600.0
    """Every subscribed query runs again this often, changed or not"""
    check_interval: Duration = 5.0
    """One random result is compared with a fresh run this often"""
    idle_timeout: Duration = 5.0
    """A query without subscribers is kept this long"""
    keepalive_interval: Duration = 25.0
    """A silent connection gets a keep-alive after this long"""


class Serve(msgspec.Struct, frozen=True, kw_only=True):
    """The server and its requests. Each limit is of one node."""

    host: Annotated[str, TEXT] = "127.0.0.1"
    """Address to listen on; `--host` of `forge serve`"""
    port: Annotated[int, PORT] = 8710
    """Port to listen on; `--port` of `forge serve`"""
    workers: Count = 1
    """Processes, each a node of its own; `--workers` of `forge serve`"""
    connections: Count = 16
    """Connections to each database server for queries and mutations that are called once"""
    live_connections: Count = 8
    """Connections to each database server for runs of subscribed queries"""
    timeout: Duration = 30.0
    """Time that the function of a query or mutation may take"""
    requests_per_user: Count = 8
    """Queries and mutations of one user that run at the same time"""
    waiting_per_user: Count = 32
    """Requests of one user that wait for those to end"""
    request_bytes: Size = 1024 * 1024
    """Size of a request's body or of a WebSocket message"""
    argument_bytes: Size = 64 * 1024
    """Size of the arguments of a query or mutation"""
    messages_per_second: Annotated[float, RATE] = 50.0
    """Messages that one WebSocket may send per second"""
    message_burst: Count = 100
    """Messages that one WebSocket may send at once"""
    origins: Annotated[tuple[str, ...], TEXTS] = ()
    """Origins whose pages may use it (CORS), such as `https://shop.example`"""
    allowed_hosts: Annotated[tuple[str, ...], TEXTS] = ()
    """Hosts that requests may be for where there are no tokens; `*` for all"""


class Deliver(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that work on consumers, webhooks and the outbox. Tries and backoff belong to each consumer and route."""

    tick_interval: Duration = 0.25
    """Time between two looks for free, paused or moved shards"""
    report_interval: Duration = 1.0
    """Time between two reports of the state of consumers and of the outbox"""
    lag_interval: Duration = 5.0
    """Time between two measurements of the lag of consumers"""
    idle_interval: Duration = 10.0
    """The cursor of a consumer without new changes is saved this often"""
    blocked_after: Duration = 1.0
    """A handler that blocks the event loop this long is reported"""
    outbox_poll_interval: Duration = 1.0
    """The outbox is read this often, notified or not"""
    outbox_lag_interval: Duration = 2.0
    """Time between two counts of the waiting messages"""
    outbox_batch_timeout: Duration = 10.0
    """No further call begins for a batch after this long"""
    outbox_server_timeout: Duration = 20.0
    """A database server that has not answered for this long counts as lost"""


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """`forge pipeline`; `lake` and `master` are for all its commands, the others for `forge pipeline run`."""

    lake: Annotated[str | None, LOCATION.when_absent("the folder lake in data")] = None
    """Folder or Hadoop URL of the lake, with its checkpoint; `--lake`. In forge.toml, relative to that file"""
    master: Annotated[str | None, TEXT.when_absent("all cores of this machine")] = None
    """Spark's master, such as `spark://head:7077`; `--master`"""
    interval: Duration = 10.0
    """Time between two batches; `--interval`"""
    max_events: Count = 500_000
    """Changes in one batch; `--max-events`"""
    tables: Annotated[tuple[str, ...], TEXTS.when_absent("all tracked tables")] = ()
    """Tables to mirror; `--tables`"""
    start: Annotated[str, TEXT] = "history"
    """Where a new lake begins: `history`, `snapshot`, `log`, `now` or a cursor; `--start`"""
    models: Annotated[str | None, LOCATION] = None
    """Folder of your own SQL models; `--models`. In forge.toml, relative to that file"""
    verify: Annotated[float | None, DURATION.when_absent("never")] = None
    """The lake is compared with the database this often; `--verify`"""


class Config(msgspec.Struct, frozen=True):
    """The configuration in force. `origins` maps the name of a setting to the place that its value came from."""

    database_url: Annotated[str | None, DATABASE.when_absent("the embedded server")] = None
    """`postgresql://user@host:5432/database` or a libpq connection string; `--database-url`, `-d`. For `tail`, `status`
    and `doctor` the [URL of any source](sources.md), for `enable` and `disable` also `sqlite:///file`"""
    data: Annotated[Path, FOLDER] = Path(".forge")
    """Directory of the embedded server and of other local files; `--data`. In forge.toml, relative to that file"""
    retention_days: Annotated[int, DAYS] = 30
    """Days that the log keeps changes: `7`, `7d`, `2w`; `--older-than` of `forge trim`"""
    log_size_limit: Annotated[int | None, SIZE.when_absent("no limit")] = None
    """Size of the log; the oldest days are dropped first"""
    hold_days: Annotated[int, HELD_DAYS] = 7
    """Days past retention that the log keeps changes which a consumer has not read; 0 for none"""
    wakeup: Annotated[Wakeup, WAKEUP] = "auto"
    """`auto`, `notify` or `poll`: see [Waking](../explanation/waking.md#settings)"""
    realtime: Realtime = Realtime()
    serve: Serve = Serve()
    deliver: Deliver = Deliver()
    pipeline: Pipeline = Pipeline()
    origins: Mapping[str, str] = {}


class Setting(NamedTuple):
    """A setting by its name in forge.toml, `table.name` within a table."""

    name: str
    kind: SettingKind
    default: Any

    @property
    def variable(self) -> str:
        """Its environment variable.

        >>> SETTINGS["realtime.debounce"].variable
        'FORGE_REALTIME_DEBOUNCE'
        """
        return PREFIX + self.name.upper().replace(".", "_")


TABLES: Final[Mapping[str, type[msgspec.Struct]]] = {
    "realtime": Realtime,
    "serve": Serve,
    "deliver": Deliver,
    "pipeline": Pipeline,
}


def _settings(struct: type[msgspec.Struct], prefix: str = "") -> dict[str, Setting]:
    hints, default = get_type_hints(struct, include_extras=True), struct()
    return {
        prefix + field: Setting(prefix + field, hints[field].__metadata__[0], getattr(default, field))
        for field in struct.__struct_fields__
        if hasattr(hints[field], "__metadata__")
    }


SETTINGS: Final[Mapping[str, Setting]] = {
    **_settings(Config),
    **{name: setting for table, struct in TABLES.items() for name, setting in _settings(struct, f"{table}.").items()},
}
