"""Keys and tokens for tests, as an issuer would make them."""

import base64
import json
import time
from pathlib import Path

import jwt

SECRET = b"thirty-two bytes of a test's key"
AUDIENCE = "presence"


def write_keys(path: Path, secrets: dict[str, bytes]) -> Path:
    """Write a file of keys, by kid, that no other user may read; return its path."""
    keys = [
        {
            "kty": "oct",
            "alg": "HS256",
            "kid": kid,
            "k": base64.urlsafe_b64encode(secret).rstrip(b"=").decode(),
        }
        for kid, secret in secrets.items()
    ]
    path.touch(mode=0o600)
    path.write_text(json.dumps({"keys": keys}))
    return path


def token(uid: str, kid: str = "a", secret: bytes = SECRET, ttl_s: float = 3600) -> str:
    claims = {"sub": uid, "aud": AUDIENCE, "exp": time.time() + ttl_s}
    return jwt.encode(claims, secret, "HS256", headers={"kid": kid})
