"""The TypeScript types of an application: tsc takes them, and refuses what the application would."""

import dataclasses
import datetime
import enum
import subprocess
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from forge.errors import NotDescribed
from forge.react.registry import Registry
from forge.serve.codegen import typescript
from forge.serve.openapi import document

Instant = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
CLIENTS = Path(__file__).parents[2] / "clients"


class Status(enum.StrEnum):
    OPEN = "open"
    DONE = "done"


class Order(TypedDict):
    """An order, as customers see it."""

    id: int
    status: Literal["open", "done"]
    total: Decimal
    placed: datetime.datetime


@dataclasses.dataclass
class Part:
    sku: str
    parts: "list[Part]"
    picture: bytes | None = None


class Place(msgspec.Struct):
    """Where a thing is: */ \n and more."""

    at: tuple[float, float]
    labels: dict[str, str]
    more: Any = None


class Line(msgspec.Struct):
    sku: str
    count: int = 1


class Array(msgspec.Struct):
    """A class with the name of one of TypeScript's."""

    items: list[list[int | None]]


def shop() -> Registry:
    registry = Registry()

    async def open_orders(ctx: Any, customer_id: int, status: Status = Status.OPEN) -> list[Order]:
        """What a customer still waits for. */ Not code."""
        raise NotImplementedError

    async def rows(ctx: Any) -> Any:
        raise NotImplementedError

    async def anything(ctx: Any, of: Any = None) -> Any:
        raise NotImplementedError

    async def part(ctx: Any, id: uuid.UUID) -> Part | None:
        raise NotImplementedError

    async def place(ctx: Any, at: tuple[float, float]) -> Place:
        raise NotImplementedError

    async def array(ctx: Any) -> Array:
        raise NotImplementedError

    async def order(ctx: Any, lines: list[Line], limit: Decimal, at: Instant | None = None) -> int:
        raise NotImplementedError

    async def draw(ctx: Any, picture: bytes) -> None:
        raise NotImplementedError

    registry.query(open_orders, key="id")
    registry.query(rows, key="id")
    registry.query(anything, name='odd "name".1')
    registry.query(part)
    registry.query(place)
    registry.query(array)
    registry.query(array, name="forge.tables", own=True)
    registry.mutation(order)
    registry.mutation(draw)
    return registry


USE = """
import { createClient, type Decimal, type Live } from "@forge/client";
import type { App, Order, Part } from "./app";

type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const same = <A, B>(_: Same<A, B>): void => undefined;
const client = createClient<App>({ url: "http://127.0.0.1:1" });

const orders: Live<readonly Order[]> = client.live("open_orders", { customer_id: 7n, status: "done" });
same<Order["total"], Decimal>(true);
same<Order["status"], "open" | "done">(true);
same<Order["placed"], string>(true);
same<Part["picture"], Uint8Array | null>(true);
same<Part["parts"], readonly Part[]>(true);
same<App["queries"]["rows"]["result"], readonly Record<string, unknown>[]>(true);
same<App["queries"]["place"]["result"]["at"], readonly [number, number]>(true);
same<App["queries"]["array"]["result"]["items"], readonly (readonly (number | null)[])[]>(true);
void client.query("rows");
void client.query('odd "name".1', { of: { any: [1] } });
void client.mutate("draw", { picture: new Uint8Array(1) });
async function ordered(): Promise<number> {
  const { result } = await client.mutate("order", { lines: [{ sku: "a" }], limit: "12.30", at: new Date() });
  return result;
}
void client.mutate("order", { lines: [], limit: 1 }, {
  optimistic: (tx) => tx.update(orders, (rows) => rows.map((row) => ({ ...row, status: "done" as const }))),
});
void ordered;

// @ts-expect-error There is no such query.
client.live("closed_orders");
// @ts-expect-error A mutation is no query.
client.live("order");
// @ts-expect-error An argument is missing.
client.live("open_orders");
// @ts-expect-error It takes no such argument.
client.live("open_orders", { customer_id: 7, colour: "red" });
// @ts-expect-error It is of another type.
client.live("open_orders", { customer_id: "7" });
// @ts-expect-error It is none of its values.
client.live("open_orders", { customer_id: 7, status: "gone" });
// @ts-expect-error Forge's own are not the application's.
client.live("forge.tables");
// @ts-expect-error A nested one is wrong.
void client.mutate("order", { lines: [{ count: 1 }], limit: 1 });
// @ts-expect-error Rows have no such column.
orders.subscribe(({ data }) => data?.[0]?.colour);
// @ts-expect-error What is shown is not to be changed.
orders.subscribe(({ data }) => data?.push());
// @ts-expect-error A decimal is not a number.
orders.subscribe(({ data }) => data?.[0] && data[0].total + 1);
"""


@pytest.mark.skipif(not (CLIENTS / "node_modules").exists(), reason="the packages of clients/ are not here: make setup")
def test_tsc_takes_the_types_and_refuses_misuse(tmp_path: Path) -> None:
    described = document(shop(), title="", version="", security=False)
    (tmp_path / "app.ts").write_text(typescript(described, source="forge codegen typescript shop:app"))
    (tmp_path / "use.ts").write_text(USE)
    options = {
        "extends": str(CLIENTS / "tsconfig.base.json"),
        "compilerOptions": {"paths": {"@forge/client": [str(CLIENTS / "typescript/src/index.ts")]}, "types": []},
        "files": ["use.ts"],
    }
    (tmp_path / "tsconfig.json").write_bytes(msgspec.json.encode(options))
    run = subprocess.run(
        [CLIENTS / "node_modules/.bin/tsc", "-p", tmp_path], capture_output=True, text=True, timeout=120, check=False
    )
    assert (run.returncode, run.stdout) == (0, "")


def test_the_text_reads_well() -> None:
    registry = Registry()

    async def open_orders(ctx: Any, customer_id: int) -> list[Order]:
        """What a customer still waits for."""
        raise NotImplementedError

    async def tick(ctx: Any) -> int:
        raise NotImplementedError

    registry.query(open_orders)
    registry.mutation(tick)
    described = document(registry, title="", version="", security=False)
    assert typescript(described, source="forge codegen typescript shop:app", name="Shop", bigint=True) == (
        """// Made by `forge codegen typescript shop:app`. Do not edit: make it again.

import type { Decimal } from "@forge/client";

/** An order, as customers see it. */
export interface Order {
  readonly id: number | bigint;
  readonly status: "done" | "open";
  readonly total: Decimal;
  readonly placed: string;
}

export interface Shop {
  queries: {
    /** What a customer still waits for. */
    open_orders: { args: { customer_id: number | bigint }; result: readonly Order[] };
  };
  mutations: {
    tick: { args: Record<string, never>; result: number | bigint };
  };
}
"""
    )


@pytest.mark.parametrize("given", [{}, {"paths": []}, {"paths": {"/pets": {}}}])
def test_what_is_no_application(given: dict[str, Any]) -> None:
    with pytest.raises(NotDescribed):
        typescript(given, source="")
    described = document(Registry(), title="", version="", security=False)
    with pytest.raises(NotDescribed, match="cannot name"):
        typescript(described, source="", name="class")
    assert "queries: Record<never, never>;" in typescript(described, source="")
