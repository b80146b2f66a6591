"""The command line that all randomized checkers share: seeds in, plans carried out, findings and smaller plans out.

A `Checker` makes a plan of a seed and carries it out; `search` repeats that, explains what is wrong, and shrinks the
plan. The exit code is 0 when nothing was found, 1 when something was, 2 when the command is wrong.
"""

import argparse
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Generic

import msgspec

from forge.testing.postgres import available_versions
from tests.checkers.shrink import PlanT, shrink

SHOWN: Final = 12
SHRINK_SECONDS: Final = 300.0
_OF_THE_SEARCH: Final = ("seed", "long", "minutes", "keep_going", "shrink", "plan", "verbose")
"""Options that say nothing about a single plan."""


class Finding(msgspec.Struct, frozen=True):
    """Something that must not be; a shrunk plan must fail with the same kind."""

    kind: str
    text: str


@dataclass(frozen=True)
class Outcome(Generic[PlanT]):
    """What came of a plan."""

    summary: str
    findings: Sequence[Finding]
    details: Sequence[str] = ()
    """Lines that explain findings: settings, faults, errors."""
    guesses: Sequence[PlanT] = field(default=())
    """Smaller plans that probably fail too: shrinking begins with the first that does."""


class Checker(ABC, Generic[PlanT]):
    """One randomized checker."""

    name: ClassVar[str]
    description: ClassVar[str]
    seconds: ClassVar[tuple[float, float] | None] = None
    """Of writing in each plan, without and with --long; None where a plan does not go by time."""
    plan_type: type[PlanT]

    @abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Options of this checker alone."""

    @abstractmethod
    def plan(self, options: argparse.Namespace, seed: int) -> PlanT:
        """The plan of a seed."""

    @abstractmethod
    def running(self, options: argparse.Namespace) -> AbstractContextManager[Callable[[PlanT], Outcome[PlanT]]]:
        """Start what all plans share, and carry out plans while it lasts."""

    @abstractmethod
    def candidates(self, plan: PlanT) -> Iterator[PlanT]:
        """Plans with something taken away, the boldest first."""

    def announce(self, plan: PlanT) -> str:
        """A line about a plan before it is carried out."""
        return f"seed {getattr(plan, 'seed', '?')}"

    def totals(self) -> list[str]:
        """Lines after the last plan."""
        return []


def search(checker: Checker[PlanT], arguments: Sequence[str]) -> int:
    """Carry out one plan, or plan after plan with --long."""
    options = _parsed(checker, arguments)
    versions = available_versions()
    if options.postgres and options.postgres not in versions:
        print(f"error: no PostgreSQL {options.postgres} here")
        print(f"fix: use one of {', '.join(map(str, versions))}")
        return 2
    deadline = time.monotonic() + 60 * options.minutes
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    failed = plans = 0
    with checker.running(options) as run:
        while True:
            plan = _plan(checker, options, seed)
            print(checker.announce(plan), flush=True)
            outcome = run(plan)
            plans += 1
            print(f"  {outcome.summary}", flush=True)
            if outcome.findings:
                failed += 1
                _explain(checker, options, plan, outcome, run)
            elif options.verbose:
                print(*(f"  {line}" for line in outcome.details), sep="\n", flush=True)
            seed += 1
            if not options.long or time.monotonic() > deadline or (failed and not options.keep_going):
                break
    print(f"{plans} plans, {failed} with discrepancies", *checker.totals(), sep="\n")
    return 1 if failed else 0


def postgres_binaries(options: argparse.Namespace) -> Path | None:
    """The binaries of the version that --postgres names; None for the default."""
    return available_versions().get(options.postgres) if options.postgres else None


def _plan(checker: Checker[PlanT], options: argparse.Namespace, seed: int) -> PlanT:
    if options.plan:
        return msgspec.json.decode(Path(options.plan).read_bytes(), type=checker.plan_type)
    return checker.plan(options, seed)


def _explain(
    checker: Checker[PlanT],
    options: argparse.Namespace,
    plan: PlanT,
    outcome: Outcome[PlanT],
    run: Callable[[PlanT], Outcome[PlanT]],
) -> None:
    for finding in outcome.findings[:SHOWN]:
        print(f"  {finding.text}")
    if len(outcome.findings) > SHOWN:
        print(f"  and {len(outcome.findings) - SHOWN} more")
    for line in outcome.details:
        print(f"  {line}")
    print(f"  again: {_again(checker, options, plan)}", flush=True)
    if not options.shrink:
        return
    kinds = {finding.kind for finding in outcome.findings}

    def fails(smaller: PlanT) -> bool:
        same = kinds & {finding.kind for finding in run(smaller).findings}
        print(f"  {'still fails' if same else 'passes'}: {checker.announce(smaller)}", flush=True)
        return bool(same)

    start = next((guess for guess in outcome.guesses if fails(guess)), plan)
    smallest = shrink(start, checker.candidates, fails, seconds=options.shrink)
    path = Path(f"{checker.name}-{getattr(plan, 'seed', 'plan')}.json")
    path.write_bytes(msgspec.json.format(msgspec.json.encode(smallest)))
    print(f"  smallest found: {checker.announce(smallest)}\n  again: {_command(checker)} --plan {path}", flush=True)


def _command(checker: Checker[PlanT]) -> str:
    return f"python -m tests.checkers {checker.name}"


def _again(checker: Checker[PlanT], options: argparse.Namespace, plan: PlanT) -> str:
    """The command that carries out the same plan."""
    if options.plan:
        return f"{_command(checker)} --plan {options.plan}"
    words = [_command(checker), "--seed", str(getattr(plan, "seed", options.seed))]
    parser = _parser(checker)
    for name, value in vars(options).items():
        if name in _OF_THE_SEARCH or value == parser.get_default(name):
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words += map(str, value if isinstance(value, list) else [value])
    return " ".join(words)


def _parsed(checker: Checker[PlanT], arguments: Sequence[str]) -> argparse.Namespace:
    options = _parser(checker).parse_args(arguments)
    if checker.seconds is not None and options.seconds is None:
        options.seconds = checker.seconds[options.long]
    return options


def _parser(checker: Checker[PlanT]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_command(checker), description=checker.description)
    parser.add_argument("--seed", type=int, help="of the first plan; random unless given")
    if checker.seconds is not None:
        short, long = checker.seconds
        parser.add_argument("--seconds", type=float, help=f"of writing in each plan ({short:g}; {long:g} with --long)")
    parser.add_argument("--long", action="store_true", help="go on with the next seeds")
    parser.add_argument("--minutes", type=float, default=10, help="how long, with --long (10)")
    parser.add_argument("--keep-going", action="store_true", help="after a discrepancy too, with --long")
    parser.add_argument("--postgres", type=int, metavar="VERSION", help="the major version to run on")
    parser.add_argument("--plan", metavar="FILE", help="run this plan, as shrinking saved it")
    parser.add_argument(
        "--shrink",
        type=float,
        nargs="?",
        const=SHRINK_SECONDS,
        metavar="SECONDS",
        help=f"make a failing plan smaller, for so long ({SHRINK_SECONDS:g}), and save it",
    )
    parser.add_argument("--verbose", action="store_true", help="settings, faults and errors of every plan")
    checker.add_options(parser)
    return parser
