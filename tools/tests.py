"""Runs all tests: in come words for pytest, out come the lines of the run and an exit code that is 0 when all passed.

The pipeline's tests wait for Spark most of their time, and one Spark is enough for a machine. So they run one after the
other beside all the others, which run in several processes, and what they print is shown at the end.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LOG: Final = ROOT / "build" / "pipeline.log"
NOTHING_CHOSEN: Final = 5
"""How pytest ends when no test has been chosen."""


def main(pytest: list[str], arguments: list[str]) -> int:
    """Run both, and the tests of the browser's side behind them."""
    single = [pytest[0], "-m", "not long", "tests/pipeline", *arguments]
    several = [*pytest, "-m", "not long", "--ignore", "tests/pipeline", *arguments]
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("w") as log:
        beside = subprocess.Popen(single, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            codes = [subprocess.call(several, cwd=ROOT)]
            print(f"beside it ran the pipeline's tests ({LOG.relative_to(ROOT)}):", flush=True)
            codes.append(beside.wait())
        finally:
            beside.wait()
    print("\n".join(LOG.read_text(errors="replace").splitlines()[-40:]), flush=True)
    if (ROOT / "clients" / "node_modules").exists():
        codes.append(subprocess.call(["npm", "test", "--prefix", "clients"], cwd=ROOT))
    else:
        print("the tests in clients/ did not run: they need Node.js")
    return 0 if all(code in (0, NOTHING_CHOSEN) for code in codes) else 1


if __name__ == "__main__":
    at = sys.argv.index("--")
    try:
        sys.exit(main(sys.argv[1:at], sys.argv[at + 1 :]))
    except KeyboardInterrupt:
        sys.exit(130)
