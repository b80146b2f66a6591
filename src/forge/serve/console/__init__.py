"""Server side of the console: Forge's own live queries, named `forge.*`, and the page that shows them.

Input: a node. Output: its registry of console queries; `docs/how-to/console.md` lists their shapes.

Invariants:

- The node checks the caller before anything here runs: see `forge.serve.permissions.oversee`.
- Slow work runs in a thread, on a dedicated connection, with a timeout.
- Values of columns that are currently excluded or masked are never in an answer.
"""

from forge.config import Config
from forge.react.registry import Registry
from forge.serve.console import deliveries, doctor, lake, log, past, running, tracking
from forge.serve.console.console_context import Desk
from forge.serve.node import Node

__all__ = ["registry"]


def registry(node: Node, config: Config, *, title: str) -> Registry:
    """Return the console queries of a node that runs with this configuration, and start to record its activity."""
    desk = Desk(node, config, title)
    for part in (log, tracking, running, deliveries, past, lake, doctor):
        part.register(desk)
    return desk.registry
