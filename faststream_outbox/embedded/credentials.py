"""The random password of a server, in clear for clients and as the verifier that the server stores."""

import base64
import hashlib
import hmac
import os
import secrets

# PostgreSQL's own default, and the least that some clients (JDBC) accept.
STANDARD_ITERATIONS = 4096
# Iterations protect guessable passwords. Ours is random, so a test server can do with one and connect faster.
CHEAP_ITERATIONS = 1


def new_password() -> str:
    """Make up a password of characters that need no quoting in a URL."""
    return secrets.token_urlsafe(24)


def scram_verifier(password: str, iterations: int) -> str:
    """Compute what PostgreSQL keeps instead of `password`; versions before 16 have no `scram_iterations` to set."""
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return f"SCRAM-SHA-256${iterations}:{_text(salt)}${_text(stored_key)}:{_text(server_key)}"


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
