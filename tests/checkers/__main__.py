"""The checkers from the command line: `python -m tests.checkers NAME --help`."""

import importlib
import sys
from collections.abc import Sequence
from typing import Final

CHECKERS: Final = {
    "history": "tests.checkers.history.checker",
    "oracle": "tests.checkers.oracle.checker",
    "pruning": "tests.checkers.oracle.pruning_checker",
    "lake": "tests.checkers.lake.checker",
    "delivery": "tests.checkers.delivery.checker",
    "versions": "tests.checkers.versions.checker",
    "conformance": "tests.checkers.conformance.checker",
}
"""The module of each; only the one that is asked for is imported, because some need Spark."""


def main(arguments: Sequence[str]) -> int:
    """Run the checker that the first argument names with the rest."""
    if not arguments or arguments[0] not in CHECKERS:
        print(f"usage: python -m tests.checkers {{{','.join(CHECKERS)}}} [--help]", file=sys.stderr)
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    status: int = importlib.import_module(CHECKERS[arguments[0]]).main(arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
