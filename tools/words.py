"""Check the language of code and documents: a list of words with what to write instead.

    .venv/bin/python tools/words.py

Prints `file:line: word → suggestion` for each finding and exits with 1 if there is one. Module docstrings below
`src` must not open with a question word: they name the thing first.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SUFFIXES: Final = (".py", ".sql", ".md", ".ts", ".svelte")
INSTEAD: Final = {
    r"\banew\b": "again",
    r"\bways? round\b": "workaround",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bhow-manieth\b": "sequence number",
    r"\b(?:rows|changes|events|times|runs|requests|messages|commits|transactions) a second\b": "per second",
}
"""What to write instead of each word."""
_WORD: Final = re.compile("|".join(f"({pattern})" for pattern in INSTEAD), re.IGNORECASE)
_OPENER: Final = re.compile(r"(?:what|which|who|whose|whom|how|where|when)\b", re.IGNORECASE)


def findings(name: str, text: str) -> Iterator[str]:
    """What is to be written differently in a file.

    >>> list(findings("a.md", "Read it anew.\\nTen rows a second."))
    ['a.md:1: anew → again', 'a.md:2: rows a second → per second']
    >>> list(findings("src/a.py", '\\"\\"\\"What a lease is.\\"\\"\\"'))
    ['src/a.py:1: the docstring opens with "What" → name the thing first']
    """
    for number, line in enumerate(text.splitlines(), 1):
        for match in _WORD.finditer(line):
            instead = list(INSTEAD.values())[(match.lastindex or 1) - 1]
            yield f"{name}:{number}: {match[0]} → {instead}"
    if name.startswith("src/") and name.endswith(".py"):
        opener = _OPENER.match(ast.get_docstring(ast.parse(text)) or "")
        if opener is not None:
            yield f'{name}:1: the docstring opens with "{opener[0]}" → name the thing first'


def main() -> int:
    """Check every file that git knows."""
    names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    own = Path(__file__).resolve()
    found = [
        finding
        for name in names
        if name.endswith(SUFFIXES) and (path := ROOT / name).exists() and path != own
        for finding in findings(name, path.read_text("utf-8"))
    ]
    print(*found, sep="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
