"""Where webhooks may go: anywhere on the Internet by https, and nowhere inside unless it is allowed by name or network.

What always holds: no byte is sent to an address that is not allowed. The address is looked at when a socket is made for
it, after the name was resolved, so that neither a name that leads inside, nor one that leads elsewhere the second time,
nor an odd way to write an address gets past.
"""

import socket
from collections.abc import Sequence
from errno import EACCES
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import urlsplit

from forge.errors import ConfigError

_EMBEDDED: Final = IPv6Network("64:ff9b::/96")
_INSIDE: Final = (IPv4Network("192.0.0.0/24"), IPv4Network("168.63.129.16/32"))
"""What is inside clouds although it looks public; older Pythons do not know the first."""
_MOST: Final = 2048


class AddressRefused(OSError):
    """A name leads to an address that webhooks may not go to."""


class Guard:
    """Which addresses are allowed. `allow` has networks (`10.0.0.0/8`), addresses, or names of hosts, for which plain
    http is allowed too."""

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
        """The host of a URL that a webhook may have; raises ConfigError.

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
        """Whether a request may go there.

        >>> guard = Guard(["10.1.0.0/16"])
        >>> [guard.permits(ip_address(each)) for each in ("1.1.1.1", "10.1.2.3", "10.2.0.1", "169.254.169.254")]
        [True, True, False, False]
        >>> inside = ("::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::", "fe80::1", "fec0::1", "192.0.0.192")
        >>> any(guard.permits(ip_address(each)) for each in inside)
        False
        """
        return self._allowed(address) or _public(_meant(address))

    def sockets(self, host: str) -> "_Sockets":
        """What makes sockets to a host's addresses."""
        return _Sockets(self, host in self._hosts)

    def _allowed(self, address: IPv4Address | IPv6Address) -> bool:
        return any(_meant(address) in network for network in self._networks)


class _Sockets:
    """Makes a socket for an address that is allowed; AddressRefused for another."""

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
    """The address, or the one that it stands for."""
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
