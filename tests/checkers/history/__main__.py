"""The history checker from the command line; exit 0 when nothing was lost or doubled, 1 otherwise."""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from forge.testing.postgres import available_versions, temporary_postgres
from tests.checkers.history.plan import FAULTS, Plan, generate
from tests.checkers.history.run import SETTINGS, Report, run
from tests.checkers.history.shrink import shrink
from tests.checkers.history.tables import TABLES

SHOWN = 12
SHRINK_SECONDS = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    binaries = available_versions()
    if options.postgres and options.postgres not in binaries:
        print(f"error: no PostgreSQL {options.postgres} here")
        print(f"fix: use one of {', '.join(map(str, binaries))}")
        return 2
    deadline = time.monotonic() + 60 * options.minutes
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    failed = histories = 0
    while True:
        plan = _plan(options, seed)
        print(plan.summary(), flush=True)
        if options.verbose:
            print(f"  {plan.sessions()}".replace("\n", "\n  "), flush=True)
        report = _run(plan, options)
        histories += 1
        print(f"  {report}", flush=True)
        if options.verbose:
            print(f"  faults: {'; '.join(report.faults)}\n  errors: {report.errors}", flush=True)
        if report.discrepancies:
            failed += 1
            _explain(report, options)
        seed += 1
        if not options.long or time.monotonic() > deadline or (failed and not options.keep_going):
            break
    print(f"{histories} histories, {failed} with discrepancies")
    return 1 if failed else 0


def _plan(options: argparse.Namespace, seed: int) -> Plan:
    if options.plan:
        return msgspec.json.decode(Path(options.plan).read_bytes(), type=Plan)
    return generate(
        seed,
        seconds=options.seconds,
        writers=options.writers,
        readers=options.readers,
        faults=tuple(options.faults),
        rate=options.rate,
        tables=options.tables,
    )


def _run(plan: Plan, options: argparse.Namespace) -> Report:
    binaries = available_versions().get(options.postgres) if options.postgres else None
    with temporary_postgres(bin=binaries, settings=SETTINGS) as server:
        return run(plan, server, patience=options.patience)


def _explain(report: Report, options: argparse.Namespace) -> None:
    for discrepancy in report.discrepancies[:SHOWN]:
        print(f"  {discrepancy}")
    if len(report.discrepancies) > SHOWN:
        print(f"  and {len(report.discrepancies) - SHOWN} more")
    print(f"  {report.plan.sessions()}".replace("\n", "\n  "))
    print(f"  errors of writers: {report.errors}")
    print(f"  faults: {'; '.join(report.faults)}")
    print(f"  again: {_again(report.plan.seed, options)}")
    if options.shrink:
        kinds = {discrepancy.kind for discrepancy in report.discrepancies}

        def fails(plan: Plan) -> bool:
            found = {discrepancy.kind for discrepancy in _run(plan, options).discrepancies}
            print(f"  {'still fails' if found & kinds else 'passes'}: {plan.summary()}", flush=True)
            return bool(found & kinds)

        plan = shrink(report.plan, fails, seconds=options.shrink)
        path = Path(f"history-{plan.seed}.json")
        path.write_bytes(msgspec.json.format(msgspec.json.encode(plan)))
        print(f"  smallest found: {plan.summary()}\n  again: python -m tests.checkers.history --plan {path}")


def _again(seed: int, options: argparse.Namespace) -> str:
    """The command that carries out the same plan."""
    if options.plan:
        return f"python -m tests.checkers.history --plan {options.plan}"
    words = ["python -m tests.checkers.history --seed", str(seed)]
    plain = _options([])
    for name in ("seconds", "writers", "readers", "rate", "faults", "tables", "postgres"):
        value = getattr(options, name)
        if value != getattr(plain, name):
            words += [f"--{name}", *(value if isinstance(value, list) else [f"{value:g}"])]
    return " ".join(words)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.checkers.history", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first history; random unless given")
    parser.add_argument("--seconds", type=float, help="of writing in each history (6; 12 with --long)")
    parser.add_argument("--long", action="store_true", help="go on with the next seeds")
    parser.add_argument("--minutes", type=float, default=10, help="how long, with --long (10)")
    parser.add_argument("--keep-going", action="store_true", help="after a discrepancy too, with --long")
    parser.add_argument("--writers", type=int, default=5)
    parser.add_argument("--readers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=16, help="transactions per second and writer (16)")
    parser.add_argument(
        "--faults", nargs="*", default=list(FAULTS), choices=FAULTS, metavar="FAULT", help="of " + ", ".join(FAULTS)
    )
    parser.add_argument(
        "--tables", nargs="*", default=[], choices=TABLES, metavar="TABLE", help=f"written to, of {', '.join(TABLES)}"
    )
    parser.add_argument("--patience", type=float, default=30, help="seconds for readers to catch up (30)")
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
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args(arguments)
    if options.seconds is None:
        options.seconds = 12.0 if options.long else 6.0  # long enough for a hung pacemaker to lose its lock
    return options


if __name__ == "__main__":
    sys.exit(main())
