"""What the past is asked with, as text: refused before it is sent where PostgreSQL cannot take it.

>>> storable("the key", "4711", None)
>>> storable("the key", "a\\0b")
Traceback (most recent call last):
forge.errors.HistoryUnavailable: the key has a NUL character
fix: pass text that PostgreSQL can store
"""

from forge.errors import ForgeError, HistoryUnavailable
from forge.postgres.text import unstorable


def storable(what: str, *words: str | None, error: type[ForgeError] = HistoryUnavailable) -> None:
    """Raise the error, which does not repeat the word, unless a database can have every one of these."""
    for word in words:
        if word is not None and (problem := unstorable(word)):
            raise error(f"{what} has {problem}", fix="pass text that PostgreSQL can store")
