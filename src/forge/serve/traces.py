"""Traces: one span from a write to the push that it caused, in the trace that the write was part of.

Without OpenTelemetry installed, or with no SDK configured, this costs next to nothing and does nothing.
"""

import time
from contextlib import suppress
from importlib import import_module
from typing import Any

from forge.react.group import Group
from forge.react.push import Push

_otel: Any = None
with suppress(ImportError):
    _otel = import_module("opentelemetry.trace")


def trace_push(group: Group, push: Push) -> None:
    """Record the way from each traced write to this push as a span that began when the row was written."""
    if _otel is None:
        return
    for trace, cause in {cause.trace: cause for cause in reversed(push.causes) if cause.trace}.items():
        try:
            number = int(trace, 16)
        except ValueError:
            continue  # an application's own form of trace ids
        if len(trace) != 32 or number == 0:
            continue
        sampled = _otel.TraceFlags(_otel.TraceFlags.SAMPLED)
        parent = _otel.SpanContext(number, number & (1 << 64) - 1 or 1, True, sampled)
        span = _otel.get_tracer("forge").start_span(
            "forge.push",
            _otel.set_span_in_context(_otel.NonRecordingSpan(parent)),
            start_time=int(cause.at.timestamp() * 1e9),
            attributes={
                "forge.query": group.call.query.name,
                "forge.table": cause.table,
                "forge.change": cause.id,
                "forge.function": cause.function or "",
                "forge.subscribers": len(group.subscribers),
            },
        )
        span.end(time.time_ns())
