"""Tokens: what is let in, every hostile token that is not, keys from a JWKS server, revocation."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from starlette.datastructures import Headers

from forge.errors import AuthFailed, ConfigError, KeysUnavailable
from forge.react.registry import ANYONE, Auth
from forge.serve.auth import Authenticator, AuthSettings, Revocations, TokenIdentity, bearer

NOW = 1_800_000_000.0
SECRET = "k" * 64
OTHER_SECRET = "o" * 64
RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
WEAK_RSA = rsa.generate_private_key(65537, 1024)
EC = ec.generate_private_key(ec.SECP256R1())
OTHER_EC = ec.generate_private_key(ec.SECP256R1())
EC_384 = ec.generate_private_key(ec.SECP384R1())
ED = ed25519.Ed25519PrivateKey.generate()

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def public(key: Private) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def private(key: Private) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def jwk(key: Private, kid: str | None, **more: Any) -> dict[str, Any]:
    public_key = key.public_key()
    if isinstance(public_key, rsa.RSAPublicKey):
        found: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(public_key, as_dict=True)
    elif isinstance(public_key, ec.EllipticCurvePublicKey):
        found = jwt.algorithms.ECAlgorithm.to_jwk(public_key, as_dict=True)
    else:
        found = jwt.algorithms.OKPAlgorithm.to_jwk(public_key, as_dict=True)
    found.pop("key_ops", None)
    return {**found, **({} if kid is None else {"kid": kid}), **more}


def claims(**more: Any) -> dict[str, Any]:
    return {"sub": "ada", "iat": int(NOW), "exp": int(NOW) + 60, **more}


def signed(key: Any = SECRET, algorithm: str = "HS256", headers: dict[str, Any] | None = None, **more: Any) -> str:
    return jwt.encode(claims(**more), key, algorithm, headers)


def raw(payload: bytes, header: dict[str, Any] | bytes | None = None, secret: str = SECRET) -> str:
    """A token whose parts are what is given, rightly signed with HS256."""
    head = header if isinstance(header, bytes) else json.dumps(header or {"alg": "HS256", "typ": "JWT"}).encode()
    signing = b".".join((encoded(head), encoded(payload)))
    algorithm = jwt.get_algorithm_by_name("HS256")
    return b".".join((signing, encoded(algorithm.sign(signing, secret.encode())))).decode()


def encoded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def authenticator(clock: Callable[[], float] | None = None, **settings: Any) -> Authenticator:
    if "algorithms" not in settings:
        settings.update(algorithms=("HS256",), secret=SECRET)
    return Authenticator(AuthSettings(**settings), clock or Clock())


async def refused(token: str | None, reason: str, **settings: Any) -> AuthFailed:
    """Verify that the token is refused for the reason, and that the error tells nothing of it."""
    with pytest.raises(AuthFailed, match=reason) as failed:
        await authenticator(**settings).verify(token)
    told = f"{failed.value} {failed.value.fix} {failed.value!r}"
    assert failed.value.__cause__ is None
    assert len(str(failed.value)) < 100
    for part in (token or "").split("."):
        assert len(part) < 8 or part not in told
    return failed.value


# Who is let in


async def test_without_settings_everybody_is_anyone() -> None:
    anybody = Authenticator(None)
    assert await anybody.verify(None) == TokenIdentity(ANYONE)
    assert await anybody.verify("not a token") == TokenIdentity(ANYONE)


async def test_a_good_token_says_who_asks() -> None:
    identity = await authenticator(roles=("app_user",)).verify(
        signed(tenant="acme", role="app_user", jti="t1", groups=["a"])
    )
    assert (identity.auth.user, identity.auth.tenant, identity.auth.role) == ("ada", "acme", "app_user")
    assert identity.auth.claims["groups"] == ["a"]
    assert (identity.issued_at, identity.expires_at, identity.token_id) == (NOW, NOW + 60, "t1")


async def test_a_token_needs_no_more_than_a_user() -> None:
    identity = await authenticator().verify(raw(b'{"sub":"ada"}'))
    assert identity == TokenIdentity(Auth("ada", None, None, {"sub": "ada"}))


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [("RS256", RSA), ("RS512", RSA), ("PS256", RSA), ("ES256", EC), ("ES384", EC_384), ("EdDSA", ED)],
)
async def test_public_keys(algorithm: str, key: Private) -> None:
    verifier = authenticator(algorithms=(algorithm,), public_keys=(public(key),))
    assert (await verifier.verify(signed(key, algorithm))).auth.user == "ada"


async def test_any_of_several_public_keys() -> None:
    keys = (public(OTHER_RSA), public(RSA), public(EC))
    verifier = authenticator(algorithms=("RS256", "ES256"), public_keys=keys)
    for key, algorithm in ((RSA, "RS256"), (OTHER_RSA, "RS256"), (EC, "ES256")):
        assert (await verifier.verify(signed(key, algorithm))).auth.user == "ada"


@pytest.mark.parametrize("audience", ["forge", ["other", "forge"]])
async def test_the_right_audience_and_issuer(audience: Any) -> None:
    verifier = authenticator(audience="forge", issuer="https://id.example")
    assert (await verifier.verify(signed(aud=audience, iss="https://id.example"))).auth.user == "ada"


async def test_the_leeway_lets_clocks_differ_and_no_more() -> None:
    for token in (signed(exp=NOW - 9), signed(nbf=NOW + 10), signed(iat=NOW + 10)):
        await authenticator().verify(token)
        with pytest.raises(AuthFailed):
            await authenticator(leeway=0).verify(token)


async def test_other_claims_can_say_who_asks() -> None:
    verifier = authenticator(user_claim="uid", tenant_claim="org", role_claim=None)
    auth = (await verifier.verify(signed(uid="u7", org="o1", role="editor"))).auth
    assert (auth.user, auth.tenant, auth.role) == ("u7", "o1", None)


async def test_the_default_role_is_of_tokens_that_name_none_and_of_requests_without() -> None:
    verifier = authenticator(default_role="app_user", required=False)
    assert (await verifier.verify(signed())).auth.role == "app_user"
    assert (await verifier.verify(signed(role="app_user"))).auth.role == "app_user"
    assert await verifier.verify(None) == TokenIdentity(Auth(role="app_user"))


async def test_a_token_that_is_not_required_must_still_be_good() -> None:
    assert await authenticator(required=False).verify(None) == TokenIdentity(ANYONE)
    await refused("", "malformed", required=False)
    await refused(signed(OTHER_SECRET), "unknown key", required=False)


# Hostile tokens


async def test_no_token() -> None:
    await refused(None, "missing")


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "a.b",
        "..",
        "a.b.c",
        "a.b.c.d.e",
        "é.é.é",
        "\ud800.a.b",
        "!!!!.!!!!.!!!!",
        signed() + ".",
        signed() + "\n",
        " " + signed(),
        signed().replace(".", "\0", 1),
        raw(b"{}", b"not json"),
        raw(b"{}", b"[]"),
        raw(b"{}", b"\xff\xfe"),
        raw(b"{}", b'{"alg":' + b"[" * 5000 + b"]" * 5000 + b"}"),
        raw(b'{"sub":"ada"}', {"alg": "HS256", "kid": 7}),
        raw(b'{"sub":"ada"}', {"alg": "HS256", "kid": {}}),
    ],
)
async def test_what_is_no_token(token: str) -> None:
    await refused(token, "malformed")


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE"])
async def test_an_unsigned_token(name: str) -> None:
    head, payload, signature = raw(json.dumps(claims()).encode(), {"alg": name}).split(".")
    await refused(f"{head}.{payload}.", "not signed")
    await refused(f"{head}.{payload}.{signature}", "not signed")


@pytest.mark.parametrize("algorithm", ["HS512", "RS256", "", "hs256", "HS256 ", None, 5, [], ["HS256"], {"HS256": 1}])
async def test_another_algorithm(algorithm: Any) -> None:
    await refused(raw(json.dumps(claims()).encode(), {"alg": algorithm}), "algorithm not allowed|malformed")


async def test_no_algorithm() -> None:
    await refused(raw(json.dumps(claims()).encode(), {"typ": "JWT"}), "algorithm not allowed|malformed")


async def test_a_public_key_does_not_pass_for_a_secret() -> None:
    pem = public(RSA)
    forged = raw(json.dumps(claims()).encode(), secret=pem)
    await refused(forged, "algorithm not allowed", algorithms=("RS256",), public_keys=(pem,))
    mislabelled = raw(json.dumps(claims()).encode(), {"alg": "RS256"}, secret=pem)
    await refused(mislabelled, "unknown key", algorithms=("RS256",), public_keys=(pem,))


async def test_a_key_in_the_header_is_not_used() -> None:
    headers = {"jwk": jwk(OTHER_RSA, "k"), "kid": "k", "jku": "http://127.0.0.1:1/", "x5u": "http://127.0.0.1:1/"}
    forged = signed(OTHER_RSA, "RS256", headers)
    await refused(forged, "unknown key", algorithms=("RS256",), public_keys=(public(RSA),))


async def test_another_key() -> None:
    await refused(signed(OTHER_SECRET), "unknown key")
    await refused(signed(OTHER_RSA, "RS256"), "unknown key", algorithms=("RS256",), public_keys=(public(RSA),))
    await refused(signed(OTHER_EC, "ES256"), "unknown key", algorithms=("ES256",), public_keys=(public(EC),))


async def test_a_signature_that_was_cut_off_or_is_of_other_claims() -> None:
    head, payload, signature = signed().split(".")
    await refused(f"{head}.{payload}.", "unknown key")
    await refused(f"{head}.{payload}.{signature[:-4]}", "unknown key|malformed")
    changed = encoded(json.dumps(claims(sub="root")).encode()).decode()
    await refused(f"{head}.{changed}.{signature}", "unknown key")
    await refused(f"{head}..{signature}", "unknown key")


async def test_a_zero_signature_of_an_elliptic_curve() -> None:
    head, payload, _ = signed(EC, "ES256").split(".")
    for size in (64, 0, 63, 4096):
        forged = f"{head}.{payload}.{encoded(bytes(size)).decode()}"
        await refused(forged, "unknown key|malformed", algorithms=("ES256",), public_keys=(public(EC),))


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"crit": []}, {"b64": False, "crit": ["b64"]}, {"b64": True}])
async def test_extensions_that_change_what_a_token_means(header: dict[str, Any]) -> None:
    token = raw(json.dumps(claims()).encode(), {"alg": "HS256", **header})
    await refused(token, "not supported|malformed")


async def test_an_expired_token() -> None:
    await refused(signed(exp=NOW - 10), "expired")
    await refused(signed(exp=-1), "expired")


async def test_a_token_of_the_future() -> None:
    await refused(signed(nbf=NOW + 11), "not yet valid")
    await refused(signed(iat=NOW + 11), "issued in the future")


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("value", ["soon", "1800000060", None, True, [], {}, 10**30, -(10**30)])
async def test_times_that_are_none(name: str, value: Any) -> None:
    await refused(raw(json.dumps(claims(**{name: value})).encode()), f"malformed: {name}")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e400", "9" * 5000])
async def test_times_that_are_no_numbers(text: str) -> None:
    await refused(raw(f'{{"sub":"ada","exp":{text}}}'.encode()), "malformed")


async def test_another_audience() -> None:
    for audience in ("other", ["other"], [], "", "forge2", "forg"):
        await refused(signed(aud=audience), "audience", audience="forge")
    await refused(signed(), "audience", audience="forge")
    for wrong in (7, {"forge": 1}, [7], [["forge"]], None):
        await refused(raw(json.dumps(claims(aud=wrong)).encode()), "aud", audience="forge")


async def test_a_token_meant_for_somebody_else_when_no_audience_is_set() -> None:
    await refused(signed(aud="other"), "audience")


async def test_another_issuer() -> None:
    for issuer in ("https://id.example.evil", "", None, ["https://id.example"], 7):
        await refused(raw(json.dumps(claims(iss=issuer)).encode()), "issuer", issuer="https://id.example")
    await refused(signed(), "issuer", issuer="https://id.example")


async def test_a_token_of_16_kb_is_read_and_a_longer_one_is_not() -> None:
    room = 16 * 1024 - len(signed(pad=""))
    fits = signed(pad="x" * (room * 3 // 4 - 3))
    assert len(fits) <= 16 * 1024
    assert (await authenticator().verify(fits)).auth.user == "ada"
    await refused(signed(pad="x" * room), "too long")
    await refused("x" * 50_000_000, "too long")


@pytest.mark.parametrize("user", ["", " ", "\t\n", 7, 0, None, True, [], {}, ["ada"], "a\0b"])
async def test_a_user_that_is_no_text(user: Any) -> None:
    await refused(raw(json.dumps(claims(sub=user)).encode()), "malformed: sub")


async def test_no_user() -> None:
    await refused(raw(b"{}"), "names no user")
    await refused(signed(), "names no user", user_claim="uid")


@pytest.mark.parametrize("value", ["", 7, None, ["acme"], "a\0b"])
async def test_a_tenant_role_or_id_that_is_no_text(value: Any) -> None:
    for name in ("tenant", "role", "jti"):
        token = raw(json.dumps(claims(**{name: value})).encode())
        await refused(token, f"malformed: {name}", roles=("app_user",))


async def test_a_role_that_is_not_listed() -> None:
    for role in ("postgres", "app_user ", "APP_USER"):
        await refused(signed(role=role), "role that is not allowed", roles=("app_user",), default_role="reader")
    await refused(signed(role="postgres"), "role that is not allowed")


@pytest.mark.parametrize("payload", [b"", b"null", b"[]", b'"ada"', b"7", b"{", b"\xff", b'{"sub":"\\ud800"}', b"{}{}"])
async def test_claims_that_are_no_object(payload: bytes) -> None:
    await refused(raw(payload), "malformed")


@pytest.mark.parametrize("depth", [33, 200, 900, 2000, 5000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
async def test_claims_nested_deep(depth: int, opening: str, closing: str) -> None:
    depth = min(depth, 2000) if closing == "}" else depth
    inner = opening * depth + ("0" if closing == "}" else "") + closing * depth
    await refused(raw(f'{{"sub":"ada","x":{inner}}}'.encode()), "nested too deep")


async def test_claims_nested_a_little() -> None:
    identity = await authenticator().verify(signed(x=[[[{"a": [1]}]]]))
    assert identity.auth.claims["x"] == [[[{"a": [1]}]]]


# Settings


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"algorithms": (), "secret": SECRET}, "no algorithms"),
        ({"algorithms": "HS256", "secret": SECRET}, "no algorithms"),
        ({"algorithms": ("none",), "secret": SECRET}, "none verifies nothing"),
        ({"algorithms": ("HS256", "None"), "secret": SECRET}, "none verifies nothing"),
        ({"algorithms": ("HS1",), "secret": SECRET}, "unknown"),
        ({"algorithms": ("HS256", "RS256"), "secret": SECRET}, "mixed"),
        ({"algorithms": ("HS256", "ES256"), "secret": SECRET, "public_keys": (public(EC),)}, "mixed"),
        ({"algorithms": ("HS256",)}, "no key"),
        ({"algorithms": ("HS256",), "secret": ""}, "shorter than 32"),
        ({"algorithms": ("HS256", "HS512"), "secret": "k" * 63}, "shorter than 64"),
        ({"algorithms": ("HS256",), "secret": public(RSA)}, "PEM"),
        ({"algorithms": ("HS256",), "public_keys": (public(RSA),)}, "no public keys"),
        ({"algorithms": ("HS256",), "secret": SECRET, "public_keys": (public(RSA),)}, "no public keys"),
        ({"algorithms": ("HS256",), "secret": SECRET, "jwks_url": "https://id.example"}, "no public keys"),
        ({"algorithms": ("RS256",)}, "no key"),
        ({"algorithms": ("RS256",), "secret": SECRET}, "no secret"),
        ({"algorithms": ("RS256",), "public_keys": public(RSA)}, "one text"),
        ({"algorithms": ("RS256",), "public_keys": ("nonsense",)}, "not PEM"),
        ({"algorithms": ("RS256",), "public_keys": (private(RSA),)}, "private key"),
        ({"algorithms": ("RS256",), "public_keys": (public(WEAK_RSA),)}, "fits none"),
        ({"algorithms": ("RS256",), "public_keys": (public(EC),)}, "fits none"),
        ({"algorithms": ("ES256",), "public_keys": (public(EC_384),)}, "fits none"),
        ({"algorithms": ("RS256", "ES256"), "public_keys": (public(RSA),)}, "fits ES256"),
        ({"algorithms": ("RS256",), "public_keys": (public(RSA),), "jwks_url": "https://id.example"}, "two sources"),
        ({"algorithms": ("RS256",), "jwks_url": "http://id.example/keys"}, "https"),
        ({"algorithms": ("RS256",), "jwks_url": "file:///etc/passwd"}, "https"),
        ({"algorithms": ("RS256",), "jwks_url": "https://[bad"}, "https"),
        ({"algorithms": ("RS256",), "jwks_url": ""}, "https"),
        ({"algorithms": ("HS256",), "secret": SECRET, "leeway": -1}, "leeway"),
        ({"algorithms": ("HS256",), "secret": SECRET, "leeway": float("nan")}, "leeway"),
        ({"algorithms": ("HS256",), "secret": SECRET, "user_claim": ""}, "user_claim"),
        ({"algorithms": ("HS256",), "secret": SECRET, "audience": ""}, "audience"),
        ({"algorithms": ("HS256",), "secret": SECRET, "roles": "app_user"}, "roles"),
        ({"algorithms": ("HS256",), "secret": SECRET, "roles": ("",)}, "roles"),
    ],
)
def test_settings_that_cannot_work_or_are_not_safe(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as wrong:
        AuthSettings(**settings)
    assert wrong.value.fix
    assert SECRET not in f"{wrong.value} {wrong.value.fix}"


def test_settings_do_not_print_the_secret() -> None:
    settings = AuthSettings(algorithms=("HS256",), secret=SECRET, issuer="me")
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings.__rich_repr__())
    assert "issuer='me'" in repr(settings)


# The header


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({"Authorization": "Bearer a.b.c"}, "a.b.c"),
        ({"AUTHORIZATION": "BEARER   a.b.c "}, "a.b.c"),
        (Headers({"authorization": "bearer a.b.c"}), "a.b.c"),
        ({"authorization": "Bearer"}, ""),
        ({"authorization": "Bearer "}, ""),
        ({"authorization": "Basic YTpi"}, None),
        ({"authorization": ""}, None),
        ({"authorization": "a.b.c"}, None),
        ({}, None),
    ],
)
def test_the_bearer(headers: Any, token: str | None) -> None:
    assert bearer(headers) == token


def test_two_authorization_headers_are_ambiguous() -> None:
    headers = Headers(raw=[(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")])
    with pytest.raises(AuthFailed, match="more than one"):
        bearer(headers)


# Keys from a server


class JwksServer:
    """Serves keys on the loopback, counts requests, and fails or waits when told."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.requests = 0
        self.body: bytes | None = None
        self.status = "200 OK"
        self.gate = asyncio.Event()
        self.gate.set()
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/keys"

    async def stop(self) -> None:
        assert self._server is not None
        self.gate.set()
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            await self.gate.wait()
            body = json.dumps({"keys": self.keys}).encode() if self.body is None else self.body
            head = f"HTTP/1.1 {self.status}\r\nlocation: /other\r\ncontent-length: {len(body)}\r\n"
            writer.write(head.encode() + b"connection: close\r\n\r\n" + body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JwksServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    found = JwksServer()
    await found.start()
    yield found
    await found.stop()


class Fetching:
    """An authenticator that fetches, its server and its clock."""

    def __init__(self, server: JwksServer, *algorithms: str) -> None:
        self.clock = Clock()
        settings = AuthSettings(algorithms=algorithms or ("RS256", "ES256"), jwks_url=server.url)
        self.authenticator = Authenticator(settings, self.clock)

    async def accepts(self, key: Private, kid: str | None, algorithm: str = "RS256", **more: Any) -> bool:
        headers = None if kid is None else {"kid": kid}
        token = signed(key, algorithm, headers, iat=self.clock.now, exp=self.clock.now + 60, **more)
        try:
            return (await self.authenticator.verify(token)).auth.user == "ada"
        except AuthFailed as error:
            if "unknown key" in str(error):
                return False
            raise


async def test_keys_are_fetched_once_and_kept(server: JwksServer) -> None:
    server.keys = [jwk(RSA, "r1"), jwk(EC, "e1")]
    fetching = Fetching(server)
    assert server.requests == 0
    for _ in range(3):
        assert await fetching.accepts(RSA, "r1")
        assert await fetching.accepts(EC, "e1", "ES256")
    fetching.clock.now += 20
    assert not await fetching.accepts(OTHER_RSA, "r1")
    assert not await fetching.accepts(RSA, "e1")
    assert server.requests == 1


async def test_a_new_key_works_as_soon_as_it_is_used(server: JwksServer) -> None:
    server.keys = [jwk(RSA, "r1")]
    fetching = Fetching(server)
    assert await fetching.accepts(RSA, "r1")
    server.keys.append(jwk(OTHER_RSA, "r2"))
    fetching.clock.now += 11
    assert await fetching.accepts(OTHER_RSA, "r2")
    assert server.requests == 2


async def test_unknown_keys_cause_one_fetch_in_ten_seconds(server: JwksServer) -> None:
    server.keys = [jwk(RSA, "r1")]
    fetching = Fetching(server)
    assert await fetching.accepts(RSA, "r1")
    for second in range(31):
        fetching.clock.now = NOW + second
        for number in range(3):
            assert not await fetching.accepts(OTHER_RSA, f"made-up-{second}-{number}")
    assert server.requests == 4
    assert await fetching.accepts(RSA, "r1")


async def test_a_removed_key_stops_working_within_300_seconds(server: JwksServer) -> None:
    server.keys = [jwk(RSA, "r1")]
    fetching = Fetching(server)
    assert await fetching.accepts(RSA, "r1")
    server.keys = [jwk(OTHER_RSA, "r2")]
    fetching.clock.now += 299
    assert await fetching.accepts(RSA, "r1")
    fetching.clock.now += 1
    assert not await fetching.accepts(RSA, "r1")
    assert await fetching.accepts(OTHER_RSA, "r2")
    assert server.requests == 2


async def test_a_removed_key_stops_working_when_its_successor_is_seen(server: JwksServer) -> None:
    server.keys = [jwk(RSA, "r1")]
    fetching = Fetching(server)
    assert await fetching.accepts(RSA, "r1")
    server.keys = [jwk(OTHER_RSA, "r2")]
    fetching.clock.now += 11
    assert await fetching.accepts(OTHER_RSA, "r2")
    assert not await fetching.accepts(RSA, "r1")


async def test_all_keys_removed(server: JwksServer) -> None:
    server.keys = [jwk(RSA, "r1")]
    fetching = Fetching(server)
    assert await fetching.accepts(RSA, "r1")
    server.keys = []
    fetching.clock.now += 300
    assert not await fetching.accepts(RSA, "r1")


async def test_a_clock_set_back_fetches_again(server: JwksServer) -> None:
    server.keys = [jwk(RSA, "r1")]
    fetching = Fetching(server)
    assert await fetching.accepts(RSA, "r1")
    fetching.clock.now -= 3600
    assert await fetching.accepts(RSA, "r1")
    assert server.requests == 2


async def test_many_at_once_are_one_fetch(server: JwksServer) -> None:
    server.keys = [jwk(RSA, "r1")]
    server.gate.clear()
    fetching = Fetching(server)
    asking = [asyncio.create_task(fetching.accepts(RSA, "r1")) for _ in range(50)]
    await until(lambda: server.requests == 1)
    asking[0].cancel()
    await asyncio.sleep(0)
    server.gate.set()
    assert await asyncio.gather(*asking[1:]) == [True] * 49
    assert server.requests == 1
    with pytest.raises(asyncio.CancelledError):
        await asking[0]


async def test_tokens_and_keys_without_kid(server: JwksServer) -> None:
    server.keys = [jwk(RSA, None)]
    fetching = Fetching(server)
    assert await fetching.accepts(RSA, None)
    assert await fetching.accepts(RSA, "anything")
    server.keys = [jwk(OTHER_RSA, None)]
    fetching.clock.now += 11
    assert await fetching.accepts(OTHER_RSA, None)
    assert not await fetching.accepts(RSA, None)
    assert server.requests == 2


async def test_only_keys_that_fit_the_algorithms(server: JwksServer) -> None:
    secret = {"kty": "oct", "k": encoded(SECRET.encode()).decode(), "kid": "s", "alg": "HS256"}
    server.keys = [
        secret,
        {**secret, "alg": "RS256"},
        jwk(RSA, "enc", use="enc"),
        jwk(RSA, "other-alg", alg="RS512"),
        jwk(RSA, "decrypts", key_ops=["decrypt"]),
        jwk(WEAK_RSA, "weak"),
        jwk(EC_384, "curve"),
        jwk(ED, "ed"),
        {"kty": "RSA", "kid": "broken", "n": 5, "e": []},
        {"kty": "RSA", "kid": "empty"},
        {"kty": ["RSA"], "kid": "list"},
        {**jwk(RSA, "r"), "kid": 5},
        None,
        "text",
        jwk(RSA, "good", use="sig", alg="RS256", key_ops=["verify"]),
        jwk(EC, "ec"),
    ]
    fetching = Fetching(server)
    assert await fetching.accepts(RSA, "good")
    assert await fetching.accepts(EC, "ec", "ES256")
    for kid in ("enc", "other-alg", "decrypts", "s", "broken", "empty", "list"):
        assert not await fetching.accepts(RSA, kid)
    with pytest.raises(AuthFailed, match="algorithm not allowed"):
        await fetching.authenticator.verify(signed(SECRET, headers={"kid": "s"}))
    weak = jwt.PyJWS().encode(json.dumps(claims()).encode(), RSA, "RS256", {"kid": "weak"})
    with pytest.raises(AuthFailed, match="unknown key"):
        await fetching.authenticator.verify(weak)


async def test_a_private_key_published_by_mistake_is_not_trusted(server: JwksServer) -> None:
    leaked = jwt.algorithms.RSAAlgorithm.to_jwk(RSA, as_dict=True)
    server.keys = [{**leaked, "kid": "r1", "key_ops": ["verify"]}]
    assert not await Fetching(server).accepts(RSA, "r1")


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"keys":5}', b'{"keys":null}', b" " * 1_100_000, b'{"keys":' + b"[" * 9000]
)
async def test_answers_that_are_no_keys(server: JwksServer, body: bytes) -> None:
    server.body = body
    with pytest.raises(KeysUnavailable, match="keys unavailable"):
        await Fetching(server).accepts(RSA, "r1")


