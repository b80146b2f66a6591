"""Database URLs and connection strings: name the kind of database, and hide the secrets."""

import re
from typing import Final
from urllib.parse import unquote_plus

_KINDS: Final = {
    "postgresql": "PostgreSQL",
    "postgres": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "sqlite": "SQLite",
    "mongodb": "MongoDB",
    "mongodb+srv": "MongoDB",
}
_SECRETS: Final = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
_SECRET_WORD: Final = rf"(\b(?:{'|'.join(_SECRETS)})\s*=\s*)('(?:[^'\\]|\\.)*'?|\S+)"


def database_kind(url: str) -> str | None:
    """The name of the database that a URL or connection string belongs to; None for one that Forge does not know.

    >>> database_kind("host=db dbname=shop"), database_kind("sqlite:///shop.db"), database_kind("https://db")
    ('PostgreSQL', 'SQLite', None)
    """
    scheme, mark, _ = url.partition("://")
    if mark and "=" not in scheme:
        return _KINDS.get(scheme.lower())
    return "PostgreSQL" if re.match(r"\s*\w+\s*=", url) else None


def hide(url: str) -> str:
    """A database URL or connection string without its secrets.

    >>> hide("postgresql://ada:s3cret@db/shop?sslpassword=x&application_name=y")
    'postgresql://ada:***@db/shop?sslpassword=***&application_name=y'
    >>> hide("host=db password='two words' user=ada")
    'host=db password=*** user=ada'
    """
    if "://" not in url:
        return re.sub(_SECRET_WORD, r"\1***", url)
    url = re.sub(r"(://[^:@/]*):[^@/]*@", r"\1:***@", url, count=1)
    url = re.sub(r"(://[^:@/?#]*):(?!\*\*\*@[^@/]*(?:[/?#]|$))[^?#]*@", r"\1:***@", url, count=1)
    address, mark, query = url.partition("?")
    return address + mark + "&".join(map(_hide_parameter, query.split("&")))


def _hide_parameter(parameter: str) -> str:
    name, mark, _ = parameter.partition("=")
    return f"{name}=***" if mark and unquote_plus(name) in _SECRETS else parameter
