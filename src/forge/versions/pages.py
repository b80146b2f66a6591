"""Page tokens: the end of a page, as a text that only the issuing database can create or read.

The input is a position and its query; the output is a text, signed and encrypted with the database's key. A text that
was altered or forged, comes from another database, or belongs to another query (another resource, subject, kind of
query) raises TokenInvalid. A token grants nothing: its holder must still be allowed to query.

A page may end after a document that the subject may not see, and its token reveals nothing about it: all tokens have
one length, and the content is masked by a byte stream derived from the key and the signature, different for every
position. Without the key, two tokens reveal only whether they are of the same position.

>>> key, question = b"k" * 32, VersionsQuery("changes", 7, None)
>>> token = sealed(key, question, WindowPosition(5, 90, 17, 4))
>>> opened(key, question, token)
WindowPosition(min=5, max=90, version=17, document=4, kind=2, way=0)
>>> opened(key, question._replace(resource=8), token)
Traceback (most recent call last):
    ...
forge.errors.TokenInvalid: this page token is not one for this question
fix: begin again without a page token
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hmac import compare_digest, digest
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

import msgspec

from forge.errors import TokenInvalid

_SIGNATURE: Final = 16
_PLACE: Final = Struct(">qqqqBB")
_NO_MIN: Final = -1
_LENGTH: Final = len(urlsafe_b64encode(bytes(_SIGNATURE + _PLACE.size)).rstrip(b"="))


class VersionsQuery(NamedTuple):
    """The query, apart from the window: its name, the number of its resource, and its subject."""

    query: str
    resource: int
    subject: str | None


class WindowPosition(NamedTuple):
    """A window, and its last returned item. A window without `min` is returned in the order of documents.

    `way` is the method by which the rest of the version is found.
    """

    min: int | None
    max: int
    version: int = 0
    document: int = 0
    kind: int = 2
    way: int = 0

    def after(self, kind: int) -> int:
        """The document after which items of a kind begin at `version`: this one, or the one before it if its turn is
        still to come."""
        return self.document if kind <= self.kind else self.document - 1


def sealed(key: bytes, question: VersionsQuery, place: WindowPosition) -> str:
    """A place as a token."""
    told = _PLACE.pack(_NO_MIN if place.min is None else place.min, *place[1:])
    signature = _signature(key, question, told)
    return _text(signature + _covered(key, signature, told))


def opened(key: bytes, question: VersionsQuery, token: str) -> WindowPosition:
    """The place that a token stands for."""
    try:
        if len(token) != _LENGTH:
            raise ValueError("none is so long")
        data = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        signature = data[:_SIGNATURE]
        told = _covered(key, signature, data[_SIGNATURE:])
        if _text(data) != token or not compare_digest(signature, _signature(key, question, told)):
            raise ValueError("written by nobody here")
        first, *rest = _PLACE.unpack(told)
        return WindowPosition(None if first == _NO_MIN else first, *rest)
    except (ValueError, StructError):
        raise TokenInvalid(
            "this page token is not one for this question", fix="begin again without a page token"
        ) from None


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _covered(key: bytes, signature: bytes, told: bytes) -> bytes:
    """A place as nobody without the key can read it; and back."""
    stream = digest(key, b"place" + signature, "sha512")
    return bytes(one ^ other for one, other in zip(told, stream, strict=False))


def _signature(key: bytes, question: VersionsQuery, told: bytes) -> bytes:
    return digest(key, msgspec.msgpack.encode((question, told)), "sha256")[:_SIGNATURE]
