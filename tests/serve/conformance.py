#!/usr/bin/env python3
"""Checks a running server over plain HTTP: shapes, fields, streams to the byte, refusals, cancellation.

In: the address of a server whose model has a chat template. Out: a line for each check that fails, and their number.
Nothing but Python's own library is used, so it runs wherever there is Python.
"""
import concurrent.futures
import http.client
import json
import socket
import sys
import time

HOST, PORT = sys.argv[1], int(sys.argv[2])
FAILED, DONE = [], 0


def check(name, holds, found=""):
    global DONE
    DONE += 1
    if not holds:
        FAILED.append(name)
        print(f"FAILED: {name}: {str(found)[:300]}")


def ask(method, path, body=None, headers=None, raw=None):
    connection = http.client.HTTPConnection(HOST, PORT, timeout=120)
    data = raw if raw is not None else None if body is None else json.dumps(body)
    given = {"Content-Type": "application/json"} if data is not None else {}
    given.update(headers or {})
    connection.request(method, path, data, {k: v for k, v in given.items() if v is not None})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, dict((k.lower(), v) for k, v in response.getheaders()), text


def post(path, body, **more):
    status, headers, text = ask("POST", path, body, **more)
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def get(path):
    status, _, text = ask("GET", path)
    return status, json.loads(text)


def events(path, body):
    status, headers, text = ask("POST", path, body)
    assert status == 200, (status, text)
    found = []
    for event in text.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in event.split("\n") if ": " in line)
        if "data" in lines:
            data = lines["data"]
            found.append((lines.get("event"), None if data == "[DONE]" else json.loads(data)))
    return headers, text, found


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Say hello to the world in one sentence."}]


def chat(**fields):
    return {"messages": HI, "temperature": 0, "max_tokens": 12, **fields}


def basics():
    status, body = get("/health")
    check("health", status == 200 and body == {"status": "ok"}, body)
    ours = ["/v1/health", "/ready", "/version", "/props", "/slots", "/lora-adapters"]
    for path in ours + ["/api/version", "/api/tags", "/api/ps"]:
        check(path, get(path)[0] == 200)
    status, models = get("/v1/models")
    name = models["data"][0]["id"]
    check("models", models["object"] == "list" and models["data"][0]["object"] == "model", models)
    check("one model", get("/v1/models/" + name)[1]["id"] == name)
    check("no model", get("/v1/models/none")[0] == 404)
    status, headers, text = ask("GET", "/metrics")
    check("metrics", b"# TYPE fusebox_generation_tokens_total counter" in text and b"llamacpp:" in text)
    check("ollama is told", ask("GET", "/")[2] == b"Ollama is running")
    status, headers, page = ask("GET", "/", headers={"Accept": "text/html"})
    check("page", b"<!doctype html>" in page and "content-security-policy" in headers)
    status, headers, _ = ask("GET", CHAT)
    check("method", status == 405 and headers.get("allow") == "POST", headers)
    status, headers, text = ask("GET", "/nowhere")
    check("path", status == 404 and "error" in json.loads(text))
    status, headers, _ = ask("GET", "/health", headers={"X-Request-Id": "abc"})
    check("request id", headers.get("x-request-id") == "abc", headers)
    return name


