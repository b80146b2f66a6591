"""The trigger log against the WAL: in come both feeds over the same transactions, out comes every difference.

Two feeds that know nothing of each other saw the same writes. Where they disagree, one of them is wrong: a write that
no trigger saw, a log that was tampered with, a value that is decoded in two ways.

`window` decides which transactions and tables are compared and reads both feeds, `spool` keeps them on disk and brings
them together row by row, `compare` says what differs.
"""

from forge.capture.crosscheck.compare import Difference, Kind
from forge.capture.crosscheck.window import Report, Window, open_window

__all__ = ["Difference", "Kind", "Report", "Window", "open_window"]
