"""Tenancy: the tenant of a logged row, and the tenants that may learn who changed it.

In: changes of the log, and the column that holds a row's tenant. Out: the rows that belong to a tenant, and the
transactions whose actor (user, function, trace, session) that tenant may learn.

Invariants:

- A row belongs to a tenant only if its tenant column can be read and holds the tenant's name. A row with a null,
  masked,
  excluded or missing value belongs to no tenant, whatever a tenant is called.
- A tenant learns the actor of a transaction only if all that the transaction changed in tables with the tenant column
  are rows of that tenant, before and after. A row that moves to another tenant hides the actor from both, even if
  its key changes too, and so does a change of a whole table.
- Tables without the tenant column have no tenants and do not count.
- Unknown data hides the actor: `sole_tenants` takes whole transactions only.

The rule has two forms, one for changes in memory and one in SQL for changes in the log. They agree.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from forge.change import Change, Op, Row, text
from forge.values import Column

_UNREADABLE: Final = ("masked", "hidden")
_ROWS: Final = frozenset({Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ})


class Tenant(NamedTuple):
    """A tenant, and the column that holds the tenant of a row."""

    column: str
    name: str


def readable(columns: Iterable[Column], column: str) -> bool | None:
    """Tell whether rows of a table show their tenant; None if the table has no such column."""
    kind = next((each.kind for each in columns if each.name == column), None)
    return None if kind is None else kind not in _UNREADABLE


def tenant_of(row: Row | None, column: str) -> str | None:
    """Return the name of the tenant that a row belongs to; None if it belongs to none.

    >>> [tenant_of(row, "t") for row in ({"t": "acme"}, {"t": 7}, {"t": None}, {"t": "None"}, {}, None)]
    ['acme', '7', None, 'None', None, None]
    """
    value = None if row is None else row.get(column)
    return text(value) if isinstance(value, (str, int, Decimal)) else None


def owns(tenant: Tenant, row: Row | None) -> bool:
    """Tell whether a row whose tenant column is readable belongs to the tenant."""
    return tenant_of(row, tenant.column) == tenant.name


def sole_tenants(changes: Iterable[Change], columns: Iterable[Sequence[Column]], column: str) -> dict[str, str]:
    """Map whole transactions to the tenant that may learn their actor; transactions without one are absent."""
    kinds: dict[int, bool | None] = {}
    tenants: dict[str | None, set[str | None]] = {}
    for change, fields in zip(changes, columns, strict=True):
        if id(fields) not in kinds:
            kinds[id(fields)] = readable(fields, column)
        known = kinds[id(fields)]
        if known is None:
            continue
        found = tenants.setdefault(change.source.transaction, set())
        images = [image for image in (change.before, change.after) if image is not None]
        if known and images and change.op in _ROWS:
            found.update(tenant_of(image, column) for image in images)
        else:
            found.add(None)
    return {
        transaction: name
        for transaction, (name, *others) in ((transaction, list(found)) for transaction, found in tenants.items())
        if transaction is not None and name is not None and not others
    }


# In SQL, with the parameters tenant_column and tenant. An update's `before` may lack what did not change.

_SCOPED: Final = """
    SELECT w.id FROM forge.table_version w
    WHERE w.columns @> jsonb_build_array(jsonb_build_object('name', %(tenant_column)s::text))"""
_READABLE: Final = _SCOPED + "".join(
    f"""
      AND NOT w.columns @> jsonb_build_array(jsonb_build_object('name', %(tenant_column)s::text, 'kind', '{kind}'))"""
    for kind in _UNREADABLE
)


def owned(alias: str) -> str:
    """Write the SQL condition that a log row concerns one of the tenant's rows, before and after."""
    return f"""
    ({alias}.op IN ('I', 'U', 'D') AND {alias}.version IN ({_READABLE})
     AND ({alias}.before IS NULL
          OR coalesce({alias}.before -> %(tenant_column)s::text, {alias}.after -> %(tenant_column)s::text) #>> '{{}}'
             IS NOT DISTINCT FROM %(tenant)s::text)
     AND ({alias}.after IS NULL
          OR {alias}.after ->> %(tenant_column)s::text IS NOT DISTINCT FROM %(tenant)s::text))"""


def signed(transaction: str) -> str:
    """Write the SQL condition that the tenant may learn the actor of a transaction."""
    return f"""
    NOT EXISTS (SELECT FROM forge.forge_event_log o WHERE o.transaction_id = {transaction}
                AND o.version IN ({_SCOPED}) AND NOT {owned("o")})"""


SIGNED: Final = f"""
    SELECT t.id::text FROM unnest(%(transactions)s::text[]::xid8[]) AS t (id) WHERE {signed("t.id")}
      AND EXISTS (SELECT FROM forge.forge_event_log o WHERE o.transaction_id = t.id AND o.version IN ({_SCOPED}))"""
"""The query that selects from `transactions` those whose actor the tenant may learn."""


def parameters(tenant: Tenant | None) -> dict[str, Any]:
    """Return the parameters of the SQL above."""
    return {"tenant_column": tenant and tenant.column, "tenant": tenant and tenant.name}
