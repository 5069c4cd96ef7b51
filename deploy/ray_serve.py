"""Replicas of `fusebox serve` behind Ray Serve.

In: FUSEBOX_MODEL, and FUSEBOX_COMMAND where the command is not on the path. Each replica is a process of its own on a
free port of loopback; requests and streams are passed on as they are, and a client that leaves closes the request.
Start with `serve run deploy.ray_serve:app`, or import `app`.
"""
import asyncio
import os
import signal
import subprocess
import threading
import ctypes

import httpx
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

DROPPED = {"host", "content-length", "connection", "transfer-encoding"}


def die_with_parent():
    ctypes.CDLL("libc.so.6", use_errno=True).prctl(1, signal.SIGTERM)


@serve.deployment(
    # Continuous batching starves with fewer than the server can compute together.
    max_ongoing_requests=64,
    max_queued_requests=256,
    health_check_period_s=5,
    graceful_shutdown_timeout_s=40,
    autoscaling_config={"min_replicas": 2, "max_replicas": 8, "target_ongoing_requests": 16},
)
class Fusebox:
    def __init__(self):
        command = [os.environ.get("FUSEBOX_COMMAND", "fusebox"), "serve", "--port", "0", "--drain-delay", "0"]
        if model := os.environ.get("FUSEBOX_MODEL"):
            command += ["-m", model]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        line = self.server.stdout.readline()
        if "http://" not in line:
            raise RuntimeError("fusebox serve did not start")
        self.client = httpx.AsyncClient(base_url=line.split()[-1], timeout=None)
        threading.Thread(target=self.end_with_server, daemon=True).start()

    def end_with_server(self):
        # Ray sends requests elsewhere as soon as the process of a replica has gone, but only after several failed checks.
        self.server.wait()
        os._exit(1)

    async def check_health(self):
        for _ in range(600):
            if self.server.poll() is not None:
                raise RuntimeError("fusebox serve has ended")
            if (await self.client.get("/health")).status_code == 200:
                return
            await asyncio.sleep(0.1)
        raise RuntimeError("fusebox serve is not healthy")

    async def __call__(self, request: Request):
        headers = [(name, value) for name, value in request.headers.items() if name not in DROPPED]
        asked = self.client.build_request(
            request.method, httpx.URL(path=request.url.path, query=request.url.query.encode()),
            headers=headers, content=await request.body())
        answer = await self.client.send(asked, stream=True)

        async def body():
            try:
                async for piece in answer.aiter_raw():
                    yield piece
            finally:
                await answer.aclose()
        kept = {name: value for name, value in answer.headers.items() if name not in DROPPED}
        return StreamingResponse(body(), status_code=answer.status_code, headers=kept)

    def __del__(self):
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(40)


app = Fusebox.bind()
