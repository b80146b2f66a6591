"""A process that writes at a steady rate, each change a transaction of its own.

The statement is given `key`, which goes round through `keys` numbers from 1 on, and `sent`, the moment just before it
is sent. A statement is its own transaction, so what is measured from `sent` on contains the write as well as its
commit; the answer says how long both took.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import msgspec

from benchmarks.process import Child, child, question, reply
from benchmarks.served import now
from forge.postgres.connection import connect

UPDATE = "UPDATE probe SET sent = %(sent)s WHERE customer_id = %(key)s"
INSERT = "INSERT INTO probe (tenant, sent) VALUES ('t' || %(key)s::text, %(sent)s)"


class Writing(msgspec.Struct, frozen=True):
    """What to write."""

    url: str
    statement: str
    keys: int


class Written(msgspec.Struct, frozen=True):
    """What was written: how many changes, how many a second, and the median of what one took, in milliseconds."""

    changes: int
    rate: float
    took: float


class Writer:
    """The process, as its starter sees it."""

    def __init__(self, process: Child) -> None:
        self._process = process

    def begin(self, rate: float, changes: int) -> None:
        """Write so many at that rate; `end` waits for it."""
        self._process.tell([rate, changes])

    def end(self) -> Written:
        return msgspec.convert(self._process.answer(), Written)


@contextmanager
def writing(url: str, statement: str, keys: int) -> Iterator[Writer]:
    """A process that is connected and waits to be told."""
    with child("benchmarks.writer", {"url": url, "statement": statement, "keys": keys}) as (process, _):
        yield Writer(process)


def main() -> None:
    """Write when asked."""
    what = msgspec.convert(question(), Writing)
    number = 0
    with connect(what.url) as connection:
        reply("ready")
        while True:
            rate, changes = question()
            took = []
            start = time.perf_counter()
            for turn in range(changes):
                wait = start + turn / rate - time.perf_counter()
                if wait > 0:
                    time.sleep(wait)
                sent = now()
                connection.execute(what.statement.encode(), {"key": number % what.keys + 1, "sent": sent})
                took.append((now() - sent) / 1000)
                number += 1
            taken = max(time.perf_counter() - start, changes / rate)
            reply(msgspec.to_builtins(Written(changes, changes / taken, median(took))))


if __name__ == "__main__":
    main()
