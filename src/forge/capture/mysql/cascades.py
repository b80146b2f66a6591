"""Find the tables whose rows change with those of another table although the log does not report it.

>>> keys = {("s", "p"): [Cascade("k1", ("s", "p"), ("s", "c"), (("id", "p_id"),), "CASCADE", "RESTRICT")],
...     ("s", "c"): [Cascade("k2", ("s", "c"), ("s", "g"), (("id", "c_id"),), "SET NULL", "CASCADE")]}
>>> [(each.child, how.value) for each, how in reached(keys, ("s", "p"), Op.DELETE, None)]
[(('s', 'c'), 'delete'), (('s', 'g'), 'delete')]
>>> reached(keys, ("s", "c"), Op.UPDATE, {"p_id"})
[]
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from forge.change import Op

Name = tuple[str, str]

ACTING = ("CASCADE", "SET NULL", "SET DEFAULT")
"""The rules that change rows; the others refuse."""


class Cascade(NamedTuple):
    """A foreign key that changes rows of `child` when rows of `parent` are deleted or change their key."""

    constraint: str
    parent: Name
    child: Name
    columns: tuple[tuple[str, str], ...]
    """Each column of the parent, and the column of the child that refers to it."""
    on_delete: str
    on_update: str

    def rule(self, how: Op) -> str:
        """Return its action when rows of the parent are deleted or updated."""
        return self.on_delete if how is Op.DELETE else self.on_update

    def reason(self, how: Op) -> dict[str, Any]:
        """Return the reason for the child's change, in the form of a Change."""
        rule = f"ON {how.value.upper()} {self.rule(how)}"
        return {
            "reason": f"foreign key {self.constraint} {rule}, which the server does not log",
            "cascade": self.constraint,
            "parent": ".".join(self.parent),
        }


def reached(
    keys: Mapping[Name, Sequence[Cascade]], parent: Name, how: Op, changed: set[str] | None
) -> list[tuple[Cascade, Op]]:
    """Return the foreign keys that act if rows of the parent are deleted, or updated in these columns, transitively."""
    found: list[tuple[Cascade, Op]] = []
    waiting: list[tuple[Name, Op, set[str] | None]] = [(parent, how, changed)]
    seen: set[tuple[str, Name, Op]] = set()
    while waiting:
        name, how, changed = waiting.pop()
        for each in keys.get(name, ()):
            if each.rule(how) not in ACTING or (each.constraint, each.child, how) in seen:
                continue
            if how is Op.UPDATE and changed is not None and not changed & {column for column, _ in each.columns}:
                continue
            seen.add((each.constraint, each.child, how))
            found.append((each, how))
            gone = how is Op.DELETE and each.on_delete == "CASCADE"
            waiting.append((each.child, Op.DELETE if gone else Op.UPDATE, {column for _, column in each.columns}))
    return found
