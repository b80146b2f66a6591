"""The suite for sources on Forge's own: `python -m tests.checkers conformance log [WORD …]`.

Runs the checks whose names have one of the words, or all, each on a database of its own; 1 when one fails.
"""

import importlib
import logging
import sys
from collections.abc import Sequence
from typing import Final

from forge.testing.conformance.runner import main as run

ADAPTERS: Final = {
    **{name: f"tests.checkers.conformance.{name}" for name in ("log", "wal", "mysql", "sqlite", "hook", "mongo")},
    "memory": "forge.testing.conformance.memory",
}
"""The module of each adapter, with a `serving`."""


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] not in ADAPTERS:
        print(f"usage: python -m tests.checkers conformance {{{','.join(ADAPTERS)}}} [WORD …]", file=sys.stderr)
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger(__package__).setLevel(logging.INFO)
    with importlib.import_module(ADAPTERS[arguments[0]]).serving() as opening:
        return run(opening, list(arguments[1:]))
