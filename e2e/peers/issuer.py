"""An issuer that publishes its keys over https, by other people's library (PyJWT), for stories. The arguments are a PEM
with certificate and key, the issuer's name and the audience.

`/token` is a token by the newest key, `/rotate` makes a new key in place of the old, `/be/WORD` says what becomes of
`/keys` from then on: `well`, `broken`, `elsewhere` (a redirect), `endless` or `rubbish`.

Its end of the input is its end.
"""

import json
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

PEM, ISSUER, AUDIENCE = sys.argv[1:4]
state = {"is": "well", "number": 0, "key": None}


def rotate():
    state["number"] += 1
    state["key"] = rsa.generate_private_key(65537, 2048)


def keys():
    key = json.loads(RSAAlgorithm.to_jwk(state["key"].public_key()))
    key.pop("key_ops", None)
    key.update(kid="key-%d" % state["number"], alg="RS256", use="sig")
    return json.dumps({"keys": [key]}).encode()


def token():
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": now + 600, "iat": now, "sub": "ann"}
    return jwt.encode(claims, state["key"], "RS256", headers={"kid": "key-%d" % state["number"]}).encode()


class Handler(BaseHTTPRequestHandler):
    def answer(self, status, body, *fields):
        self.send_response(status)
        for name, value in fields:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/token":
            return self.answer(200, token())
        if self.path == "/rotate":
            rotate()
            return self.answer(200, b"")
        if self.path.startswith("/be/"):
            state["is"] = self.path[4:]
            return self.answer(200, b"")
        print("asked", state["is"], flush=True)
        if state["is"] == "broken":
            return self.answer(500, b"")
        if state["is"] == "elsewhere":
            return self.answer(302, b"", ("Location", "http://127.0.0.1:1/keys"))
        if state["is"] == "endless":
            return self.answer(200, b" " * (1 << 20))
        if state["is"] == "rubbish":
            return self.answer(200, b'{"keys": []}')
        self.answer(200, keys())

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Clients that go away are no news."""


rotate()
server = Server(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(PEM)
server.socket = context.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("listening", server.server_address[1], flush=True)
sys.stdin.read()
