import { expectTypeOf, test } from "vitest";
import { type Client, type ClientOptions, createClient, type Mutated } from "../src/client";
import type { Live } from "../src/live";

interface Order {
  readonly id: number;
  readonly total: string;
}

interface Shop {
  queries: {
    open_orders: { args: { customer_id: number; status?: string }; result: Order[] };
    how_many: { args: Record<never, never>; result: number };
  };
  mutations: { pay: { args: { order_id: number }; result: number } };
}

const options: ClientOptions = { url: "http://forge.test", share: false };

test("names, arguments and results of a typed application", () => {
  const shop: Client<Shop> = createClient<Shop>(options);
  expectTypeOf(shop.live("open_orders", { customer_id: 7 })).toEqualTypeOf<Live<Order[]>>();
  expectTypeOf(shop.live("how_many")).toEqualTypeOf<Live<number>>();
  // @ts-expect-error an argument is missing
  shop.live("open_orders");
  // @ts-expect-error an argument is of another type
  shop.live("open_orders", { customer_id: "7" });
  // @ts-expect-error there is no such query
  shop.live("orders");
  expectTypeOf(shop.mutate<"pay">).returns.resolves.toEqualTypeOf<Mutated<number>>();
  expectTypeOf(shop.query<"how_many">).returns.resolves.toEqualTypeOf<number>();
});

test("an application of which nothing is known", () => {
  const any = createClient(options);
  expectTypeOf(any.live<Order[]>("open_orders", { customer_id: 7 })).toEqualTypeOf<Live<Order[]>>();
  expectTypeOf(any.live("open_orders")).toEqualTypeOf<Live<unknown>>();
});
