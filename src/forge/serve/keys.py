"""Keys that verify tokens: those of a JWKS URL, kept up to date, and the algorithms that each may verify."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx
import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from forge.errors import ConfigError, KeysUnavailable

SMALLEST_RSA: Final = 2048
MOST_JWKS_BYTES: Final = 1024 * 1024
FETCH_TIMEOUT: Final = 5.0
REFRESH_EVERY: Final = 300.0
REFRESH_AT_MOST_EVERY: Final = 10.0
FIRST_FETCH_AT_MOST_EVERY: Final = 1.0
RSA_ALGORITHMS: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
PUBLIC_ALGORITHMS: Final = frozenset({*RSA_ALGORITHMS, *CURVES.values(), "EdDSA"})
KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_log = logging.getLogger(__name__)
_jws = jwt.PyJWS()
PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


class VerifyingKey(NamedTuple):
    """A key, and the algorithms it may verify."""

    kid: str | None
    key: PublicKey | bytes
    algorithms: frozenset[str]


class FetchedKeys:
    """The keys of a JWKS URL. `current` keys are at most 300 s old, unless the fetch fails."""

    def __init__(self, url: str, algorithms: Sequence[str], clock: Callable[[], float]) -> None:
        self._url = url
        self._algorithms = algorithms
        self._clock = clock
        self._keys: tuple[VerifyingKey, ...] | None = None
        self._fetched_at = 0.0
        self._tried_at: float | None = None
        self._failing = False
        self._flight: asyncio.Task[None] | None = None

    async def current(self) -> Sequence[VerifyingKey]:
        if self._keys is None:
            await self._refresh(FIRST_FETCH_AT_MOST_EVERY)
        elif not _recent(self._fetched_at, self._clock(), REFRESH_EVERY):
            await self._refresh(REFRESH_AT_MOST_EVERY, wait=not self._failing)
        if self._keys is None:
            raise KeysUnavailable("keys unavailable", fix="try again soon; the server's log says why")
        return self._keys

    async def newer(self) -> Sequence[VerifyingKey]:
        """Return the keys, fetched again unless the last fetch is very recent."""
        await self._refresh(REFRESH_AT_MOST_EVERY)
        return self._keys or ()

    async def close(self) -> None:
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.wait([self._flight])

    async def _refresh(self, at_most_every: float, *, wait: bool = True) -> None:
        now = self._clock()
        if self._flight is None or self._flight.done():
            if self._tried_at is not None and _recent(self._tried_at, now, at_most_every):
                return
            self._tried_at = now
            self._flight = asyncio.get_running_loop().create_task(self._fetch(now))
        if wait:
            await asyncio.shield(self._flight)

    async def _fetch(self, now: float) -> None:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                self._keys = tuple(_key_set(await _download(self._url), self._algorithms))
        except Exception as error:  # after any error, the keys fetched before stay in use
            self._failing = True
            _log.warning("the keys of %s cannot be fetched: %s", urlsplit(self._url).hostname, type(error).__name__)
            return
        self._failing = False
        self._fetched_at = now


def _recent(moment: float, now: float, seconds: float) -> bool:
    """Whether less than `seconds` have passed; after the clock was set back, nothing is recent."""
    return 0 <= now - moment < seconds


async def _download(url: str) -> bytes:
    body = bytearray()
    accept = {"Accept": "application/json"}
    opened = await asyncio.to_thread(httpx.AsyncClient, timeout=FETCH_TIMEOUT)  # reading the CA file takes 25 ms
    async with opened as client, client.stream("GET", url, headers=accept) as response:
        if response.status_code != 200:
            raise httpx.HTTPError(f"status {response.status_code}")
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > MOST_JWKS_BYTES:
                raise httpx.HTTPError("too long")
    return bytes(body)


class _Jwk(msgspec.Struct):
    """The fields of a published key that describe its use."""

    kty: str
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    key_ops: list[str] | None = None


def _key_set(body: bytes, algorithms: Iterable[str]) -> Iterator[VerifyingKey]:
    """Yield the keys of a JWKS that may verify tokens signed with one of the algorithms."""
    pinned = frozenset(algorithms)
    key_types = {KEY_TYPES[algorithm[:2]] for algorithm in pinned}
    for entry in msgspec.json.decode(body, type=dict[str, list[Any]])["keys"]:
        try:
            about = msgspec.convert(entry, _Jwk)
            if about.kty not in key_types or about.use not in (None, "sig"):
                continue
            if about.key_ops is not None and "verify" not in about.key_ops:
                continue
            key = jwt.PyJWK(entry).key
        except Exception:  # an unreadable key does not affect the others
            _log.warning("a key of the JWKS cannot be read")
            continue
        if fits := algorithms_of(key) & pinned & (pinned if about.alg is None else {about.alg}):
            yield VerifyingKey(about.kid, key, fits)


def algorithms_of(key: object) -> frozenset[str]:
    """Return the algorithms that a public key may verify; a private key verifies none."""
    if isinstance(key, RSAPublicKey):
        return RSA_ALGORITHMS if key.key_size >= SMALLEST_RSA else frozenset()
    if isinstance(key, EllipticCurvePublicKey):
        return frozenset({CURVES[key.curve.name]} if key.curve.name in CURVES else ())
    return frozenset({"EdDSA"} if isinstance(key, Ed25519PublicKey) else ())


def public_key(pem: str) -> PublicKey:
    if "PRIVATE KEY" in pem:
        raise ConfigError("a private key is given", fix="give its public half: openssl pkey -pubout")
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        fix = "give -----BEGIN PUBLIC KEY-----; from a certificate: openssl x509 -pubkey -noout"
        raise ConfigError("a public key is not PEM", fix=fix) from None
    if not isinstance(key, RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey):
        raise ConfigError("a public key is of an unknown type", fix="give an RSA, elliptic curve or Ed25519 key")
    return key
