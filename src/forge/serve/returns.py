"""JSON Schema of function results, in the form that clients get.

Input: return annotations of functions. Output: schemas and the components they refer to. Values are in
[their wire form](docs/reference/values.md): a Decimal is an object `{"$numeric": "12.30"}`, and fields keep their
Python names. A missing annotation, or a type without information, gives an empty schema.
"""

import dataclasses
import typing
from typing import Any, Final

from msgspec import inspect

from forge.react.registry import Function

Object = dict[str, Any]

_PREFIX: Final = "result."
_TEXTS: Final[dict[type[inspect.Type], Object]] = {
    inspect.StrType: {},
    inspect.DateTimeType: {"format": "date-time"},
    inspect.DateType: {"format": "date"},
    inspect.TimeType: {"format": "time"},
    inspect.TimeDeltaType: {"format": "duration"},
    inspect.UUIDType: {"format": "uuid"},
}
_INTEGER: Final[Object] = {"type": "integer"}
_NUMBER: Final[Object] = {"type": "number"}


def tagged(tag: str, of: Object) -> Object:
    """Return the schema of a value that has no exact JSON form.

    >>> tagged("$int", {"type": "string"})["required"]
    ['$int']
    """
    return {"type": "object", "properties": {tag: of}, "required": [tag], "additionalProperties": False}


INTEGER: Final[Object] = {"anyOf": [_INTEGER, tagged("$int", {"type": "string", "pattern": "^-?[0-9]+$"})]}
FLOAT: Final[Object] = {"anyOf": [_NUMBER, tagged("$float", {"enum": ["NaN", "Infinity", "-Infinity", "-0"]})]}
DECIMAL: Final[Object] = tagged("$numeric", {"type": "string"})
BYTES: Final[Object] = tagged("$bytes", {"type": "string", "contentEncoding": "base64"})


class Returns:
    """Schemas of function results, and their shared components."""

    def __init__(self) -> None:
        self.components: dict[str, Object] = {}
        self._names: dict[type, str] = {}

    def of(self, function: Function) -> Object:
        """Return the schema of a function's result."""
        hint = typing.get_type_hints(function).get("return", Any)
        return self._schema(inspect.type_info(hint))

    def _schema(self, kind: inspect.Type) -> Object:
        if isinstance(kind, inspect.Metadata):
            return self._schema(kind.type)
        if (text := _TEXTS.get(type(kind))) is not None:
            return {"type": "string", **text}
        if isinstance(kind, (inspect.EnumType, inspect.LiteralType)):
            found = kind.values if isinstance(kind, inspect.LiteralType) else tuple(item.value for item in kind.cls)
            return {"enum": list(found)}
        if isinstance(kind, inspect.UnionType):
            return {"anyOf": [self._schema(inner) for inner in kind.types]}
        return self._plain(kind) or self._collection(kind)

    def _plain(self, kind: inspect.Type) -> Object:
        if isinstance(kind, inspect.NoneType):
            return {"type": "null"}
        if isinstance(kind, inspect.BoolType):
            return {"type": "boolean"}
        if isinstance(kind, inspect.IntType):
            return INTEGER
        if isinstance(kind, inspect.FloatType):
            return FLOAT
        if isinstance(kind, inspect.DecimalType):
            return DECIMAL
        return BYTES if isinstance(kind, inspect.BytesType) else {}

    def _collection(self, kind: inspect.Type) -> Object:
        if isinstance(kind, (inspect.ListType, inspect.VarTupleType)):
            return {"type": "array", "items": self._schema(kind.item_type)}
        if isinstance(kind, inspect.TupleType):
            items = [self._schema(inner) for inner in kind.item_types]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
        if isinstance(kind, inspect.DictType):
            return {"type": "object", "additionalProperties": self._schema(kind.value_type)}
        if isinstance(kind, (inspect.TypedDictType, inspect.DataclassType, inspect.StructType)):
            return self._named(kind.cls, kind.fields)
        if isinstance(kind, inspect.NamedTupleType):
            items = [self._schema(field.type) for field in kind.fields]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
        return {}

    def _named(self, kind: type, fields: tuple[inspect.Field, ...]) -> Object:
        """Return a reference to the component of a class; the component may refer to itself."""
        if kind not in self._names:
            plain = "".join(letter if letter.isalnum() else "_" for letter in kind.__name__)
            name, number = f"{_PREFIX}{plain}", 1
            while name in self.components:
                name, number = f"{_PREFIX}{plain}{number + 1}", number + 1
            self._names[kind] = name
            self.components[name] = {}
            optional = typing.is_typeddict(kind)
            if optional:  # msgspec sorts them alphabetically
                written = list(typing.get_type_hints(kind))
                fields = tuple(sorted(fields, key=lambda field: written.index(field.name)))
            self.components[name] = {
                "type": "object",
                "title": kind.__name__,
                "properties": {field.name: self._schema(field.type) for field in fields},
                "required": [field.name for field in fields if field.required or not optional],
                **_described(kind),
            }
        return {"$ref": f"#/components/schemas/{self._names[kind]}"}


def _described(kind: type) -> Object:
    """Return the class's own docstring, not one that Python or msgspec generated."""
    text = (kind.__dict__.get("__doc__") or "").strip()
    if not text or (dataclasses.is_dataclass(kind) and text.startswith(f"{kind.__name__}(")):
        return {}
    return {"description": text.partition("\n")[0]}
