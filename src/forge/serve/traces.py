"""Traces: one span from a write to the push it caused, in the trace of the write.

Without OpenTelemetry, or without a configured SDK, this does nothing at almost no cost.
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
    """Record one span per traced write that led to this push; the span starts when the row was written."""
    if _otel is None:
        return
    for trace, cause in {cause.trace: cause for cause in reversed(push.causes) if cause.trace}.items():
        try:
            number = int(trace, 16)
        except ValueError:
            continue  # not a W3C trace id: the application has its own format
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
