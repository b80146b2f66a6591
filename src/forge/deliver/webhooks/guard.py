"""Guard for webhook destinations: any Internet address by https; internal ones only if allowed by name or network.

Invariants: no byte is sent to an address that is not allowed. The address is checked when a socket is created for it,
after the name was resolved, so neither a name that resolves to an internal address, nor one that resolves differently
the second time, nor an unusual notation of an address passes.
"""

import socket
from collections.abc import Sequence
from errno import EACCES
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import urlsplit

from forge.errors import AddressRefused, ConfigError

_EMBEDDED: Final = IPv6Network("64:ff9b::/96")
_INSIDE: Final = (IPv4Network("192.0.0.0/24"), IPv4Network("168.63.129.16/32"))
"""Internal addresses of clouds that look public; older Python versions do not know the first."""
_MOST: Final = 2048


class Guard:
    """The allowed addresses. `allow` has networks (`10.0.0.0/8`), addresses, or host names, for which plain http is
    allowed too."""

    def __init__(self, allow: Sequence[str] = ()) -> None:
        if isinstance(allow, str):
            raise ConfigError("allow is a list of networks and hosts", fix='allow=["10.0.0.0/8", "hooks.internal"]')
        self._networks = []
        self._hosts = set()
        for each in allow:
            try:
                self._networks.append(ip_network(each))
            except ValueError:
                if not each or set(each) & set("/:@?# "):
                    raise ConfigError(
                        f"{each!r} is no network and no host", fix="write it as 10.0.0.0/8, 127.0.0.1 or hooks.internal"
                    ) from None
                self._hosts.add(each.lower().rstrip("."))

    def check(self, url: str) -> str:
        """Return the host of a URL that a webhook may use; raise ConfigError.

        >>> Guard().check("https://example.com/hook")
        'example.com'
        """
        try:
            parts = urlsplit(url)
            host, _ = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            host, parts = "", urlsplit("")
        if parts.scheme not in ("http", "https") or not host or len(url) > _MOST or not url.isprintable() or " " in url:
            raise ConfigError("this is no URL of a webhook", fix="write it as https://example.com/hook")
        if parts.username is not None or parts.fragment:
            raise ConfigError(
                "the webhook's URL has a user or a fragment", fix="leave them out; headers= can authorize requests"
            )
        address = _address(host)
        if address is not None and not self.permits(address):
            raise ConfigError(
                f"{host} is inside a network, where webhooks do not go", fix=f"allow it if you mean it: --allow {host}"
            )
        if parts.scheme == "http" and host not in self._hosts and (address is None or not self._allowed(address)):
            raise ConfigError(
                "the webhook's URL is plain http, which anybody on the way can read",
                fix=f"use https, or allow the host: --allow {host}",
            )
        return host

    def permits(self, address: IPv4Address | IPv6Address) -> bool:
        """Whether a request may be sent to an address.

        >>> guard = Guard(["10.1.0.0/16"])
        >>> [guard.permits(ip_address(each)) for each in ("1.1.1.1", "10.1.2.3", "10.2.0.1", "169.254.169.254")]
        [True, True, False, False]
        >>> inside = ("::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::", "fe80::1", "fec0::1", "192.0.0.192")
        >>> any(guard.permits(ip_address(each)) for each in inside)
        False
        """
        return self._allowed(address) or _public(_meant(address))

    def sockets(self, host: str) -> "_Sockets":
        """Return a factory of sockets to a host's addresses."""
        return _Sockets(self, host in self._hosts)

    def _allowed(self, address: IPv4Address | IPv6Address) -> bool:
        return any(_meant(address) in network for network in self._networks)


class _Sockets:
    """Create a socket for an allowed address; raise AddressRefused for another."""

    def __init__(self, guard: Guard, named: bool) -> None:
        self._guard = guard
        self._named = named

    def __call__(self, info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, place = info
        address = _address(str(place[0]))
        if not self._named and (address is None or not self._guard.permits(address)):
            raise AddressRefused(EACCES, f"it leads to {place[0]}, inside a network, where webhooks do not go")
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


def _meant(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the address, or the one that it embeds."""
    if isinstance(address, IPv4Address):
        return address
    if address in _EMBEDDED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)


def _public(address: IPv4Address | IPv6Address) -> bool:
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, IPv6Address):
        return not address.is_site_local
    return not any(address in network for network in _INSIDE)
