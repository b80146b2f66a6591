"""Random writes from a seed, and what the tables must hold afterwards.

Each worker has keys of its own, so that the outcome does not depend on who comes first. A worker's transaction inserts,
updates, deletes, moves a key, rolls back to a savepoint, and commits or rolls back, as far as the database can.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from forge.testing.conformance.adapter import Adapter, Unsupported, Writer
from forge.testing.conformance.operations import ITEMS, OTHERS, Delete, Fill, Insert, Operation, Update

Row = dict[str, Any]
Tables = dict[str, dict[int, Row]]

STEP = 1_000
"""Keys of workers are apart by so much, from `FIRST` on; the rows with keys below STEP are given to them to change."""
FIRST = 10_000
ROUND = 100_000
"""Keys of a round of traffic are apart from those of the round before by so much."""
MARKS = 900_000
"""Keys from here on are those of marks: rows that a check inserts last and waits for."""


def row(adapter: Adapter, id: int, name: str | None = None, amount: int | None = None, note: str | None = None) -> Row:
    """A row of items or others."""
    return {adapter.key: id, "name": name, "amount": amount, "note": note}


class Traffic:
    """What the workers have committed, and how to write more."""

    def __init__(self, adapter: Adapter, seed: int, before: "Traffic | None" = None) -> None:
        """With `before`, a round that goes on with the tables of another."""
        self._adapter = adapter
        self._random = random.Random(seed)
        self._round: int = 0 if before is None else before._round + 1
        self._marks = MARKS + self._round * STEP
        self._workers = 0
        self.tables: Tables = {ITEMS: {}, OTHERS: {}} if before is None else before.tables

    async def fill(self, count: int, first: int = 1) -> None:
        """Rows that are there from the beginning; a few of them are for the workers to change."""
        async with self._adapter.writer() as writer:
            await writer.run(Fill(ITEMS, first, count, "there before"))
        for id in range(first, first + count):
            self.tables[ITEMS][id] = row(self._adapter, id, "fill", 0, "there before")

    async def mark(self) -> int:
        """Insert a row that comes after everything, and return its key."""
        self._marks += 1
        async with self._adapter.writer() as writer:
            await writer.run(Insert(ITEMS, row(self._adapter, self._marks, "mark", 50)))
        self.tables[ITEMS][self._marks] = row(self._adapter, self._marks, "mark", 50)
        return self._marks

    async def run(self, transactions: int, *, until: Callable[[], bool] = lambda: True) -> None:
        """So many transactions of each worker, and more until the condition holds."""
        workers = []
        for _ in range(self._adapter.writers):
            self._workers += 1
            chance = random.Random(self._random.random())
            workers.append(self._work(self._workers, chance, transactions, until))
        await asyncio.gather(*workers)

    async def _work(self, worker: int, chance: random.Random, transactions: int, until: Callable[[], bool]) -> None:
        mine = {table: {} for table in self.tables}  # type: dict[str, dict[int, Row]]
        if worker <= self._adapter.writers:
            given = [id for id in self.tables[ITEMS] if id < STEP and (id - worker) % self._adapter.writers == 0]
            mine[ITEMS] = {id: self.tables[ITEMS][id] for id in given}
        async with self._adapter.writer() as writer:
            done = 0
            while done < transactions or (done < 20 * transactions and not until()):
                await self._transaction(worker, chance, mine, writer)
                done += 1
                await asyncio.sleep(0)

    async def _transaction(self, worker: int, chance: random.Random, mine: Tables, writer: Writer) -> None:
        then = _copy(mine)
        try:
            await writer.begin()
        except Unsupported:
            for operation in self._some(worker, chance, mine):
                await writer.run(operation)
            self._publish(then, mine)
            return
        for operation in self._some(worker, chance, mine):
            await writer.run(operation)
        if chance.random() < 0.3:
            saved = _copy(mine)
            try:
                await writer.savepoint()
                for operation in self._some(worker, chance, mine):
                    await writer.run(operation)
                await writer.rollback_to_savepoint()
                mine.clear()
                mine.update(saved)
            except Unsupported:
                pass
            for operation in self._some(worker, chance, mine):
                await writer.run(operation)
        if chance.random() < 0.2:
            await writer.rollback()
            mine.clear()
            mine.update(then)
        else:
            self._publish(then, mine)
            await writer.commit()

    def _some(self, worker: int, chance: random.Random, mine: Tables) -> list[Operation]:
        """A few operations that can be done, done to `mine`."""
        key, found = self._adapter.key, []  # type: str, list[Operation]
        for _ in range(chance.randint(1, 4)):
            table = ITEMS if chance.random() < 0.8 else OTHERS
            rows = mine[table]
            kind = chance.random()
            if not rows or kind < 0.4:
                free = self._free(worker, chance)
                if free in rows:
                    continue
                rows[free] = row(self._adapter, free, f"new {chance.random()}", chance.randrange(100))
                found.append(Insert(table, rows[free]))
            elif kind < 0.75:
                id = chance.choice(sorted(rows))
                changed = {"amount": chance.randrange(100), "name": f"changed {chance.random()}"}
                rows[id] = {**rows[id], **changed}
                found.append(Update(table, id, changed))
            elif kind < 0.8 and self._adapter.keys_change:
                id, free = chance.choice(sorted(rows)), self._free(worker, chance)
                if free in rows:
                    continue
                rows[free] = {**rows.pop(id), key: free}
                found.append(Update(table, id, {key: free}))
            else:
                id = chance.choice(sorted(rows))
                del rows[id]
                found.append(Delete(table, id))
        return found

    def _free(self, worker: int, chance: random.Random) -> int:
        return FIRST + self._round * ROUND + worker * STEP + chance.randrange(STEP)

    def _publish(self, then: Tables, mine: Tables) -> None:
        for table, rows in self.tables.items():
            for id in then[table].keys() - mine[table].keys():
                del rows[id]
            rows.update(mine[table])


def _copy(tables: Tables) -> Tables:
    return {table: dict(rows) for table, rows in tables.items()}
