"""Page tokens: where a page ended, in a text that only the database that gave it can have made.

In comes a place and the question that it is a place in; out comes a text, signed with the database's own key. A text
that was altered or made up, is another database's, or belongs to another question (another resource, subject, kind of
query) is TokenInvalid. A token is no secret and opens nothing: whoever has it must still be allowed to ask.

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
from typing import Final, NamedTuple

import msgspec

from forge.versions.errors import TokenInvalid

_SIGNATURE: Final = 16
_LONGEST: Final = 200


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


_decoder: Final = msgspec.msgpack.Decoder(tuple[int | None, int, int, int, int, int])


def sealed(key: bytes, question: Question, place: Place) -> str:
    """A place as a token."""
    told = msgspec.msgpack.encode(tuple(place))
    return _text(_signature(key, question, told) + told)


def opened(key: bytes, question: Question, token: str) -> Place:
    """The place that a token stands for."""
    try:
        if len(token) > _LONGEST:
            raise ValueError("too long")
        data = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        signature, told = data[:_SIGNATURE], data[_SIGNATURE:]
        if _text(data) != token or not compare_digest(signature, _signature(key, question, told)):
            raise ValueError("written by nobody here")
        return Place(*_decoder.decode(told))
    except (ValueError, msgspec.DecodeError):
        raise TokenInvalid(
            "this page token is not one for this question", fix="begin again without a page token"
        ) from None


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _signature(key: bytes, question: Question, told: bytes) -> bytes:
    return digest(key, msgspec.msgpack.encode((question, told)), "sha256")[:_SIGNATURE]
