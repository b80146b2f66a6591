"""Authenticated encryption of messages between nodes, with keys derived from a secret that only Forge's role can read.

`sealed` turns bytes into `SENDER.BASE64`; `opened` reverses it. Every sender has its own key, so that no key uses so
many random nonces that two could be equal. The database's own message, `definitions XID SEAL`, is not secret; it
carries a keyed digest, which SQL can compute.

Invariants:
- What `opened` and `defined` return was written by a sender that knows the secret, and by that sender.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections import OrderedDict
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_NONCE: Final = 12
_MOST_KEYS: Final = 1024
_SENT: Final = re.compile(r"([0-9a-f]{16})\.([A-Za-z0-9_-]+={0,2})")
_DEFINED: Final = re.compile(r"definitions ([0-9]{1,20}) ([0-9a-f]{64})")


class Cipher:
    """Seals and opens with one secret.

    >>> cipher = Cipher("one")
    >>> cipher.opened(cipher.sealed("0123456789abcdef", b"text"))
    ('0123456789abcdef', b'text')
    >>> Cipher("another").opened(cipher.sealed("0123456789abcdef", b"text"))
    """

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self._keys: OrderedDict[str, AESGCM] = OrderedDict()

    def sealed(self, sender: str, text: bytes) -> str:
        """Encrypt a message; the result may be sent over a public channel."""
        nonce = os.urandom(_NONCE)
        hidden = self._key(sender).encrypt(nonce, text, sender.encode())
        return f"{sender}.{base64.urlsafe_b64encode(nonce + hidden).decode()}"

    def opened(self, text: str) -> tuple[str, bytes] | None:
        """Return the sender and the decrypted message; None if the sender does not know the secret."""
        match = _SENT.fullmatch(text)
        if match is None:
            return None
        sender, known = match[1], match[1] in self._keys
        try:
            hidden = base64.urlsafe_b64decode(match[2])
            return sender, self._key(sender).decrypt(hidden[:_NONCE], hidden[_NONCE:], sender.encode())
        except (InvalidTag, binascii.Error, ValueError):
            if not known:  # only authenticated senders are kept
                self._keys.pop(sender, None)
            return None

    def defined(self, text: str) -> str | None:
        """Return the transaction that changed definitions, if the message is from the database; otherwise None."""
        match = _DEFINED.fullmatch(text)
        if match is None:
            return None
        seal = hashlib.sha256(f"{self.secret} definitions {match[1]}".encode()).hexdigest()
        return match[1] if hmac.compare_digest(seal, match[2]) else None

    def _key(self, sender: str) -> AESGCM:
        key = self._keys.get(sender)
        if key is None:
            derived = HKDF(SHA256(), 32, salt=None, info=b"forge nodes " + sender.encode()).derive(self.secret.encode())
            key = self._keys[sender] = AESGCM(derived)
            if len(self._keys) > _MOST_KEYS:
                self._keys.popitem(last=False)
        return key
