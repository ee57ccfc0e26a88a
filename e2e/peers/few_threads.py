"""A server with as many threads as its first argument says: each answers one request at a time, and works for as many
milliseconds as the path's last part says, and fails where the first is `fail`. Others wait for a thread, for as long
as it takes."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(int(self.path.rsplit("/", 1)[1]) / 1000)
        self.send_response(500 if self.path.startswith("/fail/") else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


class Few(HTTPServer):
    request_queue_size = 1024
    pool = ThreadPoolExecutor(int(sys.argv[1]))

    def process_request(self, request, address):
        self.pool.submit(self.work, request, address)

    def work(self, request, address):
        try:
            self.finish_request(request, address)
        except OSError:
            pass
        finally:
            self.shutdown_request(request)


server = Few(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("listening", server.server_address[1], flush=True)
sys.stdin.read()
