#!/usr/bin/env python3
"""Prompts that begin alike, a pool of pages that is too small, a restart, and answers longer than the context.

In: the command and a model. Out: a line for each check that fails. Servers are started here, with the flags that each
part needs.
"""
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

COMMAND, MODEL = sys.argv[1:3]
FAILED = []


def check(name, holds, found=""):
    if not holds:
        FAILED.append(name)
        print(f"FAILED: {name}: {str(found)[:300]}")


class Server:
    def __init__(self, *flags):
        command = [COMMAND, "serve", "-m", MODEL, "--port", "0", "--drain-delay", "0", "--chat-template", "chatml", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.base = self.process.stdout.readline().strip().removeprefix("listening on ")
        until = time.time() + 60
        while time.time() < until:
            try:
                return urllib.request.urlopen(self.base + "/ready").close()
            except OSError:
                time.sleep(0.05)
        raise SystemExit(f"the server does not become ready: {self.process.stderr.read()}")

    def complete(self, prompt, n, **more):
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, **more}
        request = urllib.request.Request(self.base + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=300))

    def ask(self, prompt, n=4, **more):
        answer = self.complete(prompt, n, **more)
        usage, choice = answer["usage"], answer["choices"][0]
        return usage["prompt_tokens_details"]["cached_tokens"], choice["text"], usage["completion_tokens"]

    def metric(self, name):
        text = urllib.request.urlopen(self.base + "/metrics").read().decode()
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " "))

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        check("it ends well", code == 0, code)
        return self.process.stderr.read()


def tokens(seed, n):
    return [3 + (seed * 37 + at * at * 11 + at) % 200 for at in range(n)]


def conversations(folder):
    server = Server("--parallel", "2", "--precise", "--prompt-cache", folder)
    texts = {}
    for seed in range(5):
        texts[seed] = server.ask(tokens(seed, 90))[1]
    for seed in range(5):
        cached, text, _ = server.ask(tokens(seed, 90))
        check("more conversations than places are known", cached == 89 and text == texts[seed], (cached, text, texts[seed]))
    longer = tokens(0, 90) + tokens(9, 10)
    check("a conversation goes on from its last token", server.ask(longer)[0] == 90)
    other = tokens(1, 80) + tokens(9, 20)
    cached = server.ask(other)[0]
    check("a page that goes on differently is used to there", cached == 80, cached)
    check("a salt finds nothing of others", server.ask(tokens(2, 90), cache_salt="a")[0] == 0)
    check("but its own", server.ask(tokens(2, 90), cache_salt="a")[0] == 89)
    check("who wants no cache computes", server.ask(tokens(2, 90), cache_prompt=False)[0] == 0)
    check("hits are counted", 0.3 < server.metric("fusebox_prefix_cache_hit_ratio") < 0.9)
    check("known pages are counted", server.metric("fusebox_prefix_cache_usage_ratio") > 0)
    said = server.end()
    check("it is written", "pages to" in said, said)
    server = Server("--parallel", "2", "--precise", "--prompt-cache", folder)
    cached, text, _ = server.ask(tokens(3, 90))
    check("it is known after a restart", cached >= 88 and text == texts[3], (cached, text, texts[3]))
    salted = server.ask(tokens(2, 90), cache_salt="a")[0]
    check("what had a salt is not", salted == 0, salted)
    said = server.end()
    check("it is read", "pages from" in said, said)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        with open(path, "r+b") as file:
            file.seek(os.path.getsize(path) // 2)
            file.write(b"damaged")
    server = Server("--parallel", "2", "--precise", "--prompt-cache", folder)
    check("a damaged file is no hindrance", server.ask(tokens(3, 90))[0] == 0)
    said = server.end()
    check("and is told", "without a prefix cache" in said and "damaged" in said, said)


def together():
    system = tokens(4, 128)
    server = Server("--parallel", "8", "--max-batch-tokens", "64", "--precise")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: server.ask(system + tokens(seed, 6)), range(8)))
    computed = server.metric("fusebox_prompt_tokens_total")
    check("a common beginning is computed once", computed <= 128 + 8 * 6 + 64, computed)
    server.end()


def small_pool():
    prompts = [tokens(seed, 70) for seed in range(8)]
    server = Server("--parallel", "8", "--precise")
    alone = [server.ask(prompt, 100)[1] for prompt in prompts]
    server.end()
    # Three pages each are needed in the end. They come in one request, so that none is done before the last begins.
    server = Server("--parallel", "8", "--precise", "--kv-pages", "12")
    crowd = server.complete(prompts, 100)
    texts = [choice["text"] for choice in crowd["choices"]]
    check("nobody is lost", texts == alone and crowd["usage"]["completion_tokens"] == 800, crowd)
    check("somebody was preempted", server.metric("fusebox_preemptions_total") > 0)
    until = time.time() + 3
    while (used := server.metric("fusebox_kv_cache_usage_ratio")) and time.time() < until:
        time.sleep(0.05)
    check("all pages are free again", used == 0, used)
    server.end()
    server = Server("--kv-pages", "2")
    try:
        server.ask(tokens(1, 129))
        check("a prompt longer than the pool is refused", False)
    except urllib.error.HTTPError as error:
        check("by its length", error.code == 400 and json.load(error)["error"]["code"] == "context_length_exceeded")
    server.end()


def sliding():
    flags = ["--parallel", "4", "-c", "256", "--evict", "sliding", "--window", "64"]
    server = Server(*flags)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: server.ask(tokens(seed, 100), 600)[2], range(4)))
    check("answers are longer than the context", found == [600] * 4, found)
    server.end()


with tempfile.TemporaryDirectory() as folder:
    conversations(folder)
together()
small_pool()
sliding()
print(f"prefixes: {len(FAILED)} checks failed")
sys.exit(bool(FAILED))
