"""`forge pipeline run`: keep the lake current."""

import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from forge.changelog.install import require_installed
from forge.cli.pipeline.options import ConfOption, LakeOption, MasterOption, lake_of, spark_for, time_of
from forge.cli.session import CommandSession, session
from forge.config import Config, shown_seconds
from forge.doctor.finding import count
from forge.postgres.connection import connect
from forge.terminal import shown

if TYPE_CHECKING:
    from forge.pipeline.ledger import LedgerEntry
    from forge.pipeline.run import PipelineRun

DEFAULTS: Final = Config().pipeline


def register(app: typer.Typer) -> None:
    app.command(
        "run",
        epilog="Examples:\n\nforge pipeline run --once\n\nforge pipeline run --interval 10s --verify 5m\n\n"
        "forge pipeline run --lake s3a://lake/shop --master spark://head:7077 --conf spark.executor.memory=4g",
    )(run)


def run(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Take in what is committed by now, and end.")] = False,
    interval: Annotated[
        str | None,
        typer.Option(
            "--interval",
            metavar="TIME",
            help="How often: 500ms, 10s, 5m.",
            show_default=shown_seconds(DEFAULTS.interval),
        ),
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--tables", "--table", metavar="NAME", help="Only these; may be repeated.")
    ] = None,
    lake: LakeOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    resnapshot: Annotated[
        bool, typer.Option("--resnapshot", help="Read the tables again, after a failover or when the log was trimmed.")
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            help="Where a new lake begins: history, snapshot, log, now, or a cursor.",
            show_default=DEFAULTS.start,
        ),
    ] = None,
    max_events: Annotated[
        int | None,
        typer.Option(
            "--max-events", min=1, help="Changes in one batch at the most.", show_default=str(DEFAULTS.max_events)
        ),
    ] = None,
    models: Annotated[
        str | None, typer.Option("--models", metavar="DIR", help="A folder of your own SQL models.")
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option("--verify", metavar="TIME", help="Compare lake and database this often, while running."),
    ] = None,
    merge: Annotated[
        str | None,
        typer.Option(
            "--merge",
            metavar="TIME",
            help="At what age changes in bronze are merged into silver.",
            show_default="30s",
        ),
    ] = None,
    variant: Annotated[
        bool, typer.Option("--variant", help="json and jsonb columns become VARIANT, not text.")
    ] = False,
) -> None:
    """Keep a lake that mirrors every tracked table, with all its history.

    Bronze has every change, silver each table as it is and as it was, gold who changed what. Each interval brings what
    is new into bronze, in one commit; silver follows at the age of --merge, and with --once at the end. Ctrl-C ends it
    after the batch.
    """
    here = session(context)
    configured = here.config.pipeline
    pause = configured.interval if interval is None else time_of("--interval", interval)
    every = configured.verify if verify is None else time_of("--verify", verify)
    age = None if merge is None else time_of("--merge", merge)
    where = lake_of(here, lake)
    names = tuple(name.strip() for each in tables or () for name in each.split(",") if name.strip())
    with here.database() as database:
        if not once:
            here.until_up(database.url)
        with connect(database.url) as connection:
            require_installed(connection)
        with spark_for(here, master, conf) as spark:
            from forge.pipeline.run import MERGE_AFTER, LakeSettings, pipeline

            settings = LakeSettings(
                names or configured.tables,
                start or configured.start,
                max_events or configured.max_events,
                models=models or configured.models,
                merge_after=MERGE_AFTER if age is None else age,
                json="variant" if variant else None,
            )
            report = BatchPrinter(here, every)
            with pipeline(
                spark, database.url, where, settings, resnapshot=resnapshot, on_batch=report.batch
            ) as running:
                report.running = running
                before = _on_interrupt(running)
                try:
                    if once:
                        running.once()
                    else:
                        if not here.json:
                            here.done(
                                f"lake at {where.path}",
                                f"every {shown_seconds(pause)}",
                                "Ctrl-C ends it after the batch",
                            )
                        running.follow(pause)
                    report.end(once)
                finally:
                    signal.signal(signal.SIGINT, before)


def _on_interrupt(running: "PipelineRun") -> Any:
    """The first Ctrl-C ends the run after its batch, the second one at once."""
    before = signal.getsignal(signal.SIGINT)

    def interrupted(_signal: int, _frame: object) -> None:
        running.stop()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, interrupted)
    return before


class BatchPrinter:
    """Tells of each batch: a line for people, or one of JSON."""

    def __init__(self, here: CommandSession, every: float | None) -> None:
        self._here = here
        self._every = every
        self._verified = 0.0
        self._batches = self._changes = 0
        self.running: PipelineRun | None = None

    def batch(self, entry: "LedgerEntry") -> None:
        """A batch is in the lake."""
        assert self.running is not None
        self._batches += 1
        self._changes += entry.changes
        lag = self.running.lag(entry)
        equal = self._compared(entry)
        if self._here.json:
            self._here.emit(
                {
                    "batch": entry.name,
                    "changes": entry.changes,
                    "tables": entry.tables,
                    "quarantined": entry.quarantined,
                    "seconds": round(entry.seconds, 3),
                    "lag_changes": lag.changes,
                    "lag_seconds": round(lag.seconds, 3),
                    "whole": entry.whole,
                    "equal": equal,
                    "cursor": str(entry.cursor),
                }
            )
            sys.stdout.flush()
            return
        parts = [
            f"batch {entry.name}",
            count(entry.changes, "change"),
            count(len(entry.tables), "table"),
            f"{entry.seconds:.1f} s",
            f"lag {lag.seconds:.1f} s" + (f" ({lag.changes:,} changes)" if lag.changes else ""),
        ]
        line = Text(shown("   ".join(parts)))
        if entry.quarantined:
            line.append(f"   {entry.quarantined:,} in quarantine", "yellow")
        if equal is not None:
            line.append(
                f"   lake {'=' if equal else '≠'} database {'✓' if equal else '✗'} ({time.strftime('%H:%M:%S')})",
                "green" if equal else "red",
            )
        self._here.show(line)

    def _compared(self, entry: "LedgerEntry") -> bool | None:
        """Whether lake and database are equal, where that is asked for and can be told now."""
        if self._every is None or not entry.whole or time.monotonic() - self._verified < self._every:
            return None
        assert self.running is not None
        equal = self.running.verify(entry)
        if equal is not None:
            self._verified = time.monotonic()
        return equal

    def end(self, once: bool) -> None:
        """The run is over."""
        if once and not self._here.json:
            if self._batches:
                batches = "1 batch" if self._batches == 1 else f"{self._batches} batches"
                self._here.done(f"{count(self._changes, 'change')} in {batches}")
            else:
                self._here.done("nothing new")
