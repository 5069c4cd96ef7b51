"""Replicas of `fusebox serve` behind Ray Serve.

In: FUSEBOX_MODEL, FUSEBOX_COMMAND where the command is not on the path, and further flags in FUSEBOX_FLAGS.
Each replica is a process of its own on a free port of loopback; requests and streams are passed on as they are, and a
client that leaves closes the request.
Requests whose prompts begin alike go to the same replica, whose prefix cache has that beginning; where it is full, to
the next. Start with `serve run deploy.ray_serve:app`, or import `app`.
"""
import asyncio
import ctypes
import hashlib
import json
import os
import shlex
import signal
import subprocess
import threading

import httpx
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import RequestRouter
from starlette.requests import Request
from starlette.responses import StreamingResponse

DROPPED = {"host", "content-length", "connection", "transfer-encoding"}
# How much of a prompt decides where it goes: about the length of a system prompt.
BEGINNING = 2048


def beginning(body):
    """The first characters of a prompt, whichever the interface."""
    try:
        fields = json.loads(body)
        prompt = [fields.get(name) for name in ("model", "system", "instructions", "messages", "prompt", "input", "content")]
    except (ValueError, AttributeError):
        return ""
    return json.dumps(prompt)[:BEGINNING]


class PrefixRouter(RequestRouter):
    """Ranks replicas by a hash of the prompt's beginning and the replica (rendezvous hashing).

    A beginning has the same order of replicas each time, and one that comes or goes moves its own beginnings only.
    """

    async def choose_replicas(self, candidate_replicas, pending_request=None):
        begins = pending_request.kwargs.get("begins", "") if pending_request else ""
        if not begins:
            return [candidate_replicas]

        def rank(replica):
            return hashlib.sha256(f"{replica.replica_id.unique_id}\n{begins}".encode()).digest()
        return [[replica] for replica in sorted(candidate_replicas, key=rank)]


def die_with_parent():
    ctypes.CDLL("libc.so.6", use_errno=True).prctl(1, signal.SIGTERM)


@serve.deployment(
    # Continuous batching starves with fewer than the server can compute together.
    max_ongoing_requests=64,
    max_queued_requests=256,
    health_check_period_s=5,
    graceful_shutdown_timeout_s=40,
    autoscaling_config={"min_replicas": 2, "max_replicas": 8, "target_ongoing_requests": 16},
    request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
)
class Fusebox:
    def __init__(self):
        command = [os.environ.get("FUSEBOX_COMMAND", "fusebox"), "serve", "--port", "0", "--drain-delay", "0"]
        if model := os.environ.get("FUSEBOX_MODEL"):
            command += ["-m", model]
        command += shlex.split(os.environ.get("FUSEBOX_FLAGS", ""))
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

    async def answer(self, method, path, query, headers, body, begins):
        """The status and the headers of an answer, then its body in pieces; `begins` is for the router."""
        asked = self.client.build_request(method, httpx.URL(path=path, query=query), headers=headers, content=body)
        answer = await self.client.send(asked, stream=True)
        try:
            yield answer.status_code, {name: value for name, value in answer.headers.items() if name not in DROPPED}
            async for piece in answer.aiter_raw():
                yield piece
        finally:
            await answer.aclose()

    def __del__(self):
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(40)


@serve.deployment(max_ongoing_requests=512)
class Front:
    """Reads a request, and passes on the answer of the replica that the router chooses."""

    def __init__(self, replicas):
        self.replicas = replicas.options(stream=True)

    async def __call__(self, request: Request):
        body = await request.body()
        headers = [(name, value) for name, value in request.headers.items() if name not in DROPPED]
        pieces = self.replicas.answer.remote(
            request.method, request.url.path, request.url.query.encode(), headers, body, begins=beginning(body))
        status, kept = await anext(pieces)
        return StreamingResponse(pieces, status_code=status, headers=kept)


app = Front.bind(Fusebox.bind())
