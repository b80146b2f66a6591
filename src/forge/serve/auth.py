"""Authentication: a bearer token in, a `TokenIdentity` or `AuthFailed` out.

Keys from a JWKS URL are fetched by at most one request at a time. While a fetch fails, the keys fetched before stay in
use.

Invariants:

- Only the configured algorithms are used. A token's header only selects among them, and a key is used only with the
  algorithms of its own type, so a public key is never used as a secret.
- Claims are read after the signature is verified, and from the signed bytes.
- An error names the check that failed, and nothing from the token.
- A database role comes from the configuration. A token selects a role listed there, or is refused.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
import msgspec

from forge.errors import AuthFailed, ConfigError
from forge.react.registry import ANYONE, Auth
from forge.serve.keys import PUBLIC_ALGORITHMS, SMALLEST_RSA, FetchedKeys, VerifyingKey, _jws, algorithms_of, public_key

LONGEST_TOKEN: Final = 16 * 1024
DEEPEST_CLAIM: Final = 32

_SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}

_SEND: Final = "send a fresh token from the issuer as Authorization: Bearer …"


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for token verification; raises ConfigError if they cannot work or are unsafe. Times in seconds."""

    algorithms: tuple[str, ...]
    """The only algorithms accepted: from the HS family, or from the RS, PS and ES families and EdDSA."""
    secret: str | None = None
    """Secret for the HS family."""
    public_keys: tuple[str, ...] = ()
    """PEM keys for the other algorithms; one of them must have signed the token."""
    jwks_url: str | None = None
    """URL of the public keys, instead of `public_keys`."""
    audience: str | None = None
    """Must be in the token's `aud`. With None, a token that has an audience is refused."""
    issuer: str | None = None
    leeway: float = 10.0
    user_claim: str = "sub"
    tenant_claim: str | None = "tenant"
    """Claim with the tenant; None reads no tenant."""
    role_claim: str | None = "role"
    """Claim with the role; None reads no role, for claims that do not name a database role."""
    roles: tuple[str, ...] = ()
    """Database roles that a token may name, besides `default_role`."""
    default_role: str | None = None
    """Database role for tokens that name none, and for requests without a token."""
    required: bool = True
    """Whether a request without a token is refused."""

    def __post_init__(self) -> None:
        _check_algorithms(self)
        _check_keys(self)
        if not 0 <= self.leeway <= 300:
            raise ConfigError(f"a leeway of {self.leeway} s is out of range", fix="use 0 to 300 seconds")
        for name in ("user_claim", "tenant_claim", "role_claim", "audience", "issuer", "default_role"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} is empty", fix=f"leave {name} out or name it")
        if _is_text(self.roles) or not all(self.roles):
            raise ConfigError("roles is not a list of database roles", fix='write roles=("app_user",)')

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        hidden = {"secret"} if self.secret is not None else set()
        return [(name, "***" if name in hidden else getattr(self, name)) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        return f"AuthSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class TokenIdentity(msgspec.Struct, frozen=True):
    """The user that a token identifies. Times are the token's `exp` and `iat` in seconds since the epoch."""

    auth: Auth
    expires_at: float | None = None
    issued_at: float | None = None
    token_id: str | None = None
    local: bool = False
    """Whether the request comes from this machine; see `forge.serve.permissions.local`."""


class Authenticator:
    """Verify tokens; with settings of None every caller is anonymous."""

    def __init__(self, settings: AuthSettings | None, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self._clock = clock
        self._keys: Sequence[VerifyingKey] = ()
        self._fetched: FetchedKeys | None = None
        if settings is None:
            return
        if settings.jwks_url is not None:
            self._fetched = FetchedKeys(settings.jwks_url, settings.algorithms, clock)
        elif settings.secret is not None:
            self._keys = (VerifyingKey(None, settings.secret.encode(), frozenset(settings.algorithms)),)
        else:
            loaded = map(public_key, settings.public_keys)
            self._keys = tuple(VerifyingKey(None, key, algorithms_of(key)) for key in loaded)

    async def verify(self, token: str | None) -> TokenIdentity:
        """Return the identity of the token; raise AuthFailed if it cannot be trusted."""
        settings = self.settings
        if settings is None:
            return TokenIdentity(ANYONE)
        if token is None:
            if settings.required:
                raise AuthFailed("token missing", fix=_SEND)
            return TokenIdentity(Auth(role=settings.default_role))
        header = _header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if isinstance(algorithm, str) and algorithm.lower() == "none":
            raise AuthFailed("token is not signed", fix=_SEND)
        if not isinstance(algorithm, str) or algorithm not in settings.algorithms:
            raise AuthFailed("token algorithm not allowed", fix=f"sign with {' or '.join(settings.algorithms)}")
        return self._identity(settings, _claims(await self._signed(token, algorithm, kid)))

    async def close(self) -> None:
        """Cancel a fetch in progress."""
        if self._fetched is not None:
            await self._fetched.close()

    async def _signed(self, token: str, algorithm: str, kid: str | None) -> bytes:
        """Return the payload of a token that one of the keys has signed."""
        if self._fetched is None:
            payload = _verified(token, algorithm, self._keys)
        else:
            keys = await self._fetched.current()
            payload = _verified(token, algorithm, _named(keys, kid))
            if payload is None and (kid is None or all(key.kid != kid for key in keys)):
                payload = _verified(token, algorithm, _named(await self._fetched.newer(), kid))
        if payload is None:
            raise AuthFailed("token signed with an unknown key", fix=_SEND)
        return payload

    def _identity(self, settings: AuthSettings, claims: Mapping[str, Any]) -> TokenIdentity:
        expires, begins, issued = (_moment(claims, name) for name in ("exp", "nbf", "iat"))
        now = self._clock()
        if expires is not None and now >= expires + settings.leeway:
            raise AuthFailed("token expired", fix=_SEND)
        if begins is not None and now < begins - settings.leeway:
            raise AuthFailed("token not yet valid", fix="wait until its nbf, or set this machine's clock")
        if issued is not None and now < issued - settings.leeway:
            raise AuthFailed("token issued in the future", fix="set the issuer's clock, or this machine's")
        audience = claims.get("aud", ())
        audiences = (audience,) if isinstance(audience, str) else audience
        if not isinstance(audiences, list | tuple) or not all(isinstance(name, str) for name in audiences):
            raise AuthFailed("token malformed: aud is not text", fix=_SEND)
        if settings.audience not in audiences if settings.audience is not None else audiences:
            raise AuthFailed("token for another audience", fix="set audience to what the issuer writes into aud")
        if settings.issuer is not None and claims.get("iss") != settings.issuer:
            raise AuthFailed("token from another issuer", fix="set issuer to what the issuer writes into iss")
        user = _text(claims, settings.user_claim)
        if user is None:
            raise AuthFailed("token names no user", fix=f"have the issuer set {settings.user_claim}")
        auth = Auth(user, _text(claims, settings.tenant_claim), _role(settings, claims), claims)
        return TokenIdentity(auth, expires, issued, _text(claims, "jti"))


class Revocations:
    """Revocations, in the memory of this process.

    >>> ada = TokenIdentity(Auth(user="ada", tenant="acme"), issued_at=100.0)
    >>> revocations = Revocations()
    >>> revocations.revoke(user="ada", at=100.0)
    >>> revocations.revoked(ada), revocations.revoked(msgspec.structs.replace(ada, issued_at=101.0))
    (True, False)
    """

    def __init__(self) -> None:
        self._at: dict[tuple[str | None, str | None, str | None], float] = {}

    def __len__(self) -> int:
        return len(self._at)

    def revoke(
        self, *, user: str | None = None, tenant: str | None = None, token_id: str | None = None, at: float
    ) -> None:
        """Refuse tokens that match every given field: a user, a tenant, a user of a tenant, or one token."""
        named = (user, tenant, token_id)
        if named == (None, None, None):
            raise ValueError("name a user, a tenant or a token to revoke")
        self._at[named] = max(at, self._at.get(named, at))

    def revoked(self, identity: TokenIdentity) -> bool:
        """Whether the identity is revoked. A token without an issue time counts as issued before the revocation."""
        auth, issued = identity.auth, identity.issued_at
        for named in itertools.product({auth.user, None}, {auth.tenant, None}, {identity.token_id, None}):
            at = self._at.get(named)
            if at is not None and (named[2] is not None or issued is None or issued <= at):
                return True
        return False

    def forget(self, before: float) -> None:
        """Drop revocations from before a time at which all their tokens have expired."""
        self._at = {named: at for named, at in self._at.items() if at >= before}


def bearer(headers: Mapping[str, str]) -> str | None:
    """Return the token of an Authorization header; None if there is none.

    >>> bearer({"authorization": "bearer abc"}), bearer({"Authorization": "Basic abc"}), bearer({})
    ('abc', None, None)
    """
    found = [value for name, value in headers.items() if name.lower() == "authorization"]
    if len(found) > 1:
        raise AuthFailed("more than one Authorization header", fix="send one")
    scheme, _, token = found[0].strip().partition(" ") if found else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else None


def _named(keys: Iterable[VerifyingKey], kid: str | None) -> list[VerifyingKey]:
    return [key for key in keys if kid is None or key.kid is None or key.kid == kid]


def _header(token: str) -> dict[str, Any]:
    if len(token) > LONGEST_TOKEN:
        raise AuthFailed("token too long", fix="send fewer claims: a token has at most 16 kB")
    if not token.isascii() or token.count(".") != 2:
        raise AuthFailed("token malformed", fix=_SEND)
    try:
        header = _jws.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise AuthFailed("token malformed", fix=_SEND) from None
    if "crit" in header or "b64" in header:
        raise AuthFailed("token has extensions that are not supported", fix="sign without crit and b64")
    if not isinstance(header.get("kid", ""), str):
        raise AuthFailed("token malformed: kid is not text", fix=_SEND)
    return header


def _verified(token: str, algorithm: str, keys: Iterable[VerifyingKey]) -> bytes | None:
    """Return the signed bytes; None if none of the keys has signed them."""
    for key in keys:
        if algorithm not in key.algorithms:
            continue
        try:
            payload: bytes = _jws.decode_complete(token, key.key, algorithms=[algorithm])["payload"]
        except jwt.InvalidSignatureError:
            continue
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise AuthFailed("token malformed", fix=_SEND) from None
        return payload
    return None


def _claims(payload: bytes) -> dict[str, Any]:
    try:
        claims = msgspec.json.decode(payload, type=dict[str, Any])
    except (msgspec.DecodeError, ValueError):
        raise AuthFailed("token malformed: its claims are not a JSON object", fix=_SEND) from None
    except RecursionError:
        claims = None
    if claims is None or not _is_shallow(claims):
        raise AuthFailed("token malformed: its claims are nested too deep", fix=f"nest at most {DEEPEST_CLAIM} deep")
    return claims


def _is_shallow(claims: dict[str, Any]) -> bool:
    level: list[Any] = [claims]
    for _ in range(DEEPEST_CLAIM + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        if not inner:
            return True
        level = inner
    return False


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise AuthFailed(f"token malformed: {name} is not a time", fix=_SEND)
    return float(value)


def _text(claims: Mapping[str, Any], name: str | None) -> str | None:
    if name is None or name not in claims:
        return None
    value = claims[name]
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise AuthFailed(f"token malformed: {name} is not text, or empty", fix=f"have the issuer set {name} to text")
    return value


def _role(settings: AuthSettings, claims: Mapping[str, Any]) -> str | None:
    role = _text(claims, settings.role_claim)
    if role is None:
        return settings.default_role
    if role not in settings.roles and role != settings.default_role:
        raise AuthFailed("token names a role that is not allowed", fix="list it in roles, or set role_claim to None")
    return role


def _check_algorithms(settings: AuthSettings) -> None:
    algorithms = settings.algorithms
    if not algorithms or _is_text(algorithms):
        raise ConfigError("no algorithms are given", fix='write algorithms=("RS256",)')
    for algorithm in algorithms:
        if algorithm.lower() == "none":
            raise ConfigError("the algorithm none verifies nothing", fix='write algorithms=("RS256",)')
        if algorithm not in _SECRET_BYTES and algorithm not in PUBLIC_ALGORITHMS:
            known = ", ".join(sorted({*_SECRET_BYTES, *PUBLIC_ALGORITHMS}))
            raise ConfigError(f"the algorithm {algorithm!r} is unknown", fix=f"use one of {known}")
    if 0 < len(PUBLIC_ALGORITHMS.intersection(algorithms)) < len(set(algorithms)):
        raise ConfigError(
            "algorithms with a secret and with public keys are mixed",
            fix="use HS algorithms only, or none of them: otherwise a public key could pass for a secret",
        )


def _check_keys(settings: AuthSettings) -> None:
    secret, pems, url = settings.secret, settings.public_keys, settings.jwks_url
    if _is_text(pems):
        raise ConfigError("public_keys is one text", fix="write public_keys=(pem,)")
    if not PUBLIC_ALGORITHMS.intersection(settings.algorithms):
        if pems or url is not None:
            raise ConfigError("HS algorithms use no public keys", fix="give secret alone, or RS or ES algorithms")
        _check_secret(secret, max(_SECRET_BYTES[algorithm] for algorithm in settings.algorithms))
        return
    if secret is not None:
        raise ConfigError("RS, PS, ES and EdDSA use no secret", fix="give public_keys or jwks_url instead of secret")
    if bool(pems) == (url is not None):
        what = "two sources of keys are given" if pems else "no key is given"
        raise ConfigError(what, fix="give public_keys or jwks_url, one of the two")
    if url is not None:
        _check_url(url)
        return
    fitting = [algorithms_of(public_key(pem)).intersection(settings.algorithms) for pem in pems]
    if not all(fitting):
        raise ConfigError(
            "a public key fits none of the algorithms",
            fix=f"give RSA of {SMALLEST_RSA} bits or more for RS and PS, the curve that its name says for ES",
        )
    if unserved := set(settings.algorithms).difference(*fitting):
        raise ConfigError(f"no public key fits {' or '.join(sorted(unserved))}", fix="give one, or leave it out")


def _check_secret(secret: str | None, least: int) -> None:
    if secret is None:
        raise ConfigError("no key is given", fix="give secret")
    if "-----BEGIN" in secret:
        raise ConfigError("the secret is a PEM key", fix="give it in public_keys, with RS or ES algorithms")
    if len(secret.encode()) < least:
        raise ConfigError(f"the secret is shorter than {least} bytes", fix="make one: openssl rand -hex 64")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host = None
    local = host in ("localhost", "127.0.0.1", "::1")
    if host is None or not (parts.scheme == "https" or (parts.scheme == "http" and local)):
        raise ConfigError("jwks_url is not an https address", fix="use https://… (http:// only on this machine)")


def _is_text(value: object) -> bool:
    return isinstance(value, str)
