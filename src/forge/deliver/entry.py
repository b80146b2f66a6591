"""Headers, names and partitions of a message, the same for every kind of receiver.

A queue's consumer finds the message's id in the header `forge-id`; the id is the same at every try.
"""

import re
from typing import Final
from urllib.parse import urlsplit
from zlib import crc32

from forge.deliver.message import Message
from forge.errors import ConfigError

ID: Final = "forge-id"
_PLACES: Final = re.compile(r"\{([^{}]*)\}")
HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The name of a header."""
_BREAKS: Final = re.compile(r"[\r\n\0]")


def headers(message: Message) -> dict[str, str]:
    """Return the message's own headers and Forge's, which win over them.

    >>> from datetime import UTC, datetime
    >>> at = datetime(2026, 11, 16, tzinfo=UTC)
    >>> headers(Message("7:1", "shop.paid", b"{}", at, key="4711", headers={"forge-op": "insert"}))
    ... # doctest: +NORMALIZE_WHITESPACE
    {'forge-op': 'insert', 'forge-id': '7:1', 'forge-topic': 'shop.paid', 'forge-at': '2026-11-16T00:00:00+00:00',
     'content-type': 'application/json', 'forge-key': '4711'}
    """
    found = {
        **message.headers,
        ID: message.id,
        "forge-topic": message.topic,
        "forge-at": message.at.isoformat(),
        "content-type": message.content_type,
    }
    if message.key is not None:
        found["forge-key"] = message.key
    return found


def unfit_header(message: Message) -> str | None:
    """Return why one of the message's headers cannot be sent to a queue, or None.

    >>> from datetime import UTC, datetime
    >>> unfit_header(Message("1", "t", b"", datetime.now(UTC), headers={"a b": ""}))
    "the header 'a b' has a name that brokers do not take"
    """
    if _BREAKS.search(message.id + message.topic + message.content_type):
        return "its id, topic or content type has a line break in it"
    for name, value in message.headers.items():
        if not HEADER.fullmatch(name):
            return f"the header {name!r} has a name that brokers do not take"
        if _BREAKS.search(value):
            return f"the header {name!r} has a line break in it"
    return None


def template(text: str, what: str, *known: str) -> str:
    """Return the text if all its placeholders are known; raise ConfigError.

    >>> template("forge.{topic}", "stream", "topic")
    'forge.{topic}'
    """
    unknown = [name for name in _PLACES.findall(text) if name not in known]
    if not text or unknown or "{" in (rest := _PLACES.sub("", text)) or "}" in rest:
        places = " and ".join(f"{{{name}}}" for name in known)
        raise ConfigError(f"the {what} {text!r} is no name", fix=f"write it with {places} as its only place to fill")
    return text


def filled(text: str, **values: str) -> str:
    """Return the template with its placeholders filled.

    >>> filled("forge.{topic}", topic="{odd}")
    'forge.{odd}'
    """
    return _PLACES.sub(lambda place: values[place[1]], text)


def share(key: str | None, of: int) -> int:
    """Return the partition of a key; messages without a key go to the first.

    >>> share("4711", 4), share("4712", 4), share(None, 4)
    (3, 1, 0)
    """
    return 0 if key is None else crc32(key.encode()) % of


def without_password(url: str) -> str:
    """Return a URL without credentials and options.

    >>> without_password("redis://ada:secret@cache:6379/0?maxlen=5"), without_password("nats://a:4222,token@b:4222")
    ('redis://cache:6379/0', 'nats://a:4222,b:4222')
    """
    parts = urlsplit(url)
    hosts = ",".join(host.rpartition("@")[2] for host in parts.netloc.split(","))
    return parts._replace(netloc=hosts, query="", fragment="").geturl()
