"""A block without tracking.

    with forge.without_tracking():          # `async with` too
        import_everything(session)

It applies to everything that this thread or task does inside the block, at any depth, and to no other. The database's
own triggers still record.
"""

from contextvars import ContextVar, Token
from typing import Final, Self

_paused: Final[ContextVar[bool]] = ContextVar("forge_without_tracking", default=False)


class without_tracking:
    """The block, with `with` or `async with`."""

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
    """Whether the caller is inside such a block."""
    return _paused.get()
