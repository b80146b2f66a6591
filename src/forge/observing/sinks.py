"""Sinks for statements: callbacks for `forge.on`, each for "query" and for "error".

    forge.on("query", sinks.log(), slower_than=0.2)
    forge.on("query", sinks.prometheus())
    for kind in ("query", "error"):
        forge.on(kind, sinks.opentelemetry())

No sink shows more than the event: of an error only its type and SQLSTATE, because database messages quote values.
"""

import logging
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeAlias

from forge.errors import ConfigError
from forge.observing.event import QueryEvent

Sink: TypeAlias = Callable[[QueryEvent], None]


def log(logger: logging.Logger | str = "forge.queries", level: int = logging.INFO) -> Sink:
    """Log one line per statement, failures as errors. The event's fields are in the record's `query`."""
    found = logging.getLogger(logger) if isinstance(logger, str) else logger

    def write(event: QueryEvent) -> None:
        if event.error is not None:
            found.error(
                "%s failed after %.1f ms: %s · %s %s",
                event.semantic_op,
                event.duration_ms,
                error_name(event.error),
                _line(event.sql),
                event.params,
                extra={"query": event},
            )
            return
        rows = "?" if event.row_count is None else event.row_count
        found.log(
            level,
            "%s %.1f ms, %s rows · %s %s",
            event.semantic_op,
            event.duration_ms,
            rows,
            _line(event.sql),
            event.params,
            extra={"query": event},
        )

    return write


def prometheus(registry: Any = None) -> Sink:
    """Fill histogram `forge_query_seconds` and counter `forge_query_errors_total` by operation, source, database."""
    client = _needed("prometheus_client", "serve")
    seconds, errors = _metrics(client.REGISTRY if registry is None else registry)

    def count(event: QueryEvent) -> None:
        labels = (event.semantic_op, event.source, event.engine)
        if event.error is not None:
            errors.labels(*labels, error_name(event.error)).inc()
        else:
            seconds.labels(*labels).observe(event.duration_ms / 1000.0)

    return count


def opentelemetry(*, spans: bool = True, tracer_provider: Any = None, meter_provider: Any = None) -> Sink:
    """Create a span per statement, under the present span, and fill the histogram `db.client.operation.duration`."""
    trace = _needed("opentelemetry.trace", "otel")
    metrics = _needed("opentelemetry.metrics", "otel")
    tracer = trace.get_tracer("forge", tracer_provider=tracer_provider)
    duration = metrics.get_meter("forge", meter_provider=meter_provider).create_histogram(
        "db.client.operation.duration", unit="s", description="Duration of database statements"
    )

    def send(event: QueryEvent) -> None:
        system, _, database = event.engine.partition("/")
        attributes = {"db.system.name": system, "db.namespace": database, "db.operation.name": event.semantic_op}
        if event.error is not None:
            attributes["error.type"] = error_name(event.error)
        duration.record(event.duration_ms / 1000.0, attributes)
        if not spans:
            return
        began = int(event.at.timestamp() * 1e9)
        span = tracer.start_span(
            f"{event.semantic_op} {database}".strip(),
            kind=trace.SpanKind.CLIENT,
            start_time=began,
            attributes={**attributes, "db.query.text": event.sql},
        )
        if event.row_count is not None:
            span.set_attribute("db.response.returned_rows", event.row_count)
        if event.error is not None:
            span.set_status(trace.StatusCode.ERROR)
        span.end(end_time=began + int(event.duration_ms * 1e6))

    return send


def error_name(error: BaseException) -> str:
    """Return the error's type, and its SQLSTATE if it has one."""
    code = getattr(error, "sqlstate", None)
    return f"{type(error).__name__} {code}" if code else type(error).__name__


@lru_cache(maxsize=16)
def _metrics(registry: Any) -> tuple[Any, Any]:
    """Return one pair per registry, because a registry refuses duplicates."""
    client = import_module("prometheus_client")
    labels = ("op", "source", "database")
    return (
        client.Histogram("forge_query_seconds", "Duration of statements that ran", labels, registry=registry),
        client.Counter("forge_query_errors", "Statements that failed", (*labels, "error"), registry=registry),
    )


def _needed(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"{name} is not installed", fix=f'pip install "forge-changes[{extra}]"') from None


def _line(sql: str) -> str:
    return " ".join(sql.split())
