"""Report of one round of maintenance."""

import msgspec


class MaintenanceReport(msgspec.Struct):
    """Result of one round. `waiting` lists days to drop that are still in use; a later round drops them."""

    busy: bool = False
    """Another session maintains the log; nothing was done."""
    holder: str | None = None
    """That session, for people."""
    made: list[str] = msgspec.field(default_factory=list)
    dropped: list[str] = msgspec.field(default_factory=list)
    waiting: list[str] = msgspec.field(default_factory=list)
    held: list[str] = msgspec.field(default_factory=list)
    """Days past retention that are kept for a consumer that has not read them."""
    trimmed_rows: int = 0
    trimmed_instants: int = 0
    trimmed_payloads: int = 0
    refreshed: int = 0
    sealed: int = 0
    size: int = 0
    problems: list[str] = msgspec.field(default_factory=list)
