"""Which texts a database can have: those that PostgreSQL stores as they are."""


def unstorable(value: str) -> str | None:
    """What in a text PostgreSQL cannot store; None when it can.

    >>> unstorable("Zoë"), unstorable("a\\0b"), unstorable("\\ud800")
    (None, 'a NUL character', 'half of a surrogate pair')
    """
    if "\0" in value:
        return "a NUL character"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair"
    return None
