"""The process that keeps the lake, and dies where it is told to.

    python -m tests.checkers.lake.keeper URL LAKE STEP NTH

It takes in all that is committed and ends with 0. At a step's nth time it kills itself and its Spark with SIGKILL,
which leaves whatever a machine leaves that loses its power. The steps are those at which something has become true.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from forge.pipeline import bronze, ledger, ticks
from forge.pipeline.gold import daily
from forge.pipeline.lake import Lake
from forge.pipeline.run import LakeSettings, pipeline
from forge.pipeline.session import BRIEFLY, QUIETLY, session
from forge.pipeline.silver import merge, table

STEPS: Final[dict[str, tuple[Any, str, bool]]] = {
    "planned": (bronze, "append", False),
    "bronze": (bronze, "append", True),
    "tick": (ticks, "append", True),
    "learned": (bronze, "learn", True),
    "history": (merge._Merge, "_into_history", True),
    "current": (merge._Merge, "_into_current", True),
    "silver": (table, "take", True),
    "gold": (daily, "refresh", True),
    "ledger": (ledger, "record", True),
}
"""Where each step is: a function, and whether the end comes after it or before."""

MOST: Final = 2_000
"""Changes in one batch at the most: few enough that there are several."""

INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Compiling a query takes longer than interpreting it for a few rows."""

QUICK: Final = {
    **INTERPRETED,
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": f"{QUIETLY} {BRIEFLY}",
}


def main() -> None:
    url, path, step, nth = sys.argv[1:5]
    if step in STEPS:
        _die_at(step, int(nth))
    spark = session(master="local[2]", conf=QUICK, app="forge testing")
    with pipeline(spark, url, Lake(path), LakeSettings(most=MOST)) as running:
        running.once()
    spark.stop()


def _die_at(step: str, nth: int) -> None:
    place, name, after = STEPS[step]
    original: Callable[..., Any] = getattr(place, name)
    left = nth

    def dying(*arguments: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and not after:
            _die()
        result = original(*arguments, **more)
        if left == 0:
            _die()
        return result

    setattr(place, name, dying)


def _die() -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()
