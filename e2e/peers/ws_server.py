"""A WebSocket server by other people's library, for stories: it echoes, and does what it is told by a path.

Says "listening PORT", and later with which code each connection was closed. Ends with its standard input.
"""

import asyncio
import sys

import websockets


def say(*words):
    print(*words, flush=True)


async def talk(socket, path):
    try:
        if path == "/closes":
            await socket.close(4002, "the server has had enough")
        elif path == "/pings":
            for number in range(5):
                await asyncio.wait_for(await socket.ping(b"%d" % number), 20)
            await socket.send("five pongs")
        async for message in socket:
            await socket.send(message)
    except websockets.ConnectionClosed:
        pass
    finally:
        await socket.wait_closed()
        say("closed", path, socket.close_code, socket.close_reason or "-")


async def main():
    options = {"ping_interval": None, "max_size": 64 << 20, "compression": "deflate", "origins": None}
    async with websockets.serve(talk, "127.0.0.1", 0, **options) as server:
        say("listening", server.sockets[0].getsockname()[1])
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main())
