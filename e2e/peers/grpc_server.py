"""A gRPC server by other people's library, for stories: methods that echo, stream, fail and hang.

Says "listening PORT", and later a line for each call that hangs and for each of these that has ended. Ends with its standard input.
With two arguments, a chain and a key in PEM, it speaks TLS.
"""

import sys
import threading
from concurrent import futures

import grpc


def say(*words):
    print(*words, flush=True)


def unary(request, context):
    return request


def give(request, context):
    for number in range(int(request)):
        yield b"message %d" % number


def collect(requests, context):
    count, total = 0, 0
    for request in requests:
        count, total = count + 1, total + len(request)
    return b"%d %d" % (count, total)


def converse(requests, context):
    for request in requests:
        yield b"heard " + request


def fail(request, context):
    context.abort(grpc.StatusCode.NOT_FOUND, request.decode())


def fail_late(request, context):
    for number in range(3):
        yield b"message %d" % number
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "that was all")


def tell(request, context):
    """Gives the client's metadata back, before and after the answer."""
    told = [(key, value) for key, value in context.invocation_metadata() if key.startswith("told-")]
    context.send_initial_metadata([("before-" + key, value) for key, value in told])
    context.set_trailing_metadata([("after-" + key, value) for key, value in told])
    return request


def hang(request, context):
    """Begins to answer, and goes on until the client has had enough."""
    name, ended = request.decode(), threading.Event()

    def end():
        ended.set()
        say("ended", name)

    # A generator is not gone on with when its call has ended meanwhile: what is to be said is not said there.
    context.add_callback(end)
    left = context.time_remaining()
    say("hanging", name, "deadline" if left is not None and left < 60 else "patient")
    yield b"begun"
    if not ended.wait(25):
        say("forgotten", name)


class Methods(grpc.GenericRpcHandler):
    def service(self, call):
        return {
            "/e2e.Peer/Unary": grpc.unary_unary_rpc_method_handler(unary),
            "/e2e.Peer/Give": grpc.unary_stream_rpc_method_handler(give),
            "/e2e.Peer/Collect": grpc.stream_unary_rpc_method_handler(collect),
            "/e2e.Peer/Converse": grpc.stream_stream_rpc_method_handler(converse),
            "/e2e.Peer/Fail": grpc.unary_unary_rpc_method_handler(fail),
            "/e2e.Peer/FailLate": grpc.unary_stream_rpc_method_handler(fail_late),
            "/e2e.Peer/Tell": grpc.unary_unary_rpc_method_handler(tell),
            "/e2e.Peer/Hang": grpc.unary_stream_rpc_method_handler(hang),
        }.get(call.method)


def main():
    sizes = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(32), handlers=[Methods()], options=sizes)
    if len(sys.argv) > 2:
        chain, key = (open(path, "rb").read() for path in sys.argv[1:3])
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, chain)]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    say("listening", port)
    sys.stdin.read()
    server.stop(0)


main()