def refusals():
    cases = [
        ("unknown field", CHAT, chat(bogus=1), 400, "bogus"),
        ("no messages", CHAT, {"max_tokens": 1}, 400, "messages"),
        ("empty messages", CHAT, chat(messages=[]), 400, "messages"),
        ("role", CHAT, chat(messages=[{"role": "x", "content": "a"}]), 400, "messages[0].role"),
        ("image", CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400, None),
        ("temperature", CHAT, chat(temperature="hot"), 400, "temperature"),
        ("temperature below", CHAT, chat(temperature=-1), 400, "temperature"),
        ("top_p", CHAT, chat(top_p=2), 400, "top_p"),
        ("n", CHAT, chat(n=0), 400, "n"),
        ("max_tokens", CHAT, chat(max_tokens=0), 400, "max_tokens"),
        ("max_tokens half", CHAT, chat(max_tokens=5.5), 400, "max_tokens"),
        ("stop", CHAT, chat(stop=""), 400, "stop"),
        ("stop kind", CHAT, chat(stop=5), 400, "stop"),
        ("top_logprobs", CHAT, chat(top_logprobs=2), 400, "top_logprobs"),
        ("top_logprobs range", CHAT, chat(logprobs=True, top_logprobs=99), 400, "top_logprobs"),
        ("bias id", CHAT, chat(logit_bias={"99999999": 1}), 400, "logit_bias"),
        ("bias value", CHAT, chat(logit_bias={"1": 1000}), 400, "logit_bias"),
        ("stream options", CHAT, chat(stream_options={"include_usage": True}), 400, "stream_options"),
        ("response format", CHAT, chat(response_format={"type": "xml"}), 400, "response_format.type"),
        ("functions", CHAT, chat(functions=[{}]), 400, "functions"),
        ("tool choice", CHAT, chat(tool_choice="required"), 400, "tool_choice"),
        ("tool type", CHAT, chat(tools=[{"type": "x"}]), 400, "tools[0].type"),
        ("template", CHAT, chat(chat_template="{{ 1 }}"), 400, "chat_template"),
        ("store", CHAT, chat(store=True), 400, "store"),
        ("model", CHAT, chat(model="none"), 404, "model"),
        ("prompt", TEXT, {"max_tokens": 1}, 400, "prompt"),
        ("prompt kind", TEXT, {"prompt": {"a": 1}}, 400, "prompt"),
        ("prompt ids", TEXT, {"prompt": [99999999]}, 400, "prompt"),
        ("best_of", TEXT, {"prompt": "a", "best_of": 3}, 400, "best_of"),
        ("suffix", TEXT, {"prompt": "a", "suffix": "b"}, 400, "suffix"),
        ("previous response", "/v1/responses", {"input": "a", "previous_response_id": "x"}, 400, "previous_response_id"),
        ("hosted tool", "/v1/responses", {"input": "a", "tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
        ("schema keyword", CHAT, chat(response_format={"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"type": "array", "uniqueItems": True}}}), 400, "response_format"),
    ]
    for name, path, body, status, param in cases:
        found, answer = post(path, body)
        error = answer.get("error") if isinstance(answer, dict) else None
        holds = found == status and isinstance(error, dict) and error.get("message") and error.get("type")
        check("refused: " + name, holds and (param is None or error["param"] == param), (found, answer))
    for raw in [b"", b"{", b"[]", b"null", b'{"messages": NaN}', b"\xff", b"[" * 100000, b'{"a": "\\ud800"}']:
        status, _, text = ask("POST", CHAT, raw=raw)
        check(f"body {raw[:12]}", status == 400, (status, text))
    check("kind", ask("POST", CHAT, chat(), headers={"Content-Type": "text/plain"})[0] == 415)
    check("origin", ask("POST", CHAT, chat(), headers={"Origin": "http://evil.example"})[0] == 403)
    check("host", ask("GET", "/v1/models", headers={"Host": "evil.example"})[0] == 403)
    check("length", ask("POST", CHAT, raw=b"", headers={"Content-Length": str(1 << 40)})[0] == 413)
    status, body = post(CHAT, chat(messages=[{"role": "user", "content": "word " * 200000}]))
    error = body["error"]
    check("too long", status == 400 and error["code"] == "context_length_exceeded" and error["n_ctx"] > 0, body)
    neutral = chat(n=1, logprobs=False, store=False, tools=[], user="u", metadata={}, seed=None, stop=None)
    check("neutral fields", post(CHAT, neutral)[0] == 200)


def whole_and_streams():
    status, body = post(CHAT, chat())
    choice = body["choices"][0]
    check("chat", choice["message"]["role"] == "assistant" and body["id"].startswith("chatcmpl-"), body)
    usage = body["usage"]
    check("usage", usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage)
    whole = choice["message"]["content"]
    headers, text, found = events(CHAT, chat(stream=True, stream_options={"include_usage": True}))
    check("stream kind", headers["content-type"].startswith("text/event-stream"), headers)
    check("stream ends", text.endswith(b"data: [DONE]\n\n") and b"\r" not in text)
    chunks = [data for _, data in found if data]
    check("one id", len({chunk["id"] for chunk in chunks}) == 1)
    check("usage last", chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0, chunks[-1])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    check("role first", deltas[0] == {"role": "assistant", "content": ""}, deltas[0])
    check("role once", sum("role" in delta for delta in deltas) == 1)
    check("last delta", deltas[-1] == {} and chunks[-2]["choices"][0]["finish_reason"] == choice["finish_reason"])
    check("stream is whole", "".join(delta.get("content", "") for delta in deltas) == whole, (whole, deltas))
    check("again", post(CHAT, chat())[1]["choices"][0]["message"]["content"] == whole)
    cached = post(CHAT, chat())[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    check("cached", cached > 0, cached)
    status, body = post(CHAT, chat(max_tokens=3))
    check("length", body["choices"][0]["finish_reason"] == "length" and body["usage"]["completion_tokens"] == 3, body)
    seeded = chat(temperature=1, seed=7, max_tokens=16)
    check("seed", post(CHAT, seeded)[1]["choices"] == post(CHAT, seeded)[1]["choices"])
    status, body = post(CHAT, chat(n=3, temperature=1, seed=1))
    check("choices", [choice["index"] for choice in body["choices"]] == [0, 1, 2], body)
    _, _, found = events(CHAT, chat(n=2, stream=True))
    check("stream choices", {data["choices"][0]["index"] for _, data in found if data} == {0, 1})
    stop = whole[4:6]
    status, body = post(CHAT, chat(stop=[stop]))
    text = body["choices"][0]["message"]["content"]
    check("stop", text == whole[: whole.index(stop)] and body["choices"][0]["finish_reason"] == "stop", (text, whole))
    _, _, found = events(CHAT, chat(stop=[stop], stream=True))
    streamed = "".join(data["choices"][0]["delta"].get("content", "") for _, data in found if data)
    check("stop streamed", streamed == text, (streamed, text))
    status, body = post(CHAT, chat(logprobs=True, top_logprobs=3))
    entries = body["choices"][0]["logprobs"]["content"]
    check("logprobs", all(len(entry["top_logprobs"]) == 3 for entry in entries), entries[:1])
    joined = bytes(sum((entry["bytes"] for entry in entries), [])).decode()
    check("logprobs join", joined.strip() == body["choices"][0]["message"]["content"].strip(), joined)
    check("greedy is best", all(entry["token"] == entry["top_logprobs"][0]["token"] for entry in entries))
    banned = post("/tokenize", {"content": whole})[1]["tokens"]
    body = post(CHAT, chat(logit_bias={str(token): -100 for token in banned}))[1]
    after = post("/tokenize", {"content": body["choices"][0]["message"]["content"]})[1]["tokens"]
    check("banned", banned[0] not in after, (banned, after))
    more = [*HI, {"role": "assistant", "content": whole[:5]}]
    check("prefill", post(CHAT, chat(messages=more))[0] == 200)
    both = chat(messages=more, add_generation_prompt=True, continue_final_message=True)
    check("prefill excluded", post(CHAT, both)[0] == 400)


def completions():
    status, body = post(TEXT, {"prompt": "Once upon a time", "temperature": 0})
    check("completion", body["object"] == "text_completion" and body["usage"]["completion_tokens"] <= 16, body)
    tokens = post("/tokenize", {"content": "Once upon a time, there was", "add_special": True})[1]["tokens"]
    scored = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True, "seed": 1}
    status, body = post(TEXT, scored)
    scores = body["choices"][0]["logprobs"]
    n = len(tokens) + body["usage"]["completion_tokens"]
    check("echo", len(scores["token_logprobs"]) == n, scores)
    check("echo first", scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None)
    holds = all(token in top for token, top in zip(scores["tokens"][1:], scores["top_logprobs"][1:]))
    check("echo given beside top", holds, scores)
    plain = {**scored, "max_tokens": 0}
    body = post(TEXT, plain)[1]
    check("echo alone", len(body["choices"][0]["logprobs"]["tokens"]) == len(tokens), body)
    check("scores again", body["choices"][0]["logprobs"]["token_logprobs"][1:] == scores["token_logprobs"][1:len(tokens)])
    status, body = post(TEXT, {"prompt": ["a b", [5, 6]], "n": 2, "max_tokens": 2, "temperature": 0})
    check("batch", [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3], body)
    _, _, found = events(TEXT, {"prompt": "The sea", "stream": True, "max_tokens": 4, "temperature": 0})
    text = "".join(data["choices"][0]["text"] for _, data in found if data)
    whole = post(TEXT, {"prompt": "The sea", "max_tokens": 4, "temperature": 0})[1]["choices"][0]["text"]
    check("completion streamed", text == whole, (text, whole))
    pieces = post("/tokenize", {"content": "héllo 🚀", "with_pieces": True})[1]["tokens"]
    check("pieces", all("id" in piece and "piece" in piece for piece in pieces), pieces)
    ids = [piece["id"] for piece in pieces]
    check("detokenize", post("/detokenize", {"tokens": ids})[1]["content"].strip() == "héllo 🚀")
    info = get("/tokenizer_info")[1]
    eos = post("/tokenize", {"prompt": info["eos_token"], "add_special_tokens": False})[1]["tokens"]
    check("tokenizer", len(eos) == 1 and post("/detokenize", {"tokens": eos})[1]["prompt"] == info["eos_token"], (info, eos))
    prompt = post("/apply-template", {"messages": HI})[1]["prompt"]
    check("template", HI[0]["content"] in prompt)
    count = len(post("/tokenize", {"content": prompt})[1]["tokens"])
    check("count", post(CHAT, chat(max_tokens=1))[1]["usage"]["prompt_tokens"] == count)


TOOL = {"name": "get_weather", "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}},
                       "required": ["city"], "additionalProperties": False}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["name", "age"], "additionalProperties": False}


def structured():
    format = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    body = post(CHAT, chat(response_format=format, max_tokens=160))[1]
    value = json.loads(body["choices"][0]["message"]["content"])
    check("schema", set(value) == {"name", "age"} and isinstance(value["age"], int), value)
    body = post(CHAT, chat(structured_outputs={"choice": ["red", "green"]}))[1]
    check("choice", body["choices"][0]["message"]["content"] in ("red", "green"), body)
    body = post(CHAT, chat(guided_regex="[0-9]{3}-[a-c]{2}"))[1]
    check("regex", len(body["choices"][0]["message"]["content"]) == 6, body)
    body = post(CHAT, chat(structured_outputs={"grammar": 'start: "yes" | "no"'}))[1]
    check("lark", body["choices"][0]["message"]["content"] in ("yes", "no"), body)
    check("bad regex", post(CHAT, chat(guided_regex="("))[0] == 400)
    tools = [{"type": "function", "function": TOOL}]
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ["required", named]:
        wanted = chat(tools=tools, tool_choice=choice, max_tokens=160, parallel_tool_calls=False)
        body = post(CHAT, wanted)[1]
        message = body["choices"][0]["message"]
        call = message["tool_calls"][0]
        arguments = json.loads(call["function"]["arguments"])
        check("tool call", call["function"]["name"] == "get_weather" and set(arguments) == {"city"}, body)
        check("tool reason", body["choices"][0]["finish_reason"] == "tool_calls" and message["content"] is None, body)
        _, _, found = events(CHAT, {**wanted, "stream": True})
        deltas = [data["choices"][0]["delta"] for _, data in found if data]
        calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        name = "".join(call["function"].get("name", "") for call in calls)
        text = "".join(call["function"].get("arguments", "") for call in calls)
        check("tool streamed", name == "get_weather" and text == call["function"]["arguments"], calls)
        check("tool id once", sum("id" in call for call in calls) == 1, calls)
    history = [*HI, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
    check("tool result", post(CHAT, chat(messages=history, tools=tools))[0] == 200)


def others():
    name = get("/v1/models")[1]["data"][0]["id"]
    wanted = {"model": name, "max_tokens": 8, "messages": HI, "temperature": 0}
    status, body = post("/v1/messages", wanted)
    check("anthropic", status == 200 and body["type"] == "message" and body["content"][0]["type"] == "text", body)
    _, _, found = events("/v1/messages", {**wanted, "stream": True})
    names = [event for event, _ in found]
    check("anthropic events", names[:2] == ["message_start", "content_block_start"] and names[-2:] == ["message_delta", "message_stop"], names)
    check("anthropic names", all(event == data["type"] for event, data in found))
    streamed = "".join(data["delta"]["text"] for _, data in found if data["type"] == "content_block_delta")
    check("anthropic streamed", streamed == body["content"][0]["text"])
    status, count = post("/v1/messages/count_tokens", {"model": name, "messages": HI})
    usage = body["usage"]
    check("anthropic count", list(count) == ["input_tokens"] and count["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"], (count, usage))
    status, body = post("/v1/messages", {"model": name, "messages": HI})
    check("anthropic error", status == 400 and body["type"] == "error" and body["error"]["type"] == "invalid_request_error", body)
    tools = [{"name": "get_weather", "input_schema": TOOL["parameters"]}]
    body = post("/v1/messages", {**wanted, "tools": tools, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 160})[1]
    check("anthropic tool", body["stop_reason"] == "tool_use" and isinstance(body["content"][-1]["input"], dict), body)
    status, body = post("/api/chat", {"model": name, "messages": HI, "stream": False, "options": {"temperature": 0, "num_predict": 8}})
    check("ollama", body["done"] is True and body["message"]["content"] and body["eval_count"] <= 8, body)
    status, headers, text = ask("POST", "/api/chat", {"model": name, "messages": HI, "options": {"temperature": 0, "num_predict": 8}})
    lines = [json.loads(line) for line in text.decode().splitlines()]
    check("ollama lines", headers["content-type"] == "application/x-ndjson" and lines[-1]["done"] and not lines[0]["done"], lines)
    check("ollama streamed", "".join(line["message"]["content"] for line in lines) == body["message"]["content"])
    body = post("/api/generate", {"model": name, "prompt": "Hi", "stream": False, "options": {"num_predict": 4}})[1]
    check("ollama generate", body["done"] and "response" in body, body)
    check("ollama load", post("/api/generate", {"model": name, "stream": False})[1]["done_reason"] == "load")
    check("ollama show", "model_info" in post("/api/show", {"model": name})[1])
    check("ollama option", post("/api/chat", {"model": name, "messages": HI, "options": {"mirostat": 2}})[0] == 400)
    check("ollama context", post("/api/chat", {"model": name, "messages": HI, "options": {"num_ctx": 10**9}})[0] == 400)
    body = post("/v1/responses", {"input": "Say hello.", "max_output_tokens": 6, "temperature": 0})[1]
    check("responses", body["object"] == "response" and body["output"][0]["content"][0]["type"] == "output_text", body)
    _, _, found = events("/v1/responses", {"input": "Say hello.", "max_output_tokens": 6, "temperature": 0, "stream": True})
    data = [data for _, data in found]
    check("responses numbers", [event["sequence_number"] for event in data] == list(range(len(data))))
    check("responses order", [event["type"] for event in data[:4]] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"], data[:4])
    check("responses end", data[-1]["type"] in ("response.completed", "response.incomplete"), data[-1])
    text = "".join(event["delta"] for event in data if event["type"] == "response.output_text.delta")
    check("responses text", text == data[-1]["response"]["output"][0]["content"][0]["text"] == body["output"][0]["content"][0]["text"])
    status, body = post("/v1/rerank", {"query": "dog", "documents": ["A dog.", "A car."], "top_n": 1})
    can_rank = status == 200 and len(body["results"]) == 1 and 0 <= body["results"][0]["relevance_score"] <= 1
    check("rerank", can_rank or (status == 400 and "cannot rank" in body["error"]["message"]), body)
    check("rerank refuses", post("/v1/rerank", {"query": "dog", "documents": [1]})[0] == 400)
    status, body = post("/v1/embeddings", {"input": "x"})
    check("embeddings", status == 200 or (status == 400 and "--pooling" in body["error"]["message"]), body)


def running():
    _, _, text = ask("GET", "/metrics")
    values = dict(line.split(" ") for line in text.decode().splitlines() if line.startswith("fusebox_requests_"))
    return float(values["fusebox_requests_running"]) + float(values["fusebox_requests_waiting"])


def leave(body, after, how):
    sock = socket.create_connection((HOST, PORT))
    data = json.dumps(body).encode()
    sock.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    time.sleep(after)
    if how == "shutdown":
        sock.shutdown(socket.SHUT_WR)
    else:
        sock.close()
    return sock


def cancellation():
    long = chat(max_tokens=2000, ignore_eos=True)
    for stream in [True, False]:
        for how in ["close", "shutdown"]:
            sock = leave({**long, "stream": stream}, 0.3, how)
            until = time.time() + 3
            while running() > 0 and time.time() < until:
                time.sleep(0.05)
            check(f"gone within three seconds: stream {stream}, {how}", running() == 0)
            sock.close()
    with concurrent.futures.ThreadPoolExecutor(17) as pool:
        alone = post(CHAT, chat(max_tokens=10))[1]["choices"][0]["message"]["content"]
        stay = [pool.submit(post, CHAT, chat(max_tokens=10)) for _ in range(15)]
        leave({**long, "stream": True}, 0.1, "close")
        texts = [future.result()[1] for future in stay]
    check("one leaves and fifteen stay", all("choices" in text and text["choices"][0]["message"]["content"] for text in texts), texts)
    same = sum(text["choices"][0]["message"]["content"] == alone for text in texts)
    print(f"{same} of 15 answers in a crowd are those of one alone")


for part in [basics, refusals, whole_and_streams, completions, structured, others, cancellation]:
    try:
        part()
    except Exception as error:  # A check that cannot go on has failed.
        check(part.__name__, False, repr(error))
print(f"{DONE - len(FAILED)} of {DONE} checks hold")
sys.exit(bool(FAILED))
