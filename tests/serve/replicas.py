#!/usr/bin/env python3
"""`deploy/ray_serve.py` as it is: two replicas on this machine, one of which is killed under load.

In: the command and a model. Out: a line for each check that fails. Skipped with a sentence where the package
`ray[serve]` is absent; it is too large to be installed for every check.
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

try:
    import ray
    from ray import serve
except ImportError:
    print("skipped: the Python package ray is not installed here")
    sys.exit()

COMMAND, MODEL = map(os.path.abspath, sys.argv[1:3])
BASE = "http://127.0.0.1:8000"
FAILED = []


def check(name, holds, found=""):
    if not holds:
        FAILED.append(name)
        print(f"FAILED: {name}: {str(found)[:300]}")


def ask(prompt, n):
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(BASE + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        answer = json.load(urllib.request.urlopen(request, timeout=300))
    except (urllib.error.HTTPError, OSError) as error:
        return None, str(error)
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["text"]


def servers():
    found = subprocess.run(["pgrep", "-f", f"^{COMMAND} serve"], capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split()]


def prompts(seed):
    return [3 + (seed * 37 + at * at * 11 + at) % 200 for at in range(90)]


os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
deploy = str(pathlib.Path(__file__).resolve().parents[2] / "deploy")
sys.path.insert(0, deploy)
# Answers must not depend on their company to be compared.
variables = {"FUSEBOX_COMMAND": COMMAND, "FUSEBOX_MODEL": MODEL, "FUSEBOX_FLAGS": "--precise", "PYTHONPATH": deploy}
ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
import ray_serve

serve.run(ray_serve.app)
check("two replicas run", len(servers()) == 2, servers())
first = [ask(prompts(seed), 4) for seed in range(12)]
check("every prompt is answered", all(n is not None for n, _ in first), first)
again = [ask(prompts(seed), 4) for seed in range(12)]
check("a prompt goes where its beginning is", all(n == 89 for n, _ in again), again)

answers, texts = [], {seed: ask(prompts(seed), 48)[1] for seed in range(16)}


def load(seed):
    for _ in range(3):
        answers.append((seed, *ask(prompts(seed), 48)))


with concurrent.futures.ThreadPoolExecutor(16) as pool:
    killer = threading.Timer(0.5, lambda: os.kill(servers()[0], 9))
    killer.start()
    list(pool.map(load, range(16)))
    killer.join()
lost = [answer for answer in answers if answer[1] is None]
check("some were lost at most, those that it computed", len(lost) <= 16, lost)
check("the others say what they say alone", all(text == texts[seed] for seed, n, text in answers if n is not None))
until = time.time() + 60
while len(servers()) < 2 and time.time() < until:
    time.sleep(0.5)
check("another replica takes its place", len(servers()) == 2, servers())
late = [ask(prompts(seed), 4) for seed in range(12)]
check("nothing is lost afterwards", all(n is not None for n, _ in late), late)
serve.shutdown()
ray.shutdown()
until = time.time() + 45
while servers() and time.time() < until:
    time.sleep(0.5)
check("no server is left", not servers(), servers())
print(f"replicas: {len(FAILED)} checks failed, {len(lost)} of {len(answers)} requests lost with the replica that was killed")
sys.exit(bool(FAILED))
