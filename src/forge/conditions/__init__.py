"""Conditions on the rows of one table, in SQL's three-valued logic: parse, evaluate, index.

`tree` has the nodes, `parse` reads them from SQL text, `logic` combines outcomes. `bound` evaluates with the types of
the columns, exactly as PostgreSQL would; `untyped` evaluates with the values alone, for any database's rows.
"""
