"""The `forge` command: flags in, one call into Forge, lines out.

Every command is one small file. An error that Forge can name is two lines on standard error, what and fix, and
exit code 1; a wrong command line is the same with exit code 2. A traceback is shown with --debug only.
"""

from forge.cli.main import main

__all__ = ["main"]
