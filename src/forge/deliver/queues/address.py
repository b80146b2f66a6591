"""Create a queue's sink from its URL: the scheme names the queue, `?name=value` sets options by the names of its class.

redis://host:6379/0?stream=forge.{topic}&streams=4&maxlen=100000     also rediss:// and unix://
kafka://host:9092,other:9092/shop.{topic}?security.protocol=ssl      other options are librdkafka's
nats://host:4222,other:4222?subject=forge.{topic}&stream=forge       also tls://, ws:// and wss://
"""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from forge.deliver.entry import without_password
from forge.deliver.queues.kafka import Kafka
from forge.deliver.queues.nats import Nats
from forge.deliver.queues.redis import RedisStreams
from forge.deliver.sink import Sink
from forge.errors import ConfigError

_FORMS: Final = "write it as redis://host:6379/0, kafka://host:9092 or nats://host:4222"
_REDIS: Final[dict[str, Callable[[str], Any]]] = {
    "stream": str,
    "maxlen": int,
    "streams": int,
    "dedupe": float,
    "replicas": int,
    "timeout": float,
}
_NATS: Final[dict[str, Callable[[str], Any]]] = {
    "subject": str,
    "stream": str,
    "maxlen": int,
    "dedupe": float,
    "timeout": float,
}


def queue_sink(url: str) -> Sink:
    """Return the sink that a URL names; raise ConfigError.

    >>> queue_sink("nats://ada:secret@127.0.0.1:4222?subject=shop.{topic}")
    Nats('nats://127.0.0.1:4222', 'shop.{topic}')
    """
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme in ("redis", "rediss", "unix"):
        options = _taken(given, _REDIS)
        rest = "&".join(f"{name}={value}" for name, value in given.items())
        return RedisStreams(parts._replace(query=rest).geturl(), **options)
    if parts.scheme == "kafka":
        return _kafka(parts.netloc, unquote(parts.path.strip("/")), given)
    if parts.scheme in ("nats", "tls", "ws", "wss"):
        options = _taken(given, _NATS)
        if given:
            raise ConfigError(
                f"NATS has no option {', '.join(given)}", fix=f"leave it out, or write {', '.join(_NATS)}"
            )
        return Nats(parts._replace(query="").geturl(), **options)
    raise ConfigError(f"{without_password(url)!r} names no queue", fix=_FORMS)


def _kafka(hosts: str, topic: str, given: dict[str, str]) -> Kafka:
    user, at, brokers = hosts.rpartition("@")
    settings: dict[str, Any] = {"bootstrap.servers": brokers}
    if at:
        name, _, password = user.partition(":")
        settings |= {"sasl.username": unquote(name), "sasl.password": unquote(password)}
    options = _taken(given, {"timeout": float})
    return Kafka({**settings, **given}, topic or "{topic}", **options)


def _taken(given: dict[str, str], known: dict[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Remove the known options from the given ones and return them."""
    found: dict[str, Any] = {}
    for name in [name for name in given if name in known]:
        text = given.pop(name)
        try:
            found[name] = known[name](text)
        except ValueError:
            raise ConfigError(f"the option {name} is {text!r}", fix=f"give {name} as a number") from None
    return found
