"""Flags that mean the same everywhere may stand anywhere on the command line."""

from collections.abc import Sequence
from typing import Final

SWITCHES: Final = ("--json", "--no-color", "--debug")
VALUED: Final = ("--database-url", "-d", "--config", "--data")
_JOINED: Final = ("--database-url=", "--config=", "--data=")


def hoist(arguments: Sequence[str]) -> list[str]:
    """The arguments with the global flags before the command's name; nothing after a bare `--` is moved.

    >>> hoist(["tail", "--once", "--json", "-d", "postgresql://db", "--table", "orders"])
    ['--json', '-d', 'postgresql://db', 'tail', '--once', '--table', 'orders']
    """
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in SWITCHES or word.startswith(_JOINED):
            front.append(word)
        elif word in VALUED:
            front += [word, *(value for value in [next(words, None)] if value is not None)]
        else:
            rest.append(word)
    return front + rest
