"""The checker of the pipeline: random traffic, a lake that is kept beside it, and processes killed at any point.

    python -m tests.checkers lake --seed 7 --kills 3

At the end the lake must equal the database, bronze must have every change of the log once, and each version in silver
must stand for one change. A seed gives the same traffic and the same kills.
"""

from tests.checkers.lake.run import Plan, Report, run

__all__ = ["Plan", "Report", "run"]
