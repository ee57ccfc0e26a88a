"""A service that says who may come in, as others' proxies ask it (forward auth), for stories. The cookie `session` says
what it makes of a question; it tells each question in a line of JSON.

Its end of the input is its end.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


released = threading.Event()


def tell(*words):
    print(*words, flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def session(self):
        for pair in self.headers.get("Cookie", "").split("; "):
            name, _, value = pair.partition("=")
            if name == "session":
                return value
        return None

    def answer(self, status, fields, body=b""):
        self.send_response(status)
        for name, value in fields:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        asked = {"method": self.command, "target": self.path, "fields": self.headers.items(), "port": self.client_address[1]}
        tell("asked", json.dumps(asked))
        session = self.session()
        if self.path == "/release":
            released.set()
            return self.answer(204, [])
        if session == "held":
            released.wait(20)
            session = "ann"
        if session == "ann":
            fields = [("Remote-User", "ann"), ("Remote-Groups", "staff"), ("Remote-Groups", "shop"), ("Remote-Other", "x")]
            return self.answer(200, fields, b"welcome")
        if session == "bob":
            return self.answer(204, [("Remote-User", "bob")])
        if session == "two":
            return self.answer(200, [("Remote-User", "ann"), ("Remote-User", "bob")])
        if session == "banned":
            return self.answer(403, [("Content-Type", "application/json"), ("X-Why", "banned")], b'{"why":"banned"}')
        if session == "untyped":
            return self.answer(403, [], b"<!doctype html><p>no</p>")
        if session == "bytes":
            return self.answer(403, [("X-Where", "caf\xe9")], b"where?")
        if session == "broken":
            return self.answer(500, [], b"oops")
        if session == "long":
            return self.answer(403, [], b"x" * (300 * 1024))
        if session == "slow":
            # Until nobody waits any more.
            try:
                self.connection.recv(1)
            except OSError:
                pass
            return tell("gone")
        if session == "closed":
            self.close_connection = True
            return tell("closed")
        if "text/html" in self.headers.get("Accept", ""):
            login = "https://login.test/?to=" + self.headers["X-Forwarded-Uri"]
            fields = [("Location", login), ("Set-Cookie", "state=1; HttpOnly"), ("Set-Cookie", "more=2")]
            return self.answer(302, fields + [("Content-Type", "text/html")], b"<a>login</a>")
        self.answer(401, [("WWW-Authenticate", 'Basic realm="sso"'), ("WWW-Authenticate", "Bearer")], b"who are you?")

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Clients that reset their connections are no news."""


server = Server(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
tell("listening", server.server_address[1])
sys.stdin.read()
