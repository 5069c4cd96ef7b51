#!/usr/bin/env python3
"""Load on a server that speaks OpenAI's interface: time to first token, between tokens and in all, and throughput.

In: a base URL, numbers of clients, requests for each, tokens in and out; `--rate` sends requests at a rate instead of
waiting for answers (an open loop). Out: one line of figures for each number of clients.
"""
import argparse
import asyncio
import json
import random
import time
import urllib.parse


async def ask(url, body):
    start, stamps = time.perf_counter(), []
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    data = json.dumps(body).encode()
    writer.write(f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: {url.hostname}\r\nContent-Type: application/json\r\n"
                 f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    status = int((await reader.readline()).split()[1])
    tokens = 0
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if chunk.get("usage"):
            tokens = chunk["usage"]["completion_tokens"]
        if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
            stamps.append(time.perf_counter())
    writer.close()
    assert status == 200 and stamps, status
    # Some servers give no usage in a stream; they send a chunk for each token.
    return start, stamps, tokens or len(stamps)


def at(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def prompt(rng, n):
    return " ".join(rng.choice(["river", "house", "green", "seven", "cloud", "paper", "night", "stone"]) for _ in range(n))


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--requests", type=int, default=2)
    parser.add_argument("--tokens-in", type=int, default=256)
    parser.add_argument("--tokens-out", type=int, default=128)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--extra", type=json.loads, default={"ignore_eos": True})
    given = parser.parse_args()
    url, rng = urllib.parse.urlparse(given.url), random.Random(1)

    def body():
        return {"model": "", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": given.tokens_out, "temperature": 0,
                "messages": [{"role": "user", "content": prompt(rng, given.tokens_in)}], **given.extra}
    await ask(url, body())
    for n in map(int, given.clients.split(",")):
        async def client():
            return [await ask(url, body()) for _ in range(given.requests)]
        start = time.perf_counter()
        if given.rate:
            tasks = []
            for _ in range(n * given.requests):
                tasks.append(asyncio.create_task(ask(url, body())))
                await asyncio.sleep(rng.expovariate(given.rate))
            found = await asyncio.gather(*tasks)
        else:
            found = sum(await asyncio.gather(*(client() for _ in range(n))), [])
        seconds = time.perf_counter() - start
        first = [stamps[0] - start for start, stamps, _ in found]
        between = [b - a for _, stamps, _ in found for a, b in zip(stamps, stamps[1:])]
        whole = [stamps[-1] - start for start, stamps, _ in found]
        tokens = sum(tokens for *_, tokens in found)
        print(f"{n} clients: {tokens / seconds:.1f} tokens/s; first token p50 {at(first, .5):.3f} s p95 {at(first, .95):.3f} s; "
              f"between tokens p50 {1000 * at(between, .5):.1f} ms p95 {1000 * at(between, .95):.1f} ms; whole p95 {at(whole, .95):.2f} s")

asyncio.run(main())
