"""The suite on a source of one's own: `python -m forge.testing.conformance module:opening [WORD …]`.

Runs the checks whose names have one of the words, or all, each on a database of its own; 1 when one fails.
"""

import importlib
import sys

from forge.testing.conformance.runner import main


def run(text: str, words: list[str]) -> int:
    """Run the checks on the opening that the text names."""
    module, _, function = text.partition(":")
    if not function:
        raise SystemExit(
            f"error: {text!r} names no opening\nfix: module:opening, as forge.testing.conformance.memory:opened"
        )
    return main(getattr(importlib.import_module(module), function), words)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        raise SystemExit("usage: python -m forge.testing.conformance module:opening [WORD …]")
    raise SystemExit(run(sys.argv[1], sys.argv[2:]))
