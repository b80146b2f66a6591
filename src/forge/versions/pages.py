"""Page tokens: where a page ended, in a text that only the database that gave it can have made, or read.

In comes a place and the question that it is a place in; out comes a text, signed and hidden with the database's key. A
text that was altered or made up, is another database's, or belongs to another question (another resource, subject, kind
of query) is TokenInvalid. A token opens nothing: whoever has it must still be allowed to ask.

A page may end behind a document that the subject does not see, and its token tells nothing of it: all have one length,
and what is in it is covered by a stream of bytes that only the key makes, another one for every place, from its
signature. Whoever has no key learns from two tokens whether they are of the same place, and no more.

>>> key, question = b"k" * 32, Question("changes", 7, None)
>>> token = sealed(key, question, Place(5, 90, 17, 4))
>>> opened(key, question, token)
Place(min=5, max=90, version=17, document=4, kind=2, way=0)
>>> opened(key, question._replace(resource=8), token)
Traceback (most recent call last):
    ...
forge.versions.errors.TokenInvalid: this page token is not one for this question
fix: begin again without a page token
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hmac import compare_digest, digest
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

import msgspec

from forge.versions.errors import TokenInvalid

_SIGNATURE: Final = 16
_PLACE: Final = Struct(">qqqqBB")
_NO_MIN: Final = -1
_LENGTH: Final = len(urlsafe_b64encode(bytes(_SIGNATURE + _PLACE.size)).rstrip(b"="))


class Question(NamedTuple):
    """What is asked, apart from the window: a query by its name, a resource by its number, and for whom."""

    query: str
    resource: int
    subject: str | None


class Place(NamedTuple):
    """A window, and the last item of it that was told. A window without `min` is told in the order of documents.

    `way` is how the rest of the version is found.
    """

    min: int | None
    max: int
    version: int = 0
    document: int = 0
    kind: int = 2
    way: int = 0

    def after(self, kind: int) -> int:
        """The document after which items of a kind begin at `version`: this one, or it too if its turn was not yet."""
        return self.document if kind <= self.kind else self.document - 1


def sealed(key: bytes, question: Question, place: Place) -> str:
    """A place as a token."""
    told = _PLACE.pack(_NO_MIN if place.min is None else place.min, *place[1:])
    signature = _signature(key, question, told)
    return _text(signature + _covered(key, signature, told))


def opened(key: bytes, question: Question, token: str) -> Place:
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
        return Place(None if first == _NO_MIN else first, *rest)
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


def _signature(key: bytes, question: Question, told: bytes) -> bytes:
    return digest(key, msgspec.msgpack.encode((question, told)), "sha256")[:_SIGNATURE]
