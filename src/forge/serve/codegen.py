"""Generate TypeScript types of an application: an OpenAPI document in, the text of a module out.

The module has an interface for every class in arguments or results, and one for the application, for use with the
client: `createClient<App>()`. It contains no runtime code. The same document gives the same text.

Invariants:
- The text is valid TypeScript for any names and descriptions in the document.
- Each type is what the client returns or accepts: `Decimal` for exact decimals, `Uint8Array` for bytes, `unknown` if
  the type is not known.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from forge.errors import NotDescribed
from forge.react.registry import OWN
from forge.serve.returns import BYTES, DECIMAL, FLOAT, INTEGER

Object = Mapping[str, Any]
Side = Literal["args", "result"]

CLIENT: Final = "@forge/client"
_KINDS: Final = {"query": "queries", "mutation": "mutations"}
_UNSAID: Final = {"query": "The result of {name} now.", "mutation": "Run {name} in one transaction."}
_WORD: Final = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_NAME: Final = re.compile(r"[A-Z]\w*", re.ASCII)
_TAKEN: Final = frozenset({"Array", "Date", "Decimal", "Number", "Object", "Record", "String", "Uint8Array"})


def typescript(document: Object, *, source: str, name: str = "App", bigint: bool = False, client: str = CLIENT) -> str:
    """Return the module. `source` is the command that generates it; with `bigint`, integers in results may be large."""
    if not isinstance(document.get("paths"), Mapping) or "/forge/session" not in document["paths"]:
        raise NotDescribed("this is no description of a Forge application", fix="give the URL of one that is served")
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise NotDescribed(f"{name!r} cannot name the application's type", fix="name it as a class: --name Shop")
    return _Module(document, name, bigint).text(source, client)


class _Module:
    """The types, collected as they are needed."""

    def __init__(self, document: Object, name: str, bigint: bool) -> None:
        self._paths: Object = document["paths"]
        self._components: Object = document.get("components", {}).get("schemas", {})
        self._name = name
        self._large = "number | bigint" if bigint else "number"
        self._named: dict[tuple[Side, str], str] = {}
        self._interfaces: dict[str, str] = {}
        self._decimal = False

    def text(self, source: str, client: str) -> str:
        app = "\n".join(self._app())
        parts = [
            f"// Made by `{_line(source)}`. Do not edit: make it again.",
            *([f"import type {{ Decimal }} from {json.dumps(client)};"] if self._decimal else []),
            *self._interfaces.values(),
            app,
        ]
        return "\n\n".join(parts) + "\n"

    def _app(self) -> Iterator[str]:
        yield f"export interface {self._name} {{"
        for kind, plural in _KINDS.items():
            signatures = list(self._signatures(kind))
            yield f"  {plural}: {{" if signatures else f"  {plural}: Record<never, never>;"
            if signatures:
                yield from signatures
                yield "  };"
        yield "}"

    def _signatures(self, kind: str) -> Iterator[str]:
        for path, operations in self._paths.items():
            operation = operations.get("post", {})
            marked, _, name = operation.get("operationId", "").partition(":")
            if marked != kind or not path.startswith(f"/forge/{kind}/") or name.startswith(OWN):
                continue
            body = operation["requestBody"]["content"]["application/json"]["schema"]
            arguments = self._type(self._resolved(body), "args", 3)
            result = self._result(operation)
            summary = operation.get("summary", "")
            if summary not in ("", _UNSAID[kind].format(name=name)):
                yield f"    {_comment(summary)}"
            yield f"    {_key(name)}: {{ args: {arguments}; result: {result} }};"

    def _result(self, operation: Object) -> str:
        answer = self._resolved(operation["responses"]["200"]["content"]["application/json"]["schema"])
        schema = answer.get("properties", {}).get("result", {})
        found = self._type(schema, "result", 3)
        # a query with a key returns rows
        return "readonly Record<string, unknown>[]" if found == "unknown" and operation.get("x-forge-key") else found

    def _resolved(self, schema: Object) -> Object:
        reference = schema.get("$ref")
        return schema if reference is None else self._components[reference.rpartition("/")[2]]

    def _type(self, schema: Any, side: Side, depth: int) -> str:
        """Return the type of a schema; `depth` is the indentation level of its line."""
        if not isinstance(schema, Mapping):
            return "unknown" if schema else "never"
        if reference := schema.get("$ref"):
            return self._reference(reference.rpartition("/")[2], side)
        if (exact := self._exact(schema, side)) is not None:
            return exact
        if "const" in schema or "enum" in schema:
            return " | ".join(map(_literal, schema.get("enum", [schema.get("const")]))) or "never"
        if inner := schema.get("anyOf") or schema.get("oneOf"):
            return _union(self._type(each, side, depth) for each in inner)
        kinds = schema.get("type", "")
        if isinstance(kinds, list):
            return _union(self._type({**schema, "type": kind}, side, depth) for kind in kinds)
        if kinds == "array":
            return self._array(schema, side, depth)
        if kinds == "object":
            return self._object(schema, side, depth)
        plain = {"string": "string", "boolean": "boolean", "null": "null", "number": "number", "integer": "number"}
        return plain.get(kinds, "unknown")

    def _exact(self, schema: Object, side: Side) -> str | None:
        """Return the type of a value without an exact JSON form, or of what is accepted for it."""
        if side == "result":
            known = ((INTEGER, self._large), (FLOAT, "number"), (DECIMAL, "Decimal"), (BYTES, "Uint8Array"))
            found = next((kind for form, kind in known if form == schema), None)
        elif schema.get("type") == "integer":
            found = "number | bigint"
        elif schema.get("contentEncoding") == "base64":
            found = "Uint8Array"
        else:
            texts = {"decimal": "Decimal | string | number", "date-time": "Date | string"}
            found = texts.get(schema.get("format", ""))
        self._decimal |= found is not None and found.startswith("Decimal")
        return found

    def _array(self, schema: Object, side: Side, depth: int) -> str:
        if (items := schema.get("prefixItems")) is not None:
            return f"readonly [{', '.join(self._type(item, side, depth) for item in items)}]"
        item = self._type(schema.get("items", {}), side, depth)
        return f"readonly ({item})[]" if " | " in item or item.startswith("readonly ") else f"readonly {item}[]"

    def _object(self, schema: Object, side: Side, depth: int) -> str:
        fields: Object = schema.get("properties", {})
        if not fields:
            more = schema.get("additionalProperties", True)
            if more is False:
                return "Record<string, never>"
            return f"Record<string, {self._type(more if isinstance(more, Mapping) else {}, side, depth)}>"
        readonly = "readonly " if side == "result" else ""
        required = schema.get("required", ())
        inner = [
            f"{readonly}{_key(name)}{'' if name in required else '?'}: {self._type(each, side, depth + 1)};"
            for name, each in fields.items()
        ]
        short = f"{{ {' '.join(inner)[:-1]} }}"
        if len(short) < 80 and "\n" not in short:
            return short
        indent = "  " * depth
        return "{\n" + "".join(f"{indent}{line}\n" for line in inner) + f"{'  ' * (depth - 1)}}}"

    def _reference(self, component: str, side: Side) -> str:
        known = self._named.get((side, component))
        if known is not None:
            return known
        schema: Object = self._components[component]
        name = self._free(str(schema.get("title") or component.rpartition(".")[2]), side)
        self._named[side, component] = name
        self._interfaces[name] = ""
        body = self._type(schema, side, 1)
        described = f"{_comment(schema['description'])}\n" if schema.get("description") else ""
        braced = body.startswith("{") and body.endswith("}")
        self._interfaces[name] = described + (
            f"export interface {name} {body}" if braced else f"export type {name} = {body};"
        )
        return name

    def _free(self, wanted: str, side: Side) -> str:
        """Return a type name that no other type has."""
        plain = re.sub(r"[^A-Za-z0-9_]", "_", wanted)
        plain = plain[:1].upper() + plain[1:] if plain[:1].isalpha() else f"T{plain}"
        taken = {*self._interfaces, *_TAKEN, self._name}
        if plain not in taken:
            return plain
        plain = f"{plain}{'Args' if side == 'args' else 'Result'}"
        number = 1
        while (found := plain if number == 1 else f"{plain}{number}") in taken:
            number += 1
        return found


def _union(kinds: Iterator[str]) -> str:
    """Join types, without duplicates.

    >>> _union(iter(["string", "null", "string | number"]))
    'string | null | number'
    """
    found: dict[str, None] = {}
    for kind in kinds:
        for part in kind.split(" | ") if not set(kind) & set('{[(<"') else [kind]:
            found[part] = None
    return "unknown" if "unknown" in found else " | ".join(found) or "never"


def _key(name: str) -> str:
    """Return a property name, quoted if necessary.

    >>> _key("customer_id"), _key("orders.open")
    ('customer_id', '"orders.open"')
    """
    return name if _WORD.fullmatch(name) else _literal(name)


def _literal(value: Any) -> str:
    return json.dumps(value)


def _comment(text: str) -> str:
    """
    >>> _comment("Ends */ early")
    '/** Ends *\\\\/ early */'
    """
    return f"/** {_line(text).replace('*/', '*' + chr(92) + '/')} */"


def _line(text: str) -> str:
    return " ".join(re.sub(r"[\x00-\x1f\x7f\u2028\u2029]", " ", text).split())
