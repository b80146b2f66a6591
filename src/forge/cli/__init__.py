"""The `forge` command: flags in, one call into Forge, lines out.

Every command is one small file. A known error is two lines on standard error, the problem and the fix, with exit code
1; a wrong command line is the same with exit code 2. A traceback is shown only with --debug.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit. Ctrl-C is quiet from the first moment on, while Python still imports."""
    try:
        from forge.cli.command import main as run

        run(arguments)
    except KeyboardInterrupt:
        sys.exit(130)
