"""Write the tables of docs/reference/configuration.md from the settings that forge.config.tables declares.

Each table stands between `<!-- settings NAME -->` and `<!-- end -->`, where NAME is `top` or a table of forge.toml.
"""

import ast
import inspect
import re
import textwrap
from pathlib import Path

import msgspec

from forge.config import SETTINGS, TABLES, Config
from forge.config.tables import Setting

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "reference" / "configuration.md"
PLACE = re.compile(r"(<!-- settings (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def descriptions(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The docstrings of the fields of a Struct, each on one line."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def table(name: str) -> str:
    """The table of one section as Markdown."""
    struct, prefix = (Config, "") if name == "top" else (TABLES[name], f"{name}.")
    rows = ["| setting | environment | default | |", "| --- | --- | --- | --- |"]
    for field, text in descriptions(struct).items():
        setting = SETTINGS[prefix + field]
        rows.append(f"| `{field}` | `{setting.variable}` | {_default(setting)} | {text} |")
    return "\n".join(rows) + "\n"


def written(text: str) -> str:
    """The document with its tables as they should be."""
    return PLACE.sub(lambda place: place[1] + table(place[2]) + place[3], text)


def _default(setting: Setting) -> str:
    value = setting.kind.shown(setting.default)
    return setting.kind.none if value is None or value == [] else f"`{value}`"


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
