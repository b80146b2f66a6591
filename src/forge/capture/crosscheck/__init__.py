"""Compare the trigger log with the WAL. In: both feeds over the same transactions. Out: every difference.

The two feeds see the same writes independently. If they disagree, one of them is wrong: a write that no trigger saw, a
log that was tampered with, a value that is decoded in two ways.

`window` selects the transactions and tables to compare and reads both feeds, `spool` keeps them on disk and joins them
row by row, `compare` finds the differences.
"""

from forge.capture.crosscheck.compare import DifferenceKind, FeedDifference
from forge.capture.crosscheck.window import CrosscheckReport, Window, open_window

__all__ = ["CrosscheckReport", "DifferenceKind", "FeedDifference", "Window", "open_window"]
