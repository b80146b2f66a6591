"""`python -m forge.testing.conformance log [WORD …]`, or `module:opening` for a source of one's own.

Runs the checks whose names have one of the words, or all, each on a database of its own; 1 when one fails.
"""

import importlib
import logging
import sys
from contextlib import ExitStack
from typing import Final

from forge.testing.conformance.runner import main

OWN: Final = ("log", "wal", "mysql", "sqlite", "hook", "mongo", "memory")
"""The adapters that come with Forge: modules of this package, each with a `serving`."""


def run(text: str, words: list[str]) -> int:
    """Run the checks on what the text names."""
    with ExitStack() as stack:
        module, _, function = text.partition(":")
        if text in OWN:
            opening = stack.enter_context(importlib.import_module(f"{__package__}.{text}").serving())
        elif function:
            opening = getattr(importlib.import_module(module), function)
        else:
            raise SystemExit(f"error: no adapter {text!r}\nfix: {', '.join(OWN)}, or module:opening of your own")
        return main(opening, words)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger(__package__).setLevel(logging.INFO)
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        raise SystemExit(f"usage: python -m forge.testing.conformance {{{','.join(OWN)},module:opening}} [WORD …]")
    raise SystemExit(run(sys.argv[1], sys.argv[2:]))
