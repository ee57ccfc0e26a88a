"""An issuer of tokens by other people's library (PyJWT), for stories. It prints its set of public keys, and then a line
for each token: its name, what is expected of it, and the token. What no library would make is made by hand.

The arguments are the issuer's name and the audience.
"""

import base64
import hashlib
import hmac
import json
import sys
import time

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = sys.argv[1:3]
NOW = int(time.time())
CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW + 600, "iat": NOW, "sub": "ann", "groups": ["staff", "shop"]}


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public(key):
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


KEYS = {
    "ec": ec.generate_private_key(ec.SECP256R1()),
    "ec384": ec.generate_private_key(ec.SECP384R1()),
    "rsa": rsa.generate_private_key(65537, 2048),
    "pss": rsa.generate_private_key(65537, 2048),
    "ed": ed25519.Ed25519PrivateKey.generate(),
}


def set_of_keys():
    numbers = KEYS["ec384"].public_key().public_numbers()
    ec384 = {"kty": "EC", "crv": "P-384", "x": encoded(numbers.x.to_bytes(48, "big")), "y": encoded(numbers.y.to_bytes(48, "big"))}
    numbers = KEYS["ec"].public_key().public_numbers()
    ec256 = {"kty": "EC", "crv": "P-256", "x": encoded(numbers.x.to_bytes(32, "big")), "y": encoded(numbers.y.to_bytes(32, "big"))}
    raw = KEYS["ed"].public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    keys = {
        "ec": ec256,
        "ec384": ec384,
        "rsa": json.loads(RSAAlgorithm.to_jwk(KEYS["rsa"].public_key())),
        "pss": {**json.loads(RSAAlgorithm.to_jwk(KEYS["pss"].public_key())), "alg": "PS256"},
        "ed": {"kty": "OKP", "crv": "Ed25519", "x": encoded(raw)},
    }
    for kid, key in keys.items():
        key.pop("key_ops", None)
        key["kid"] = kid
    return {"keys": list(keys.values())}


def by_hand(header, claims, sign):
    texts = [text if isinstance(text, str) else json.dumps(text) for text in (header, claims)]
    signed = ".".join(encoded(text.encode()) for text in texts)
    return signed + "." + encoded(sign(signed.encode()))


def tell(name, expected, token):
    print(name, expected, token)


def ec_signature(data):
    # PyJWT turns DER into the form of JOSE by itself.
    return ECAlgorithm(ECAlgorithm.SHA256).sign(data, KEYS["ec"])


print(json.dumps(set_of_keys()))
for algorithm, kid in [("ES256", "ec"), ("ES384", "ec384"), ("RS256", "rsa"), ("PS256", "pss"), ("EdDSA", "ed")]:
    tell(algorithm, "good", jwt.encode(CLAIMS, KEYS[kid], algorithm, headers={"kid": kid}))
tell("without-kid", "good", jwt.encode(CLAIMS, KEYS["ec"], "ES256"))
tell("RS512", "refused", jwt.encode(CLAIMS, KEYS["rsa"], "RS512", headers={"kid": "rsa"}))
# A key has one algorithm.
tell("PS256-of-RS256", "refused", jwt.encode(CLAIMS, KEYS["rsa"], "PS256", headers={"kid": "rsa"}))
tell("RS256-of-PS256", "refused", jwt.encode(CLAIMS, KEYS["pss"], "RS256", headers={"kid": "pss"}))
tell("at+jwt", "good", jwt.encode(CLAIMS, KEYS["ec"], "ES256", headers={"typ": "application/at+JWT"}))
# Another kind of token of the same issuer, for the same audience.
tell("logout", "refused", jwt.encode(CLAIMS, KEYS["ec"], "ES256", headers={"typ": "logout+jwt"}))
tell("none", "refused", jwt.encode(CLAIMS, None, "none"))
tell("none-with-signature", "refused", by_hand({"alg": "none"}, CLAIMS, ec_signature))
# The public key as the secret of an HMAC: the classic confusion of algorithms.
for kid in ("ec", "rsa"):
    secret = public(KEYS[kid])
    sign = lambda data: hmac.new(secret, data, hashlib.sha256).digest()
    tell("HS256-" + kid, "refused", by_hand({"alg": "HS256", "kid": kid}, CLAIMS, sign))
tell("wrong-kid", "refused", jwt.encode(CLAIMS, KEYS["ec"], "ES256", headers={"kid": "rsa"}))
tell("unknown-kid", "refused", jwt.encode(CLAIMS, KEYS["ec"], "ES256", headers={"kid": "../../etc/passwd"}))
STRANGER = ec.generate_private_key(ec.SECP256R1())
numbers = STRANGER.public_key().public_numbers()
own = {"kty": "EC", "crv": "P-256", "x": encoded(numbers.x.to_bytes(32, "big")), "y": encoded(numbers.y.to_bytes(32, "big"))}
tell("own-jwk", "refused", jwt.encode(CLAIMS, STRANGER, "ES256", headers={"jwk": own}))
tell("own-jku", "refused", jwt.encode(CLAIMS, STRANGER, "ES256", headers={"kid": "ec", "jku": "http://127.0.0.1:1/"}))
tell("expired", "expired", jwt.encode({**CLAIMS, "exp": NOW - 60}, KEYS["ec"], "ES256"))
tell("no-end", "refused", jwt.encode({key: value for key, value in CLAIMS.items() if key != "exp"}, KEYS["ec"], "ES256"))
tell("not-yet", "refused", jwt.encode({**CLAIMS, "nbf": NOW + 600}, KEYS["ec"], "ES256"))
tell("issuer", "refused", jwt.encode({**CLAIMS, "iss": ISSUER + "/"}, KEYS["ec"], "ES256"))
tell("audience", "refused", jwt.encode({**CLAIMS, "aud": ["other"]}, KEYS["ec"], "ES256"))
tell("crit", "refused", jwt.encode(CLAIMS, KEYS["ec"], "ES256", headers={"crit": ["exp"]}))
twice = json.dumps(CLAIMS)[:-1] + ', "sub": "root"}'
tell("claim-twice", "refused", by_hand({"alg": "ES256"}, twice, ec_signature))
tell("alg-twice", "refused", by_hand('{"alg": "ES256", "alg": "ES256"}', CLAIMS, ec_signature))
tell("line-in-claim", "refused", jwt.encode({**CLAIMS, "sub": "ann\r\nX-Admin: yes"}, KEYS["ec"], "ES256"))
good = jwt.encode(CLAIMS, KEYS["ec"], "ES256")
tell("cut-short", "refused", good[:-2])
tell("padded", "refused", good + "==")
tell("long", "refused", jwt.encode({**CLAIMS, "x": "x" * 8000}, KEYS["ec"], "ES256"))
