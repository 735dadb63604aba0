"""ASGI applications that behave well, or in one known way badly.

A test sets ``APP_EVENTS`` to a file, and reads there what the application has come to.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time


def note(event):
    with open(os.environ["APP_EVENTS"], "a", encoding="utf-8") as file:
        file.write(event + "\n")


async def respond(send, body, status=200):
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-length", str(len(body)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": body})


class App:
    """Tells who answers; ``/slow?SECONDS`` takes its time, ``/block?SECONDS`` the loop's."""

    async def started(self):
        pass

    async def ended(self):
        pass

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await self.lifespan(scope, receive, send)
            return
        config = scope["state"]["client_config"]
        if scope["path"] in {"/slow", "/block"}:
            note("request")
            try:
                seconds = float(scope["query_string"])
                if scope["path"] == "/block":
                    time.sleep(seconds)
                else:
                    await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                note("request cancelled")
                raise
        answer = {
            "pid": os.getpid(),
            "index": config["client_index"],
            "loop": type(asyncio.get_running_loop()).__module__,
        }
        await respond(send, json.dumps(answer).encode())

    async def lifespan(self, scope, receive, send):
        await receive()
        assert "client_config" in scope["state"]
        await self.started()
        await send({"type": "lifespan.startup.complete"})
        note("started")
        await receive()
        await self.ended()
        note("ended")
        await send({"type": "lifespan.shutdown.complete"})


class SlowStart(App):
    async def started(self):
        note("starting")
        try:
            await asyncio.sleep(60)
        finally:
            note("cleaned up")


class BlockedStart(App):
    async def started(self):
        note("starting")
        time.sleep(60)


class FailingStart(App):
    async def started(self):
        raise RuntimeError("this application does not want to start")


class HangingEnd(App):
    async def ended(self):
        note("ending")
        await asyncio.sleep(60)


class ThreadThatStays(App):
    async def started(self):
        threading.Thread(target=time.sleep, args=(60,)).start()


plain = App()
slow_start = SlowStart()
blocked_start = BlockedStart()
failing_start = FailingStart()
hanging_end = HangingEnd()
thread_that_stays = ThreadThatStays()


def factory():
    return plain


def broken_factory():
    raise TypeError("a factory's own mistake")


not_an_app = 7
