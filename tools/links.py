"""Checks the documents: in come all Markdown files, out one line for each link that leads nowhere.

Looks at links to files and headings of this repository only; it needs no network.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)[^)]*\)|(?:src|href)=\"(?P<html>[^\"]+)\"")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])


def read(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to headings; a repeated one gets -1, -2, …"""
    names: dict[str, int] = {}
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        seen = names.get(name, 0)
        names[name] = seen + 1
        found.add(f"{name}-{seen}" if seen else name)
    return found


def broken_links(document: Path) -> Iterator[str]:
    text = CODE.sub("", FENCE.sub("", read(document)))
    for link in LINK.finditer(text):
        target = link["target"] or link["html"]
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        leads_to = (document.parent / path).resolve() if path else document
        if not leads_to.exists():
            yield f"{target}: no such file"
        elif anchor and leads_to.suffix == ".md" and anchor not in anchors(read(leads_to)):
            yield f"{target}: no such heading"


def main() -> int:
    pages = documents()
    problems = [f"{page.relative_to(ROOT)}: {link}" for page in pages for link in broken_links(page)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"{len(pages)} documents, {len(problems)} broken links")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
