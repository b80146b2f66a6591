"""A broker's URL as it may be shown."""

from urllib.parse import urlsplit


def without_password(url: str) -> str:
    """Where a URL leads, without who goes there and how.

    >>> without_password("redis://ada:secret@cache:6379/0?maxlen=5"), without_password("nats://a:4222,token@b:4222")
    ('redis://cache:6379/0', 'nats://a:4222,b:4222')
    """
    parts = urlsplit(url)
    hosts = ",".join(host.rpartition("@")[2] for host in parts.netloc.split(","))
    return parts._replace(netloc=hosts, query="", fragment="").geturl()
