"""Permission checks: a caller and the required permission in; nothing, or Forbidden, out.

A token grants the words of its claims `scope`, `scp` and `permissions`. Without tokens, no caller has a permission, and
everything that needs one is closed. Forge's own queries are then open only to this machine, and everything else to
requests for one of this server's hosts.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from starlette.requests import HTTPConnection

from forge.errors import Forbidden
from forge.serve.auth import TokenIdentity

_OWN_SITE: Final = (None, "none", "same-origin")
"""`Sec-Fetch-Site` values of requests by the user or by a page of this server; image requests have no `Origin`."""
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{0,5}))?", re.ASCII)
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


def permissions(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the permissions of a token: words of `scope`, `scp` and `permissions`, each a text or a list.

    >>> sorted(permissions({"scope": "openid forge:history", "permissions": ["a"], "scp": 7}))
    ['a', 'forge:history', 'openid']
    """
    found: set[str] = set()
    for name in ("scope", "scp", "permissions"):
        value = claims.get(name)
        words = value.split() if isinstance(value, str) else value if isinstance(value, list) else ()
        found.update(word for word in words if isinstance(word, str))
    return frozenset(found)


def permit(name: str, permission: str | None, identity: TokenIdentity, *, secured: bool) -> None:
    """Raise Forbidden unless the caller may use a function of the application; `secured`: tokens are configured."""
    if permission is None:
        return
    if not secured:
        raise Forbidden(f"{name} needs a permission, and nobody has one here", fix="set auth in Options")
    if permission not in permissions(identity.auth.claims):
        raise Forbidden(f"the token does not permit {name}", fix=f"have the issuer grant {permission}")


def oversee(name: str, permission: str | None, identity: TokenIdentity, *, secured: bool) -> None:
    """Raise Forbidden unless the caller may use one of Forge's own functions, which span all tenants."""
    admit(name, permission, local=identity.local, secured=secured)
    if not secured:
        return
    permit(name, permission, identity, secured=secured)
    if identity.auth.tenant is not None:
        raise Forbidden(f"{name} knows no tenants, and the token is of one", fix="use a token without a tenant")


def admit(name: str, permission: str | None, *, local: bool, secured: bool) -> None:
    """Raise Forbidden if no possible caller from there (`local` or not) may use one of Forge's own functions."""
    if not secured and not local:
        raise Forbidden(
            "without tokens the console is open to this machine alone",
            fix="use http://127.0.0.1 on the machine itself, or set auth and console in Options",
        )
    if secured and permission is None:
        raise Forbidden(f"{name} is closed here", fix="set console, and operate for what writes, in Options")


def local(request: HTTPConnection) -> bool:
    """Whether the request is from this machine, uses a name of this machine, and is not from a page of another site.

    A page whose own name resolves to this machine sends that name as `host`; a request through a proxy may be from
    anybody. An HTTP/1.0 request is from a proxy: an nginx with default settings names this machine as the host and does
    not identify itself. No browser uses HTTP/1.0.
    """
    headers = request.headers
    host, origin = headers.get("host", ""), headers.get("origin")
    return (
        request.client is not None
        and loopback(request.client.host)
        and loopback(_name(host))
        and (origin is None or same_origin(origin, host))
        and headers.get("sec-fetch-site") in _OWN_SITE
        and not any(name in headers for name in _FORWARDED)
        and request.scope.get("http_version") != "1.0"
    )


def check_host(request: HTTPConnection, allowed: Sequence[str]) -> None:
    """Raise Forbidden unless a request is for this machine, for the address it arrived at, or for an allowed host.

    A page can make its own name resolve to this server, and the visitor's browser then treats it as a page of this
    server: only the name shows it. `*` allows all.
    """
    host, here = request.headers.get("host", ""), request.scope.get("server")
    if not _answers(host, str(here[0]) if here else "", tuple(allowed)):
        raise Forbidden(
            f"without tokens this server does not answer for the host {host[:100]!r}",
            fix="use http://127.0.0.1, add the host to allowed_hosts in forge.toml [serve] or Options, or set auth",
        )


@lru_cache(256)
def _answers(host: str, here: str, allowed: tuple[str, ...]) -> bool:
    """Whether a server reached at the address `here` serves a host header.

    >>> hosts = ("localhost:8710", "10.0.0.7:8710", "Shop.Test.", "evil.test", "10.0.0.8", "")
    >>> [_answers(host, "10.0.0.7", ("shop.test",)) for host in hosts]
    [True, True, True, False, False, False]
    >>> _answers("", "", ("",)), _answers("evil.test", "", ("*",)), _answers("[fd00::7]:80", "", ("fd00:0::7",))
    (False, True, True)
    """
    name = _plain(_name(host))
    return "*" in allowed or (
        name != "" and (loopback(name) or name in {_plain(here), *(_plain(_name(each) or each) for each in allowed)})
    )


def _plain(name: str) -> str:
    """Normalize a name or address.

    >>> _plain("Shop.Example."), _plain("::ffff:10.0.0.7"), _plain("fd00:0::7")
    ('shop.example', '10.0.0.7', 'fd00::7')
    """
    address = _address(name)
    return name.lower().removesuffix(".") if address is None else str(address)


def loopback(host: str) -> bool:
    """Whether a name or address is a loopback name or address.

    >>> [loopback(host) for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "LocalHost", "10.0.0.1", "a.test", "")]
    [True, True, True, True, False, False, False]
    """
    if host.lower() == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address, and convert an IPv4 address mapped into IPv6; None for a name."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def same_origin(origin: str, host: str) -> bool:
    """Whether an Origin header belongs to a page of the host that a request is for.

    >>> [same_origin(origin, "a.test") for origin in ("https://a.test", "http://b.test", "x://a.test", "null")]
    [True, False, False, False]
    """
    scheme, _, place = origin.partition("://")
    return scheme in ("http", "https") and place == host and _name(host) != ""


def _name(host: str) -> str:
    """Return a host header without its port; empty if it is malformed.

    >>> _name("127.0.0.1:8710"), _name("[::1]:8710"), _name("localhost"), _name("::1"), _name("[::1]evil.test")
    ('127.0.0.1', '::1', 'localhost', '', '')
    """
    match = _HOST.fullmatch(host)
    if match is None or int(match[3] or 0) > 65535:
        return ""
    address, name = match[1], match[2]
    if address is None:
        return name
    return address if ":" in address and _address(address) is not None else ""
