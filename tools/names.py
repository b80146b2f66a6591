"""Check the names of classes: each is defined once in src/forge, and exceptions are defined in forge.errors.

    .venv/bin/python tools/names.py

Prints a line for each finding and exits with 1 if there is one. Classes with a leading underscore belong to one module
and may repeat. `forge.testing` may have classes of its own, and the demo its application's error.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
OWN_ERRORS: Final = frozenset({"TooLate"})
"""Exceptions that show how an application defines its own."""


def findings(sources: Mapping[str, str]) -> Iterator[str]:
    """
    >>> list(findings({"a.py": "class Report: ...", "b.py": "class Report: ...", "c.py": "class _Held: ..."}))
    ['Report is defined in a.py:1, b.py:1: name each after what it is']
    >>> list(findings({"a.py": "class Lost(ForgeError): ..."}))
    ['Lost in a.py:1 is an exception: define it in forge.errors']
    """
    homes: dict[str, list[str]] = defaultdict(list)
    exceptions = {"ForgeError", "Exception"}
    for name, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            homes[node.name].append(f"{name}:{node.lineno}")
            if {getattr(base, "id", "") for base in node.bases} & exceptions:
                exceptions.add(node.name)
                if not name.endswith("errors.py") and node.name not in OWN_ERRORS:
                    yield f"{node.name} in {name}:{node.lineno} is an exception: define it in forge.errors"
    for name, lines in homes.items():
        if len(lines) > 1:
            yield f"{name} is defined in {', '.join(lines)}: name each after what it is"


def main() -> int:
    package = ROOT / "src" / "forge"
    files = [file for file in sorted(package.rglob("*.py")) if (package / "testing") not in file.parents]
    errors = package / "errors.py"
    files = [errors, *(file for file in files if file != errors)]
    found = list(findings({str(file.relative_to(ROOT)): file.read_text() for file in files}))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
