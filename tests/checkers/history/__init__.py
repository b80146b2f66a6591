"""The randomized history checker: no change is lost, none is doubled, whatever fails meanwhile.

In comes a seed. From it follows a `Plan`: tables of several kinds, writers with their transactions, readers,
and a schedule of faults. `run` carries it out on a real server; afterwards the database itself is asked what
was committed, and every reader's record is held against that. Out come discrepancies; there must be none.

    python -m tests.checkers history --seed 7 --seconds 6
    python -m tests.checkers history --long --minutes 10

The same seed gives the same plan, not the same timing: a fault finds the writers where it finds them.
"""
