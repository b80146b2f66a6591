"""The oracle of live queries: whatever is written and whatever fails, every subscriber ends with PostgreSQL's answer.

In comes a seed. From it follows a `Plan`: a schema, queries and who subscribes to them, rounds of transactions by
several writers, and faults. `run` carries it out on a real server. After every round all is quiet for a moment, and
what each subscriber holds is compared with what PostgreSQL answers when it is asked directly; so one change that was
held to touch nothing, and did, is found before the next can hide it. Out come discrepancies; there must be none.

    python -m tests.checkers oracle --seed 7 --seconds 8
    python -m tests.checkers oracle --long --minutes 10 --shrink

The same seed gives the same plan, not the same timing.
"""
