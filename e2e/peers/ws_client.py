"""A WebSocket client by other people's library, for stories: does what its first argument says at the URL in its second.

A third argument is a CA in PEM, for wss. It ends with 0 when everything was as it should be.
"""

import asyncio
import ssl
import sys

import websockets

PATIENCE = 30


def check(got, wanted):
    if got != wanted:
        raise SystemExit(f"{got!r} is not {wanted!r}")


async def echo(connect):
    """Texts and bytes, from nothing to a megabyte."""
    async with connect("/echo") as socket:
        for message in ["", "hello", "\u00e4\u20ac\U0001f600", b"", b"\x00\xff", "x" * 125, "x" * 126, b"y" * 65_536, b"z" * 1_000_000]:
            await socket.send(message)
            check(await socket.recv() == message, True)


async def fragments(connect):
    """Messages in pieces, the large ones a megabyte each."""
    for piece, count in [(b"a", 1_000), (b"b" * 1_000_000, 8), (b"", 10)]:
        async with connect("/echo") as socket:
            await socket.send([piece] * count)
            check(await socket.recv() == piece * count, True)
    async with connect("/echo") as socket:
        await socket.send(["text ", "in ", "pieces"])
        check(await socket.recv(), "text in pieces")


async def pings(connect):
    async with connect("/echo") as socket:
        for payload in [b"", b"are you?", b"p" * 125]:
            await asyncio.wait_for(await socket.ping(payload), PATIENCE)
        await socket.pong(b"unasked")
        await socket.send("after")
        check(await socket.recv(), "after")
    async with connect("/pings") as socket:
        check(await socket.recv(), "five pongs")


async def closes(connect):
    """A code and a reason, either way."""
    async with connect("/echo") as socket:
        await socket.send("x")
        check(await socket.recv(), "x")
        await socket.close(4001, "the client has had enough")
        check(socket.close_code, 4001)
    async with connect("/closes") as socket:
        await socket.wait_closed()
        check((socket.close_code, socket.close_reason), (4002, "the server has had enough"))


async def vanishes(connect):
    """Ends without a word: no close frame, no FIN in order."""
    socket = await connect("/vanished")
    await socket.send("x")
    check(await socket.recv(), "x")
    socket.transport.abort()


async def idles(connect):
    """Nothing moves, and the engine ends it."""
    async with connect("/echo") as socket:
        await asyncio.wait_for(socket.wait_closed(), PATIENCE)
        check(socket.close_code, 1006)


async def keeps_alive(connect):
    """Pings alone keep it open for several times as long as one in which nothing moves may last."""
    async with connect("/echo") as socket:
        for _ in range(16):
            await asyncio.wait_for(await socket.ping(), PATIENCE)
            await asyncio.sleep(0.2)
        await socket.send("still here")
        check(await socket.recv(), "still here")


async def crowd(connect):
    """A hundred at once, all of them open before the first one speaks."""
    sockets = await asyncio.gather(*(connect("/echo") for _ in range(100)))

    async def talk(number, socket):
        for turn in range(10):
            message = f"{number} {turn} " * 50
            await socket.send(message)
            check(await socket.recv() == message, True)
        await socket.close()

    await asyncio.gather(*(talk(number, socket) for number, socket in enumerate(sockets)))


async def main():
    story, url, *ca = sys.argv[1:]
    options = {"ping_interval": None, "max_size": 64 << 20, "open_timeout": PATIENCE, "close_timeout": PATIENCE}
    if ca:
        options["ssl"] = ssl.create_default_context(cafile=ca[0])
    await asyncio.wait_for(globals()[story](lambda path: websockets.connect(url + path, **options)), 50)


asyncio.run(main())
