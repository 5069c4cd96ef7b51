#!/usr/bin/env python3
"""Hostile requests: bodies that are mutated as JSON and as bytes, and heads that are no HTTP.

In: the address of a server, how many requests, a seed. Out: how many had each status. A 5xx other than 503, an error
without the form of its interface, or a server that no longer answers is a failure.
"""
import collections
import copy
import http.client
import json
import random
import socket
import sys

HOST, PORT, COUNT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
RNG = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}]
BODIES = [
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 1, "temperature": 1, "top_p": 0.5, "stop": ["a"], "logit_bias": {"5": 1}, "n": 1, "seed": 3}),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 1, "stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 1, "tools": TOOLS, "tool_choice": "auto"}),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 1, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]}}}}),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 1, "structured_outputs": {"regex": "[a-z]{1,3}"}}),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 1, "structured_outputs": {"grammar": "start: \"a\" | b\nb: /x+/"}}),
    ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 1, "echo": True, "logprobs": 1}),
    ("/v1/responses", {"input": [{"role": "user", "content": "a"}], "max_output_tokens": 1, "stream": True}),
    ("/v1/messages", {"model": "", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "max_tokens": 1, "stream": True}),
    ("/v1/messages/count_tokens", {"model": "", "messages": HI}),
    ("/api/chat", {"model": "", "messages": HI, "stream": False, "options": {"num_predict": 1}, "format": "json"}),
    ("/api/generate", {"model": "", "prompt": "a", "options": {"num_predict": 1, "stop": ["a"]}}),
    ("/tokenize", {"content": "a", "with_pieces": True}),
    ("/detokenize", {"tokens": [1, 2]}),
    ("/apply-template", {"messages": HI}),
    ("/v1/embeddings", {"input": ["a"]}),
    ("/v1/rerank", {"query": "a", "documents": ["a", {"text": "b"}], "top_n": 1}),
]
ODD = [None, True, -1, 0, 1, 2 ** 31, 2 ** 63, 2 ** 64, -2 ** 63, 1e308, 0.5, "", "a", "\x00", "\u2028", "\U0001f680" * 50, "{", "(", "[[[",
       [], {}, [[]], [{}], {"": {}}, [None], "x" * 5000, ["\ud7ff"], {"type": "object"}, {"$ref": "#"}, {"type": "function"}]
MODEL = None


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for at in range(len(value)):
            yield from places(value[at], (*path, at))


def mutated(body):
    body = copy.deepcopy(body)
    for _ in range(RNG.choice([1, 1, 2, 4])):
        path = RNG.choice(list(places(body)))
        if not path:
            body[RNG.choice(["n", "seed", "x", "suffix", "format", "input", "prompt", "tools"])] = copy.deepcopy(RNG.choice(ODD))
            continue
        inner = body
        for key in path[:-1]:
            inner = inner[key]
        way = RNG.random()
        if way < 0.7:
            inner[path[-1]] = copy.deepcopy(RNG.choice(ODD))
        elif way < 0.85 and isinstance(inner, dict):
            del inner[path[-1]]
        elif isinstance(inner, dict):
            inner[RNG.choice(["", "extra", "type", "role", "content"])] = copy.deepcopy(RNG.choice(ODD))
        if not isinstance(body, dict):
            break
    return body


def short(path, body):
    """Long answers are no part of this."""
    keys = {"/v1/responses": "max_output_tokens", "/v1/chat/completions": "max_tokens", "/v1/completions": "max_tokens", "/v1/messages": "max_tokens"}
    key = keys.get(path)
    if key and (body.get(key) is None or isinstance(body[key], (int, float)) and body[key] > 4):
        body[key] = 2
    if path.startswith("/api/") and isinstance(body.get("options", {}), dict):
        options = body.setdefault("options", {})
        if not isinstance(options.get("num_predict"), int) or options["num_predict"] > 4 or options["num_predict"] < 0:
            options["num_predict"] = 2
    return body


def judge(path, status, text):
    fault = status >= 500 and status != 503
    if status >= 400:
        try:
            fault = fault or "error" not in json.loads(text)
        except ValueError:
            fault = True
    return fault


counts, faults = collections.Counter(), 0
connection = http.client.HTTPConnection(HOST, PORT, timeout=60)
connection.request("GET", "/v1/models")
MODEL = json.loads(connection.getresponse().read())["data"][0]["id"]
for number in range(COUNT):
    path, body = RNG.choice(BODIES)
    body = mutated({**body, "model": MODEL} if "model" in body else body)
    body = short(path, body) if isinstance(body, dict) else body
    data = json.dumps(body).encode()
    if RNG.random() < 0.2:
        data = bytearray(data)
        for _ in range(RNG.randrange(1, 6)):
            data[RNG.randrange(len(data))] = RNG.randrange(256)
        data = bytes(data)
    if RNG.random() < 0.02:
        with socket.create_connection((HOST, PORT), timeout=10) as sock:
            sock.sendall(RNG.choice([b"\x16\x03\x01\x00", b"GET / HTTP/9\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                                     b"A" * 70000, b"GET /%zz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"\r\n" * 50]))
        counts["raw"] += 1
        continue
    try:
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as error:
        faults += 1
        print(f"FAILED: {path}: {error!r}: {data[:300]}")
        connection = http.client.HTTPConnection(HOST, PORT, timeout=60)
        continue
    counts[answer.status] += 1
    if judge(path, answer.status, text):
        faults += 1
        print(f"FAILED: {path}: {answer.status}: {text[:300]}: {data[:300]}")
print(dict(counts))
sys.exit(bool(faults))
