"""Slices of rows, identical in Spark and in PostgreSQL: a row in, the number of its slice out.

A key of one integer is divided by ranges, so that both sides find the rows of a slice without scanning the others. Any
other key is divided by a hash.
"""

from collections.abc import Iterable
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F


class ByHash(NamedTuple):
    """`number` slices, by a hash of 60 bits."""

    number: int

    def slice(self, hash: Column, key: Column) -> Column:
        """Return the slice of a row in Spark."""
        return (hash % self.number).cast("int")

    def sql_slice(self, hash: str, key: str) -> str:
        """Return the slice of a row in SQL."""
        return f"mod({hash}, {self.number})::integer"

    def range(self, slices: Iterable[int]) -> tuple[int | None, int | None]:
        """Return the key range of slices, from and below; None for no bound."""
        return None, None


class ByRange(NamedTuple):
    """Slices of 2^`shift` keys each from `low` to `high`; keys outside are in the first one or in the last one.

    >>> ByRange.over(-5, 1000, 10)
    ByRange(low=-5, high=1000, shift=7)
    >>> ByRange.over(-5, 1000, 10).range([0]), ByRange.over(-5, 1000, 10).range([2, 3]), ByRange(1, 9, 0).range([8])
    ((None, 0), (128, 384), (9, None))
    """

    low: int
    high: int
    shift: int

    @classmethod
    def over(cls, low: int, high: int, number: int) -> "ByRange":
        """Divide the keys into about `number` slices."""
        return cls(low, high, max(0, ((high - low) // number).bit_length()))

    def slice(self, hash: Column, key: Column) -> Column:
        within = F.least(F.greatest(key.cast("long"), F.lit(self.low)), F.lit(self.high))
        return (F.shiftright(within, self.shift) - F.lit(self._first)).cast("int")

    def sql_slice(self, hash: str, key: str) -> str:
        within = f"least(greatest({key}::bigint, '{self.low}'::bigint), '{self.high}'::bigint)"
        return f"(({within} >> {self.shift}) - '{self._first}'::bigint)::integer"

    def range(self, slices: Iterable[int]) -> tuple[int | None, int | None]:
        numbers = sorted(slices)
        first, last = numbers[0], numbers[-1]
        low = None if first == 0 else (self._first + first) << self.shift
        high = None if last == (self.high >> self.shift) - self._first else (self._first + last + 1) << self.shift
        return low, high

    @property
    def _first(self) -> int:
        return self.low >> self.shift


Slices = ByHash | ByRange
