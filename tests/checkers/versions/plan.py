"""Plan of a run, and its findings."""

from typing import Final, Literal

import msgspec

from forge.versions.nouns import Resource
from forge.versions.strategies import STRATEGIES, Strategy

SCHOOLS: Final = Resource("model", "schools")
COURSES: Final = Resource("model", "courses")
PLANS: Final = Resource("model", "plans", "2.0")
STUDENTS: Final = Resource("model", "students")
RESOURCES: Final = (SCHOOLS, COURSES, PLANS, STUDENTS)
BY_ACCESS: Final = (PLANS, STUDENTS)
SUBJECTS: Final = ("ada", "eve")

Mistake = Literal["last_value", "xmax", "early", "carry", "monotonic", "journal", "grant", "revoke"]


class Plan(msgspec.Struct, frozen=True):
    """What is done."""

    seed: int
    seconds: float = 6.0
    writers: int = 3
    clients: int = 6
    """Half of them see only what a subject has access to."""
    triggers: bool = False
    """Every second writer writes by SQL of its own."""
    strategies: tuple[Strategy, ...] = STRATEGIES
    """Those that it goes through."""
    keys: int = 12
    """How many identities each resource has, at the most."""
    crashes: int = 0
    """Of the server."""
    least: int = 0
    """Transactions before which it does not end, whatever the time."""
    mistake: Mistake | None = None
    """What is wrong on purpose."""


class Report(msgspec.Struct, frozen=True):
    """What came of it."""

    plan: Plan
    wrong: list[str]
    stamps: int
    commits: int
    refused: int
    retried: int
    windows: int
    told: int
    documents: int
    grants: int
    """Accesses that there are in the end, and that were lost."""
    strategies: int
    seconds: float

    def __str__(self) -> str:
        verdict = f"{len(self.wrong)} WRONG" if self.wrong else "every mirror is the source"
        return (
            f"seed {self.plan.seed}: {self.stamps} stamps, {self.commits} transactions, {self.refused} changes refused,"
            f" {self.grants} accesses given and lost, {self.retried} deadlocks, {self.windows} windows,"
            f" {self.told} times newest, {self.strategies} times another strategy, {self.documents} documents left,"
            f" {self.seconds:.1f} s: {verdict}"
        )
