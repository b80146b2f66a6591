"""`forge pipeline audit`: who changed what."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from forge.cli.pipeline.options import ConfOption, LakeOption, MasterOption, instant_of, made_lake_of, spark_for
from forge.cli.pipeline.output import SHOWN, rows, show
from forge.cli.session import session
from forge.config import days


def register(app: typer.Typer) -> None:
    app.command(
        "audit",
        epilog="Examples:\n\nforge pipeline audit --since 1d\n\nforge pipeline audit --table orders --key 4711\n\n"
        "forge pipeline audit --user ada --since 2026-11-01 --until 2026-11-08 --json",
    )(audit)


def audit(
    context: typer.Context,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="7d, 2w, or an instant.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="An instant, or so many days ago.")
    ] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="NAME", help="Only this table.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only this row.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Only what this user changed.")] = None,
    trace: Annotated[str | None, typer.Option("--trace", help="Only what this request changed.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many changes people are shown.")] = SHOWN,
    lake: LakeOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Who changed what, when and why, newest first, from every change that the lake has."""
    here = session(context)
    between = {"since": _time("--since", since), "until": _time("--until", until)}
    found = made_lake_of(here, lake)
    with spark_for(here, master, conf) as spark:
        from forge.pipeline import about
        from forge.pipeline.asof import key_of
        from forge.pipeline.gold.audit import audit as changes

        about.need(spark, found)
        frame = changes(
            spark,
            found,
            **between,
            table=table,
            key=None if key is None else key_of(key),
            user=user,
            trace=trace,
        )
        newest_first = frame.orderBy("at", "seq", ascending=False)
        show(here, frame.columns, rows(newest_first, None if here.json else limit + 1), limit)


def _time(option: str, value: str | None) -> datetime | None:
    if value is None:
        return None
    ago = days(value)
    return datetime.now(UTC) - timedelta(days=ago) if ago is not None else instant_of(option, value)
