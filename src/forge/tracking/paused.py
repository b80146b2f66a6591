"""A block in which nothing is tracked.

    with forge.without_tracking():          # `async with` too
        import_everything(session)

It holds for what this thread or task does within the block, however deep, and for nobody else. What a database's own
triggers record, they still do.
"""

from contextvars import ContextVar, Token
from typing import Final, Self

_paused: Final[ContextVar[bool]] = ContextVar("forge_without_tracking", default=False)


class without_tracking:
    """The block, by `with` or `async with`."""

    def __init__(self) -> None:
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> Self:
        self._tokens.append(_paused.set(True))
        return self

    def __exit__(self, *exc: object) -> None:
        _paused.reset(self._tokens.pop())

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.__exit__()


def paused() -> bool:
    """Whether this is within such a block."""
    return _paused.get()
