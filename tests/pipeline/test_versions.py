"""Versions follow one another as they happened, in whatever order, pieces and repetitions they arrive."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from forge.pipeline.changes import seq
from forge.pipeline.silver.ends import End
from forge.pipeline.silver.versions import SLIM, chain, concerned, upcoming
from tests.pipeline import oracle
from tests.pipeline.oracle import Event, Row, moment, play

pytestmark = pytest.mark.long

GIVEN = (
    "h int, id int, _key string, a string, b int, _seq string, _op string, _at timestamp, _transaction long,"
    " _missing array<string>"
)
STORED = (
    "h int, id int, _key string, a string, b int, _seq string, _end_seq string, _op string, _valid_from timestamp,"
    " _transaction long, _missing array<string>"
)


def given(spark: SparkSession, events: Sequence[Event]) -> DataFrame:
    rows = [
        (
            *event.key,
            "{}:{}".format(*event.key),
            *(None if name in event.missing else event.values[name] for name in ("a", "b")),
            event.seq,
            event.op,
            moment(event.at),
            event.transaction,
            sorted(event.missing) or None,
        )
        for event in events
    ]
    return spark.createDataFrame(rows, GIVEN)


class Store:
    """A history that is only ever given what `chain` says has changed."""

    def __init__(self, spark: SparkSession, key: Sequence[str], carried: Sequence[str]) -> None:
        self.spark, self.key, self.carried = spark, key, carried
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.known: dict[str, End] = {}

    def take(self, events: Sequence[Event], ends: Sequence[End]) -> int:
        """How many versions a batch of rows and ends has changed."""
        fitting = given(self.spark, events)
        self.known |= {end.seq: end for end in ends}
        since = min([event.seq for event in events] + [end.seq for end in ends])
        names = [field.split()[0] for field in STORED.split(", ")]
        stored = self.spark.createDataFrame([tuple(row[name] for name in names) for row in self.rows.values()], STORED)
        columns = names if self.carried else [*self.key, *SLIM]
        existing = concerned(stored, None if ends else fitting.select(*self.key), since, self.key, columns)
        later = [end for end in self.known.values() if end.seq >= since]
        made = chain(existing, fitting, later, self.key, carried=self.carried).where(F.col("_:changed"))
        found = made.withColumns({"from": F.unix_micros("_valid_from"), "to": F.unix_micros("_valid_to")}).collect()
        for row in found:
            where = (row["_key"] or f"{row['h']}:{row['id']}", row["_seq"])
            if row["_:stored"] and not self.carried:
                self.rows[where] |= {name: row[name] for name in ("_end_seq", "to", "_end_transaction")}
            else:
                self.rows[where] = {**row.asDict(), "_valid_from": moment(row["from"])}
        return len(found)

    def history(self) -> dict[tuple[Any, ...], Row]:
        kept = ("a", "b", "_op", "_end_seq", "_end_transaction")
        return {
            (row["h"], row["id"], row["_seq"]): {
                **{name: row[name] for name in kept},
                "_valid_from": row["from"],
                "_valid_to": row["to"],
            }
            for row in self.rows.values()
        }


@pytest.mark.parametrize(
    ("keyed", "carried", "truncates"),
    [(True, (), 0), (True, (), 3), (True, ("a", "b"), 2), (False, (), 0), (False, (), 2)],
)
def test_any_order_and_repetition_of_batches_gives_the_history_of_the_oracle(
    spark: SparkSession, keyed: bool, carried: tuple[str, ...], truncates: int
) -> None:
    dice = Random(f"{keyed} {carried} {truncates}")
    played = play(dice, 60, keyed=keyed, most_truncates=truncates, missing=bool(carried))
    store = Store(spark, ("h", "id") if keyed else ("_key",), carried)
    batches = played.batches(dice, 4)
    for events, ends in batches:
        store.take(events, ends)
    found, wanted = store.history(), oracle.history(*played, keyed=keyed)
    wrong = [place for place in found.keys() | wanted.keys() if found.get(place) != wanted.get(place)]
    first = min((place[0] for place in wrong), default=None)
    assert not sorted((place, found.get(place), wanted.get(place)) for place in wrong if place[0] == first), played.ends
    assert store.take(*batches[-1]) == 0, "what is stored as it should be is left alone"


def test_the_next_end_is_found_among_thousands(spark: SparkSession) -> None:
    ends = [End(seq(1, place * 2), moment(place), place) for place in range(3000)]
    places = [0, 1, 2, 3, 2999, 3000, 5997, 5998, 5999]
    frame = spark.createDataFrame([(seq(1, place),) for place in places], "_seq string")
    rows = frame.select(upcoming(F.col("_seq"), ends)["transaction"].alias("found")).collect()
    assert [row["found"] for row in rows] == [1, 1, 2, 2, 1500, 1501, 2999, None, None]
