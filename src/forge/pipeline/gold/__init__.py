"""Gold: aggregates of bronze and silver. Who changed what, activity, churn, and users' own models.

`refresh` updates Forge's own tables with a batch. `Gold` does so for a stream of batches and limits the time spent.
`forge.pipeline.gold.building` updates users' models; `audit` queries bronze.
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
    """Update gold with a batch that is in bronze; idempotent, and batches may come in any order."""
    daily.refresh(spark, lake, daily.days_of(batch))


class Gold:
    """Update gold with a stream of batches, using at most a share of the time.

    The days that batches touch are remembered until enough time has passed since the last refresh: with a share of
    0.05, nineteen times the duration of that refresh. After a crash these days are found again in bronze.
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
        """Remember the days that a batch in bronze touches; return whether gold is up to date with it."""
        with self._one:
            self._touched = self._missed() | days
            return self._refresh() if self._clock() >= self._due else not self._touched

    def flush(self) -> bool:
        """Update gold immediately; free if it is up to date."""
        with self._one:
            return self._refresh()

    def catch_up(self) -> None:
        """Update gold if days are pending and enough time has passed."""
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
