"""Answers made of bronze and silver: who changed what, how much goes on, how fast tables change, and users' own models.

`refresh` brings the tables of Forge's own up to date with a batch. `Gold` does so for a stream of batches, no more
often than is worth it. `forge.pipeline.gold.building` does the same for users' models; `audit` answers from bronze.
"""

import threading
import time
from collections.abc import Callable
from datetime import date

from pyspark.sql import DataFrame, SparkSession

from forge.pipeline.gold import daily
from forge.pipeline.gold.audit import audit
from forge.pipeline.lake import Lake

__all__ = ["Gold", "audit", "refresh"]


def refresh(spark: SparkSession, lake: Lake, batch: DataFrame) -> None:
    """Bring gold up to date with a batch that is in bronze; as often and in whatever order it is asked for."""
    daily.refresh(spark, lake, daily.days_of(batch))


class Gold:
    """Keeps gold up to date with a stream of batches, and takes at most a share of the time for it.

    What batches touch is remembered until enough time has passed since the last refresh: with a share of 0.05 nineteen
    times as long as that one took. After a crash what was remembered is found again in bronze.
    """

    def __init__(
        self, spark: SparkSession, lake: Lake, *, share: float = 0.05, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._share = share
        self._clock = clock
        self._due = clock()
        self._touched: set[date] | None = None
        self._one = threading.Lock()

    def take(self, days: set[date]) -> bool:
        """Remember the days that a batch which is in bronze touches; whether gold is up to date with it now."""
        with self._one:
            self._touched = self._missed() | days
            return self._refresh() if self._clock() >= self._due else not self._touched

    def flush(self) -> bool:
        """Bring gold up to date now; at no cost if it is."""
        with self._one:
            return self._refresh()

    def catch_up(self) -> None:
        """Bring gold up to date if something is left and enough time has passed."""
        with self._one:
            if self._touched and self._clock() >= self._due:
                self._refresh()

    def _missed(self) -> set[date]:
        return daily.missed(self._spark, self._lake) if self._touched is None else self._touched

    def _refresh(self) -> bool:
        touched = self._missed()
        if not touched:
            return True
        began = self._clock()
        daily.refresh(self._spark, self._lake, touched)
        self._touched = set()
        ended = self._clock()
        self._due = ended + (ended - began) * (1 / self._share - 1)
        return True
