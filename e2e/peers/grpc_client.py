"""A gRPC client by other people's library, for stories: does what its first argument says at the address in its second.

A third argument is a CA in PEM, and then it speaks TLS. It ends with 0 when everything was as it should be.
"""

import queue
import sys

import grpc

PATIENCE = 30


class Peer:
    def __init__(self, channel):
        self.call = lambda method: channel.unary_unary("/e2e.Peer/" + method)
        self.unary = channel.unary_unary("/e2e.Peer/Unary")
        self.give = channel.unary_stream("/e2e.Peer/Give")
        self.collect = channel.stream_unary("/e2e.Peer/Collect")
        self.converse = channel.stream_stream("/e2e.Peer/Converse")
        self.fail = channel.unary_unary("/e2e.Peer/Fail")
        self.fail_late = channel.unary_stream("/e2e.Peer/FailLate")
        self.tell = channel.unary_unary("/e2e.Peer/Tell")
        self.hang = channel.unary_stream("/e2e.Peer/Hang")
        self.unknown = channel.unary_unary("/e2e.Peer/Unknown")


def check(got, wanted):
    if got != wanted:
        raise SystemExit(f"{got!r} is not {wanted!r}")


def error_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise SystemExit("it did not fail")


def pattern(length):
    return bytes(number * 7919 >> 3 & 255 for number in range(4096)) * (length // 4096) + b"x" * (length % 4096)


def unary(peer):
    for length in [0, 1, 100, 16_379, 16_384, 65_535, 65_536, 1_000_000]:
        check(peer.unary(pattern(length), timeout=PATIENCE), pattern(length))
    for number in range(50):
        check(peer.unary(b"%d" % number, timeout=PATIENCE), b"%d" % number)


def at_once(peer):
    calls = [peer.unary.future(b"%d" % number, timeout=PATIENCE) for number in range(300)]
    check([call.result() for call in calls], [b"%d" % number for number in range(300)])


def large(peer):
    message = pattern(4 << 20)
    check(peer.unary(message, timeout=PATIENCE) == message, True)
    check(peer.collect(iter([message, message]), timeout=PATIENCE), b"2 %d" % (8 << 20))


def give(peer):
    for count in [0, 1, 500]:
        wanted = [b"message %d" % number for number in range(count)]
        check(list(peer.give(b"%d" % count, timeout=PATIENCE)), wanted)


def collect(peer):
    check(peer.collect(iter([]), timeout=PATIENCE), b"0 0")
    check(peer.collect((b"x" * number for number in range(200)), timeout=PATIENCE), b"200 19900")


def converse(peer):
    """Each message is sent when the answer to the one before has come."""
    said = queue.Queue()
    answers = peer.converse(iter(said.get, None), timeout=PATIENCE)
    for number in range(100):
        said.put(b"%d" % number)
        check(next(answers), b"heard %d" % number)
    said.put(None)
    check(list(answers), [])
    check(answers.code(), grpc.StatusCode.OK)


def fail(peer):
    for words in ["no such thing", "", "100 % of \u00e4\u00f6\u00fc\u20ac\nand a line"]:
        error = error_of(lambda: peer.fail(words.encode(), timeout=PATIENCE))
        check((error.code(), error.details()), (grpc.StatusCode.NOT_FOUND, words))
    error = error_of(lambda: peer.unknown(b"", timeout=PATIENCE))
    check(error.code(), grpc.StatusCode.UNIMPLEMENTED)
    heard = []
    error = error_of(lambda: heard.extend(iter(peer.fail_late(b"", timeout=PATIENCE))))
    check((error.code(), error.details()), (grpc.StatusCode.RESOURCE_EXHAUSTED, "that was all"))


def fail_late(peer):
    answers, heard = peer.fail_late(b"", timeout=PATIENCE), []
    error = error_of(lambda: [heard.append(answer) for answer in answers])
    check(heard, [b"message 0", b"message 1", b"message 2"])
    check(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)


def metadata(peer):
    told = [("told-text", "a, b;c"), ("told-twice", "1"), ("told-twice", "2"), ("told-all-bin", bytes(range(256))), ("told-none-bin", b"")]
    answer, call = peer.tell.with_call(b"x", metadata=told, timeout=PATIENCE)
    check(answer, b"x")
    for prefix, heard in [("before-", call.initial_metadata()), ("after-", call.trailing_metadata())]:
        wanted = sorted((prefix + key, value) for key, value in told)
        check(sorted((key, value) for key, value in heard if key.startswith(prefix)), wanted)


def deadline(peer):
    answers = peer.hang(b"deadline", timeout=1)
    check(next(answers), b"begun")
    check(error_of(lambda: next(answers)).code(), grpc.StatusCode.DEADLINE_EXCEEDED)


def cancel(peer):
    answers = peer.hang(b"cancel")
    check(next(answers), b"begun")
    answers.cancel()
    check(error_of(lambda: next(answers)).code(), grpc.StatusCode.CANCELLED)
    check(peer.unary(b"still here", timeout=PATIENCE), b"still here")


def nobody(peer):
    check(error_of(lambda: peer.unary(b"", timeout=PATIENCE)).code(), grpc.StatusCode.UNAVAILABLE)


def refused(peer):
    """What the engine says itself comes as a status, and in words, as gRPC has them."""
    for method, wanted in {
        "Down": ("UNAVAILABLE", "502 Bad Gateway: connect-refused"),
        "Forbidden": ("PERMISSION_DENIED", "403 Forbidden"),
        "Nowhere": ("UNIMPLEMENTED", "404 Not Found: no-route"),
        "Limited": ("UNAVAILABLE", "429 Too Many Requests: rate-limited"),
        "Long": ("UNKNOWN", "413 Content Too Large: body-too-long"),
        "Silent": ("DEADLINE_EXCEEDED", "504 Gateway Timeout: first-byte-timeout"),
    }.items():
        error = error_of(lambda: peer.call(method)(b"x" * 100, timeout=PATIENCE))
        check((method, error.code().name, error.details()), (method, *wanted))
        told = dict(error.trailing_metadata()) | dict(error.initial_metadata())
        check(told.get("retry-after") is not None, method == "Limited")


def beside(peer):
    """A stream that nobody reads holds back no other."""
    slow = peer.give(b"200000", timeout=PATIENCE)
    check(next(slow), b"message 0")
    for number in range(100):
        check(peer.unary(pattern(10_000), timeout=PATIENCE), pattern(10_000))
    slow.cancel()


def main():
    sizes = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.enable_http_proxy", 0)]
    if len(sys.argv) > 3:
        credentials = grpc.ssl_channel_credentials(open(sys.argv[3], "rb").read())
        channel = grpc.secure_channel(sys.argv[2], credentials, options=sizes)
    else:
        channel = grpc.insecure_channel(sys.argv[2], options=sizes)
    with channel:
        globals()[sys.argv[1]](Peer(channel))


main()
