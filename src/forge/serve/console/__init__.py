"""The console's side of a server: live queries of Forge's own, called `forge.*`, and the page that shows them.

In comes a node, out comes its registry of what the console asks; `docs/how-to/console.md` lists the shapes. What always
holds:

- Who asks is checked by the node before anything here runs: see `forge.serve.permissions.oversee`.
- What takes long runs in a thread, on a connection of its own, for a limited time.
- Values of columns that are excluded or masked now are in no answer.
"""

from forge.config import Config
from forge.react.registry import Registry
from forge.serve.console import deliveries, doctor, lake, log, past, running, tracking
from forge.serve.console.console_context import Desk
from forge.serve.node import Node

__all__ = ["registry"]


def registry(node: Node, config: Config, *, title: str) -> Registry:
    """What the console may ask a node that runs by a configuration; from now on the node is watched for it."""
    desk = Desk(node, config, title)
    for part in (log, tracking, running, deliveries, past, lake, doctor):
        part.register(desk)
    return desk.registry
