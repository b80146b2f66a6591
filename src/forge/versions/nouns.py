"""Data types of change versions: resources, their documents, and events.

Numbers in bodies and identities are exact: integers are int, others Decimal.

>>> students = Resource.parse("ed-fi/students")
>>> students
Resource(project='ed-fi', name='students', version='1')
>>> str(Resource("ed-fi", "students", "3.1"))
'ed-fi/students/3.1'
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar

import msgspec

from forge.errors import DecodeError, DocumentUnreadable, UnknownResource

Json = dict[str, Any]
"""A JSON object."""
T = TypeVar("T")

DEFAULT_VERSION: Final = "1"
_object: Final = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_list: Final = msgspec.json.Decoder(list[Any], float_hook=Decimal)
_encoder: Final = msgspec.json.Encoder(decimal_format="number")


class Resource(msgspec.Struct, frozen=True):
    """A kind of document, written as `project/name` or `project/name/version`."""

    project: str
    name: str
    version: str = DEFAULT_VERSION

    @classmethod
    def parse(cls, text: str) -> "Resource":
        """Parse the text form; the default version is 1."""
        parts = text.split("/")
        if len(parts) not in (2, 3) or not all(parts):
            raise UnknownResource(
                f"{text[:60]!r} is not a resource", fix="write it as project/name or project/name/version"
            )
        return cls(*parts)

    def __str__(self) -> str:
        return "/".join([self.project, self.name, *([self.version] if self.version != DEFAULT_VERSION else [])])


class Reference(msgspec.Struct, frozen=True):
    """The target of a document's reference: the document, and its present identity."""

    document: int
    resource: Resource
    identity: Json
    in_identity: bool = False


class Document(msgspec.Struct, frozen=True):
    """A document's present state. `identity` is its natural key, `body` the rest, `references` by name.

    The two stamps are its own; a document that it refers to may have changed its representation later.
    """

    id: int
    resource: Resource
    identity: Json
    body: Json
    references: Mapping[str, Reference]
    content_version: int
    identity_version: int


class Upsert(msgspec.Struct, frozen=True, tag=True):
    """A document was created, its representation changed, or a subject was granted access to it."""

    version: int
    document: Document

    @property
    def id(self) -> int:
        return self.document.id


class Deletion(msgspec.Struct, frozen=True, tag=True):
    """A document, by its id, was deleted; only for `subject`, where one is named."""

    version: int
    document: int
    resource: Resource
    identity: Json
    subject: str | None = None

    @property
    def id(self) -> int:
        return self.document


class KeyChange(msgspec.Struct, frozen=True, tag=True):
    """The identity of a document, by its id, changed."""

    version: int
    document: int
    resource: Resource
    old_identity: Json
    new_identity: Json

    @property
    def id(self) -> int:
        return self.document


Event = Upsert | Deletion | KeyChange


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of the answer, and the token for the next part; None at the end.

    `epoch` changes when access to the resource changes: pages of different epochs belong to different answers.
    """

    items: list[T]
    next: str | None = None
    epoch: int = 0


def encode(value: Mapping[str, Any]) -> str:
    """Encode an object as the text of a jsonb parameter.

    >>> encode({"weight": Decimal("1.10")})
    '{"weight":1.10}'
    """
    return _encoder.encode(value).decode()


def decode(text: str | bytes) -> Json:
    """Decode an object from a jsonb column selected as text; raise DecodeError if it is not one, or cannot be read.

    >>> decode('{"weight": 1.10, "count": 12}')
    {'weight': Decimal('1.10'), 'count': 12}
    """
    return _decoded(_object, text)


def decode_list(text: str | bytes) -> list[Any]:
    """Decode an array in the same way."""
    return _decoded(_list, text)


def _decoded(decoder: msgspec.json.Decoder[T], text: str | bytes) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, ValueError, ArithmeticError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise DecodeError(why, fix="see forge_versions.unfit for what everybody can read") from None


@contextmanager
def readable(document: int) -> Iterator[None]:
    """Translate decoding errors in the block into one that names the document's id."""
    try:
        yield
    except DecodeError as error:
        raise unreadable(document, error) from error


def unreadable(document: int, error: DecodeError) -> DocumentUnreadable:
    return DocumentUnreadable(
        f"document {document} cannot be read: {error}",
        fix=f"see id {document} of forge_versions.document, and what it refers to: write what can be read",
        document=document,
    )
