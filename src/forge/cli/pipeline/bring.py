"""`forge pipeline import`: import archived events into the lake."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import typer

from forge.cli.pipeline.options import ConfOption, LakeOption, MasterOption, lake_of, own_lake, spark_for
from forge.cli.session import session
from forge.doctor.finding import count


def register(app: typer.Typer) -> None:
    app.command(
        "import",
        epilog="Examples:\n\nforge pipeline import old/*.jsonl.gz\n\nforge pipeline import s3a://archive/shop "
        "--envelope debezium --key public.lines=order_id,number",
    )(bring)


def bring(
    context: typer.Context,
    path: Annotated[list[str], typer.Argument(metavar="PATH...", help="JSON lines or Parquet, as Spark reads them.")],
    envelope: Annotated[
        Literal["forge", "debezium"] | None,
        typer.Option("--envelope", help="Of the events; found out unless given."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="TABLE=COLUMN,…", help="A key that events do not tell; may be repeated."),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="NAME", help="Refuse events of any other source.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first line that is no event.")] = False,
    lake: LakeOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Bring archived events into the lake. The same files twice change nothing, and any order gives the same lake."""
    here = session(context)
    keys = keys_of(key)
    found = lake_of(here, lake)
    from forge.pipeline.local import need_files, need_lake

    need_files(path)
    need_lake(found)
    with here.database() as database, spark_for(here, master, conf) as spark:
        from forge.pipeline.imports import bring as into_lake

        with own_lake(spark, found, database.url), here.progress() as bar:
            bar.step("reading archives", 0)
            done = into_lake(spark, found, path, envelope, keys=keys, source=source, strict=strict)
    if here.json:
        here.emit(msgspec.to_builtins(done))
        return
    here.done(f"{count(done.changes, 'change')} of {count(len(done.tables), 'table')} imported")
    if done.quarantined:
        here.note(f"{count(done.quarantined, 'row')} did not fit and went to quarantine")
    if done.refused:
        reasons = ", ".join(f"{reason} ({number:,})" for reason, number in done.reasons.items())
        here.note(f"{count(done.refused, 'line')} refused: {reasons}")


def keys_of(words: Sequence[str] | None) -> dict[str, list[str]]:
    """The keys of tables as they were given.

    >>> keys_of(["lines=order_id, number", "sales.orders=id"])
    {'public.lines': ['order_id', 'number'], 'sales.orders': ['id']}
    """
    keys = {}
    for word in words or ():
        table, _, columns = word.partition("=")
        names = [name.strip() for name in columns.split(",") if name.strip()]
        if not table.strip() or not names:
            raise typer.BadParameter(f"--key is {word!r}: write it as public.lines=order_id,number")
        keys[table.strip() if "." in table else f"public.{table.strip()}"] = names
    return keys
