"""Asks a server over HTTPS, and checks that plain HTTP on its port is refused.

In: the file with the server's line, and its certificate.
"""

import http.client
import json
import socket
import ssl
import sys
import time


def port_of(said):
    until = time.time() + 60
    while time.time() < until:
        line = open(said).read().strip()
        if line.startswith("listening on https://"):
            return int(line.rsplit(":", 1)[1])
        time.sleep(0.1)
    sys.exit("the server does not listen for HTTPS")


port = port_of(sys.argv[1])
context = ssl.create_default_context(cafile=sys.argv[2])


def ask(method, path, body=None):
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=60)
    connection.request(method, path, body and json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    return response.status, response.read()


until = time.time() + 60
while ask("GET", "/ready")[0] != 200 and time.time() < until:
    time.sleep(0.1)
status, body = ask("POST", "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "stream": True})
assert status == 200 and body.rstrip().endswith(b"data: [DONE]"), (status, body)
with socket.create_connection(("127.0.0.1", port)) as plain:
    plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    plain.settimeout(10)
    answer = b""
    try:
        while more := plain.recv(1000):
            answer += more
    except OSError:
        pass
assert b"HTTP/1.1 200" not in answer, answer
print("https: it answers over TLS, and plain HTTP is refused")
