/**
 * The types of an application's queries and mutations, as `forge codegen typescript` writes them.
 *
 *     interface Shop {
 *       queries: { open_orders: { args: { customer_id: number }; result: OpenOrder[] } };
 *       mutations: { pay: { args: { order_id: number }; result: number } };
 *     }
 *     const client = createClient<Shop>();
 */

export interface App {
  readonly queries: object;
  readonly mutations: object;
}

/** An application of which nothing is known: any name, any arguments, results that the caller names. */
export interface Untyped {
  readonly untyped: true;
}

/** What a query or mutation of that name takes, and what it returns. */
export type ArgsOf<M, N extends keyof M> = M[N] extends { readonly args: infer A extends object } ? A : never;
export type ResultOf<M, N extends keyof M> = M[N] extends { readonly result: infer R } ? R : never;