@pytest.mark.parametrize("status", ["500 Internal Server Error", "404 Not Found", "302 Found"])
async def test_old_keys_serve_on_while_none_can_be_fetched(server: JwksServer, status: str) -> None:
    server.keys = [jwk(RSA, "r1")]
    fetching = Fetching(server)
    assert await fetching.accepts(RSA, "r1")
    server.status = status
    fetching.clock.now += 1000
    assert await fetching.accepts(RSA, "r1")
    assert not await fetching.accepts(OTHER_RSA, "r2")
    assert server.requests == 2
    server.status = "200 OK"
    server.keys.append(jwk(OTHER_RSA, "r2"))
    fetching.clock.now += 11
    assert await fetching.accepts(OTHER_RSA, "r2")


async def test_a_server_that_hangs_holds_up_nobody_twice(server: JwksServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.keys = [jwk(RSA, "r1")]
    fetching = Fetching(server)
    assert await fetching.accepts(RSA, "r1")
    server.gate.clear()
    fetching.clock.now += 300
    monkeypatch.setattr("forge.serve.keys.FETCH_TIMEOUT", 0.2)
    assert await fetching.accepts(RSA, "r1")
    monkeypatch.setattr("forge.serve.keys.FETCH_TIMEOUT", 60.0)
    fetching.clock.now += 11
    before = server.requests
    async with asyncio.timeout(10):
        assert await fetching.accepts(RSA, "r1")
        await until(lambda: server.requests > before)
        await fetching.authenticator.close()


async def test_no_keys_yet(server: JwksServer) -> None:
    server.status = "503 Service Unavailable"
    fetching = Fetching(server)
    for _ in range(5):
        with pytest.raises(KeysUnavailable, match="keys unavailable"):
            await fetching.accepts(RSA, "r1")
    assert server.requests == 1
    server.status = "200 OK"
    server.keys = [jwk(RSA, "r1")]
    fetching.clock.now += 1
    assert await fetching.accepts(RSA, "r1")


async def test_nobody_listens_at_the_address(server: JwksServer) -> None:
    fetching = Fetching(server)
    await server.stop()
    with pytest.raises(AuthFailed, match="keys unavailable"):
        await fetching.accepts(RSA, "r1")


async def test_a_token_that_is_hopeless_fetches_nothing(server: JwksServer) -> None:
    fetching = Fetching(server)
    for token in ("x", raw(b"{}"), raw(b"{}", {"alg": "none"}), "x" * 20_000):
        with pytest.raises(AuthFailed):
            await fetching.authenticator.verify(token)
    assert server.requests == 0


async def test_by_the_clock_on_the_wall(server: JwksServer) -> None:
    server.keys = [jwk(EC, "e1")]
    settings = AuthSettings(algorithms=("ES256",), jwks_url=server.url)
    token = signed(EC, "ES256", {"kid": "e1"}, iat=time.time(), exp=time.time() + 60)
    assert (await Authenticator(settings).verify(token)).auth.user == "ada"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


# Revocation


def identity(
    user: str | None = "ada", tenant: str | None = "acme", at: float | None = NOW, id: str | None = "t1"
) -> TokenIdentity:
    return TokenIdentity(Auth(user, tenant), None, at, id)


def test_a_user_is_revoked_up_to_a_moment() -> None:
    revocations = Revocations()
    assert not revocations.revoked(identity())
    revocations.revoke(user="ada", at=NOW)
    assert revocations.revoked(identity(at=NOW - 1))
    assert revocations.revoked(identity(at=NOW))
    assert not revocations.revoked(identity(at=NOW + 1))
    assert revocations.revoked(identity(tenant="other"))
    assert not revocations.revoked(identity(user="bob"))
    assert not revocations.revoked(identity(user=None))


def test_a_token_that_does_not_say_when_it_was_issued_is_revoked() -> None:
    revocations = Revocations()
    revocations.revoke(user="ada", at=NOW)
    assert revocations.revoked(identity(at=None))


def test_a_tenant_is_revoked_with_all_its_users() -> None:
    revocations = Revocations()
    revocations.revoke(tenant="acme", at=NOW)
    assert revocations.revoked(identity(user="bob"))
    assert revocations.revoked(identity(user=None))
    assert not revocations.revoked(identity(tenant="other"))
    assert not revocations.revoked(identity(tenant=None))


def test_a_user_of_a_tenant_is_revoked_there_alone() -> None:
    revocations = Revocations()
    revocations.revoke(user="ada", tenant="acme", at=NOW)
    assert revocations.revoked(identity())
    assert not revocations.revoked(identity(tenant="other"))
    assert not revocations.revoked(identity(user="bob"))


def test_a_token_is_revoked_whenever_it_was_issued() -> None:
    revocations = Revocations()
    revocations.revoke(token_id="t1", at=NOW)
    assert revocations.revoked(identity(at=NOW + 100))
    assert not revocations.revoked(identity(id="t2"))
    assert not revocations.revoked(identity(id=None))


def test_an_earlier_revocation_takes_nothing_back() -> None:
    revocations = Revocations()
    revocations.revoke(user="ada", at=NOW)
    revocations.revoke(user="ada", at=NOW - 100)
    assert revocations.revoked(identity(at=NOW))


def test_anyone_is_never_revoked() -> None:
    revocations = Revocations()
    revocations.revoke(user="ada", at=NOW)
    assert not revocations.revoked(TokenIdentity(ANYONE))


def test_something_must_be_named() -> None:
    with pytest.raises(ValueError, match="name a user"):
        Revocations().revoke(at=NOW)


def test_revocations_whose_tokens_have_expired_can_be_forgotten() -> None:
    revocations = Revocations()
    revocations.revoke(user="ada", at=NOW - 100)
    revocations.revoke(user="bob", at=NOW)
    revocations.forget(before=NOW)
    assert len(revocations) == 1
    assert revocations.revoked(identity(user="bob"))
