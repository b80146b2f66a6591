"""Signatures of the Standard Webhooks specification: any of its libraries can verify Forge's requests.

The secret is `whsec_` and the base64 of 24 to 64 bytes. The header `webhook-signature` has one `v1,…` for each valid
secret, so that a receiver may switch to the newer one at any time.
"""

import hmac
import secrets
import time
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

from forge.errors import ConfigError, SignatureInvalid

PREFIX: Final = "whsec_"
TOLERANCE: Final = 300.0
"""The maximum clock difference between sender and receiver, in seconds, in either direction."""


def new_secret() -> str:
    """Generate a secret of 32 random bytes."""
    return PREFIX + b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """Return the bytes of a secret; raise ConfigError.

    >>> len(key_of(new_secret()))
    32
    """
    try:
        key = b64decode(secret.removeprefix(PREFIX), validate=True)
    except (Base64Error, ValueError):
        key = b""
    if not 24 <= len(key) <= 64:
        raise ConfigError(
            "the secret is not one of a webhook", fix="write whsec_ and the base64 of 24 to 64 bytes, or leave it out"
        )
    return key


def sign(keys: Sequence[bytes], id: str, at: int, body: bytes) -> str:
    """Return the value of the header `webhook-signature`.

    >>> sign([key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330,
    ...      b'{"test": 2432232314}')
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
    """
    signed = b"%b.%d.%b" % (id.encode(), at, body)
    return " ".join("v1," + b64encode(hmac.digest(key, signed, sha256)).decode() for key in keys)


def verify(
    body: bytes, headers: Mapping[str, str], secret: str | Sequence[str], *, tolerance: float = TOLERANCE
) -> str:
    """Verify a request, as the receiver, and return its id; raise SignatureInvalid.

    The same id means the same message. Names in `headers` are case-insensitive.
    """
    given = {name.lower(): value for name, value in headers.items() if name.lower().startswith("webhook-")}
    id, at = given.get("webhook-id"), given.get("webhook-timestamp", "")
    told = given.get("webhook-signature", "").split()
    if id is None or not told or not (at.isascii() and at.isdigit() and len(at) < 16):
        raise SignatureInvalid(
            "the request is not signed", fix="send webhook-id, webhook-timestamp and webhook-signature"
        )
    if abs(time.time() - int(at)) > tolerance:
        raise SignatureInvalid(f"the request was signed more than {tolerance:g} s ago or ahead", fix="set the clocks")
    keys = [key_of(each) for each in ([secret] if isinstance(secret, str) else secret)]
    good = sign(keys, id, int(at), body).split()
    if not any(hmac.compare_digest(each.encode(), one.encode()) for each in told for one in good):
        raise SignatureInvalid("the signature is not of this secret and body", fix="use the endpoint's secret")
    return id
