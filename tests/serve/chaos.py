#!/usr/bin/env python3
"""Clients that misbehave, for a while: they leave, send nonsense, read slowly or not at all.

In: the command, a model, seconds, and the number of clients. Out: how many requests were answered, refused and left.
At the end nothing runs or waits, the memory is what it was, and SIGTERM ends the server in order.
"""
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

COMMAND, MODEL, SECONDS, CLIENTS = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
# The time is parted so that growth is told from what varies.
PARTS = 3
COUNTS = {"answered": 0, "refused": 0, "left": 0, "faults": 0}
LOCK = threading.Lock()


def count(name):
    with LOCK:
        COUNTS[name] += 1


def start():
    server = subprocess.Popen([COMMAND, "serve", "-m", MODEL, "--port", "0", "--chat-template", "chatml", "--drain-delay", "0"], stdout=subprocess.PIPE, text=True)
    port = int(server.stdout.readline().rsplit(":", 1)[1])
    until = time.time() + 60
    while time.time() < until:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready").close()
            return server, port
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the server does not become ready")


def memory(server):
    with open(f"/proc/{server.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))


def body(rng):
    if rng.random() < 0.2:
        return rng.choice([b"", b"{", b'{"messages": 5}', b"\x00" * 99, b'{"messages": [{"role": "user"}]}', b"[" * 9999,
                           json.dumps({"messages": [{"role": "user", "content": "x" * rng.randrange(99999)}], "max_tokens": 1}).encode()])
    words = " ".join(rng.choice(["the", "sea", "cat", "house", "tree"]) for _ in range(rng.randrange(1, 60)))
    return json.dumps({"messages": [{"role": "user", "content": words}], "max_tokens": rng.randrange(1, 60), "stream": rng.random() < 0.6,
                       "n": rng.choice([1, 1, 1, 2]), "temperature": rng.choice([0, 1])}).encode()


def one(port, rng):
    sock = socket.create_connection(("127.0.0.1", port), timeout=120)
    data = body(rng)
    sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    way = rng.random()
    if way < 0.25:
        time.sleep(rng.random() * 0.3)
        sock.close()
        return count("left")
    text = b""
    while piece := sock.recv(65536):
        text += piece
        if way < 0.35:
            time.sleep(0.05)
    sock.close()
    status = int(text.split(b" ", 2)[1])
    whole = b"finish_reason" in text and (b"[DONE]" in text or b"text/event-stream" not in text)
    if status == 200 and whole:
        count("answered")
    elif status in (400, 413, 415, 429, 503):
        count("refused")
    else:
        count("faults")
        print("a fault:", text[:300], text[-200:])


def client(port, until, seed):
    rng = random.Random(seed)
    while time.time() < until:
        try:
            one(port, rng)
        except OSError as error:
            count("faults")
            print("a fault:", error)


def metric(port, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return next(float(line.split()[1]) for line in answer.read().decode().splitlines() if line.startswith(name + " "))


server, port = start()
used = []
for part in range(PARTS):
    until = time.time() + SECONDS / PARTS
    threads = [threading.Thread(target=client, args=(port, until, 1000 * part + seed)) for seed in range(CLIENTS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    until = time.time() + 5
    while metric(port, "fusebox_requests_running") + metric(port, "fusebox_requests_waiting") and time.time() < until:
        time.sleep(0.05)
    used.append(memory(server))
left = metric(port, "fusebox_requests_running") + metric(port, "fusebox_requests_waiting")
server.send_signal(signal.SIGTERM)
code = server.wait(timeout=40)
# What a server keeps for the next requests, and what the allocator has not returned yet, is no leak: a leak grows in
# every part.
growth = all(now - before > max(0.02 * before, 32_000) for before, now in zip(used, used[1:]))
print(f"{COUNTS}; {left:.0f} requests left; memory in kB {used}; exit code {code}")
sys.exit(bool(COUNTS["faults"] or left or code or not COUNTS["answered"] or growth))
