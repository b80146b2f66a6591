"""Check for foreign sessions that hold the advisory locks of the wake-up."""

from collections.abc import Iterator

from forge.changelog.follow import SLOW_POLL
from forge.doctor.finding import Case, Finding, warning
from forge.postgres import leases

_COSTS = {
    "wake-up": f"writers then wake nobody, and changes are found by the poll every {SLOW_POLL:.0f} s",
    "pacemaker": "no follower can then keep writers from sending a NOTIFY for every commit under load",
}


def strangers(case: Case) -> Iterator[Finding]:
    """Check whether a role without access to the log holds a lock of the wake-up."""
    for holder in leases.strangers(case.connection):
        yield warning(
            "locks",
            f"a role that may not read the log has asked for the {holder.name} lock ({holder}): {_COSTS[holder.name]}",
            f"SELECT pg_terminate_backend({holder.pid}), and ask whoever uses that role",
        )
