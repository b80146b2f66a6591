"""The oracle of live queries from the command line; exit 0 when every subscriber held the answer, 1 otherwise."""

import argparse
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from forge.embedded import PostgresServer
from forge.testing.postgres import available_versions, temporary_postgres
from tests.checkers.oracle.generate import generate
from tests.checkers.oracle.plan import FAULTS, Plan
from tests.checkers.oracle.pruning import check
from tests.checkers.oracle.run import SETTINGS, Report, run
from tests.checkers.oracle.shrink import shrink, until

SHOWN = 5
SHRINK_SECONDS = 120.0
ROUNDS_A_SECOND = 5


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    binaries = available_versions()
    if options.postgres and options.postgres not in binaries:
        print(f"error: no PostgreSQL {options.postgres} here")
        print(f"fix: use one of {', '.join(map(str, binaries))}")
        return 2
    for name in ("forge", "psycopg.pool"):
        logging.getLogger(name).setLevel(logging.WARNING if options.verbose else logging.CRITICAL)
    with temporary_postgres(bin=binaries.get(options.postgres), settings=SETTINGS) as server:
        return _search(options, server)


def _search(options: argparse.Namespace, server: PostgresServer) -> int:
    deadline = time.monotonic() + 60 * options.minutes
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    failed = plans = asks = 0
    refused: Counter[str] = Counter()
    while True:
        plan = _plan(options, seed)
        print(plan.summary(), flush=True)
        if options.pruning:
            failed += _check_pruning(plan, options, server)
            seed += 1
            if not options.long or time.monotonic() > deadline or (failed and not options.keep_going):
                return 1 if failed else 0
            continue
        report = _run(plan, options, server)
        plans += 1
        asks += report.asks
        refused.update(report.refused)
        print(f"  {report}", flush=True)
        if options.verbose:
            print(f"  {plan.sessions()}".replace("\n", "\n  "))
            print(f"  refused: {report.refused}\n  errors: {report.errors}\n  faults: {report.faults}", flush=True)
        if report.discrepancies:
            failed += 1
            _explain(report, options, server)
        seed += 1
        if not options.long or time.monotonic() > deadline or (failed and not options.keep_going):
            break
    print(f"{plans} plans, {failed} with discrepancies; {sum(refused.values())} of {asks} asks refused:")
    for reason, count in refused.most_common(SHOWN):
        print(f"  {count} {reason}")
    return 1 if failed else 0


def _check_pruning(plan: Plan, options: argparse.Namespace, server: PostgresServer) -> bool:
    found = check(plan, server, seconds=1e9 if options.plan else options.seconds)
    print(f"  {found}", flush=True)
    for discrepancy in found.discrepancies[:SHOWN]:
        print(f"  {discrepancy}", flush=True)
    return bool(found.discrepancies)


def _plan(options: argparse.Namespace, seed: int) -> Plan:
    if options.plan:
        return msgspec.json.decode(Path(options.plan).read_bytes(), type=Plan)
    rounds = max(1, round(options.seconds * ROUNDS_A_SECOND * (3 if options.pruning else 1)))
    joins = 0.5 if options.pruning else 0.1
    return generate(seed, rounds=rounds, queries=options.queries, faults=tuple(options.faults), joins=joins)


def _run(plan: Plan, options: argparse.Namespace, server: PostgresServer) -> Report:
    return run(plan, server, seconds=1e9 if options.plan else options.seconds, patience=options.patience)


def _explain(report: Report, options: argparse.Namespace, server: PostgresServer) -> None:
    for discrepancy in report.discrepancies[:SHOWN]:
        print(f"  {discrepancy}")
    if len(report.discrepancies) > SHOWN:
        print(f"  and {len(report.discrepancies) - SHOWN} more")
    print(f"  {report.plan.sessions()}".replace("\n", "\n  "))
    print(f"  faults: {', '.join(report.faults)}\n  again: {_again(report.plan.seed, options)}", flush=True)
    if options.shrink:
        first = report.discrepancies[0]

        def fails(plan: Plan) -> bool:
            found = _run(plan, options, server).discrepancies
            return any(each.kind == first.kind for each in found)

        smaller = until(report.plan, first.round, first.ask)
        plan = shrink(smaller if fails(smaller) else report.plan, fails, seconds=options.shrink)
        path = Path(f"oracle-{plan.seed}.json")
        path.write_bytes(msgspec.json.format(msgspec.json.encode(plan)))
        print(f"  smallest found: {plan.summary()}")
        for discrepancy in _run(plan, options, server).discrepancies[:1]:
            print(f"  {discrepancy}")
        print(f"  again: python -m tests.checkers.oracle --plan {path}", flush=True)


def _again(seed: int, options: argparse.Namespace) -> str:
    """The command that carries out the same plan."""
    if options.plan:
        return f"python -m tests.checkers.oracle --plan {options.plan}"
    words = ["python -m tests.checkers.oracle --seed", str(seed)]
    plain = _options([])
    for name in ("seconds", "queries", "faults", "postgres"):
        value = getattr(options, name)
        if value != getattr(plain, name):
            words += [f"--{name}", *(value if isinstance(value, list) else [f"{value:g}"])]
    return " ".join(words)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.checkers.oracle", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first plan; random unless given")
    parser.add_argument("--seconds", type=float, default=8.0, help="of writing in each plan (8)")
    parser.add_argument("--long", action="store_true", help="go on with the next seeds")
    parser.add_argument("--minutes", type=float, default=10, help="how long, with --long (10)")
    parser.add_argument("--keep-going", action="store_true", help="after a discrepancy too, with --long")
    parser.add_argument("--queries", type=int, default=16, help="in each plan (16)")
    parser.add_argument(
        "--faults", nargs="*", default=list(FAULTS), choices=FAULTS, metavar="FAULT", help="of " + ", ".join(FAULTS)
    )
    parser.add_argument("--patience", type=float, default=20, help="seconds for nodes to settle (20)")
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
    parser.add_argument("--pruning", action="store_true", help="check what is pruned, statement by statement")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
