"""Faults from outside: a disk that is full, a process that is killed, memory that ends, others at the same files.

usage: check.py FUSEBOX [NAME...]

Whatever happens, a command gives its answer, or one sentence and exit code 2; what was there stays, or the new file is
whole; and nothing unfinished is left, but by a kill. `nth_call.c` makes the n-th call that changes a file fail or end
the process, for every n. The model is that of the repository; everything lies in a folder of its own.
"""

import hashlib
import http.server
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent.parent / "assets/story.gguf"
COMMAND = Path(sys.argv[1]).resolve()
WORK = Path(tempfile.mkdtemp(prefix="fusebox-faults-"))
# Every n-th call is tried while there are few, then a sample of them.
MOST_CALLS = 24
FAULTS = []


class Run:
    """What came of a command."""

    def __init__(self, arguments, env=None, limit=None, timeout=60, **more):
        own = {**os.environ, "FUSEBOX_CACHE": str(WORK / "programs"), **(env or {})}
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            own.pop(name, None)
        set_limit = (lambda: resource.setrlimit(*limit)) if limit else None
        more.setdefault("stdout", subprocess.PIPE)
        more.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run(
            [COMMAND, *map(str, arguments)], env=own, stderr=subprocess.PIPE, timeout=timeout, preexec_fn=set_limit, **more
        )
        self.code, self.out, self.error = done.returncode, done.stdout or b"", done.stderr.decode(errors="replace")
        self.line = " ".join(map(str, arguments[:1]))


def check(holds, what):
    if not holds:
        FAULTS.append(what)
        print(f"  FAULT: {what}", flush=True)


def is_refusal(run, *names):
    """Exit code 2 and one sentence that names what it is about; notes may precede it."""
    last = run.error.strip().split("\n")[-1]
    return run.code == 2 and last.startswith("fusebox: ") and "panicked" not in run.error and all(n in last for n in names)


def parts(folder):
    return [str(path) for path in Path(folder).rglob("*") if ".part" in path.name]


def sum_of(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if Path(path).exists() else None


def preloaded(library, does, nth=None, count=None):
    env = {"LD_PRELOAD": str(library), "NTH_DOES": does}
    env.update({"NTH_CALL": str(nth)} if nth else {})
    env.update({"NTH_COUNT": str(count)} if count else {})
    return env


def calls_of(library, arguments, env):
    """The numbers of the calls that are tried, and how many a run makes."""
    count = WORK / "count"
    count.unlink(missing_ok=True)
    run = Run(arguments, {**env, **preloaded(library, "count", count=count)})
    check(run.code == 0, f"{run.line} with all calls counted: {run.code} {run.error}")
    n = count.stat().st_size if count.exists() else 0
    numbers = list(range(1, n + 1))
    if n > MOST_CALLS:
        step = (n - 1) / (MOST_CALLS - 1)
        numbers = sorted({round(1 + step * i) for i in range(MOST_CALLS)})
    return numbers, n


def compiled():
    """The library that makes calls fail, or nothing where there is no compiler."""
    library = WORK / "nth_call.so"
    for compiler in ("cc", "gcc", "clang"):
        if shutil.which(compiler):
            subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "nth_call.c", "-ldl"], check=True)
            return library
    return None


# Each of the next writes files: its name, arguments, what it leaves, and what is put there before.


def quantize():
    out = WORK / "q/out.gguf"
    return ["quantize", MODEL, out, "Q4_0", "-t", "1"], {}, out


def save():
    out = WORK / "s/prompt.fbkv"
    return ["run", "-m", MODEL, "-p", "Once upon a time", "-n", "2", "-t", "1", "--prompt-cache", out], {}, out


def logits():
    out = WORK / "l/out.npy"
    return ["logits", "-m", MODEL, "--tokens", "1,2,3", "--all", "-t", "1", "-o", out], {}, out


def pull(hub):
    home = WORK / "hub"
    env = {"HF_HOME": str(home), "HF_ENDPOINT": hub}
    return ["pull", "test/story"], env, home


def whole(made, out, env):
    """Whether what a command leaves is whole: a file, or a model that the hub's cache has."""
    if out.is_dir() or out.name == "hub":
        return Run(["ls"], env).out.count(b"test/story") == 1
    return sum_of(out) == made


def clear(out):
    if out.is_dir():
        shutil.rmtree(out)
    out.unlink(missing_ok=True)
    (out if out.name == "hub" else out.parent).mkdir(parents=True, exist_ok=True)


def every_call(library, name, job):
    arguments, env, out = job
    clear(out)
    # What is compiled once and kept is no part of what the command does.
    Run(arguments, env)
    clear(out)
    numbers, n = calls_of(library, arguments, env)
    made = sum_of(out) if out.is_file() else None
    own = out if out.is_dir() else out.parent
    for nth in numbers:
        clear(out)
        run = Run(arguments, {**env, **preloaded(library, "full", nth)})
        is_done = run.code == 0 and whole(made, out, env)
        check(is_done or is_refusal(run), f"{name}, disk full from call {nth} of {n}: {run.code} {run.error.strip()}")
        check(not parts(own), f"{name}, disk full from call {nth} of {n} leaves {parts(own)}")
        check(run.code == 0 or out.is_dir() or not out.exists(), f"{name}, disk full from call {nth} of {n}: half a file")
    killed = 0
    for nth in numbers:
        clear(out)
        run = Run(arguments, {**env, **preloaded(library, "kill", nth)})
        killed += run.code == -signal.SIGKILL
        # A command whose data come over a network may be done in fewer calls than at first.
        is_done = run.code == 0 and whole(made, out, env)
        check(run.code == -signal.SIGKILL or is_done, f"{name}, killed at call {nth} of {n}: {run.code}")
        check(out.is_dir() or not out.exists() or sum_of(out) == made, f"{name}, killed at call {nth} of {n}: half a file")
        again = Run(arguments, env)
        is_good = again.code == 0 and whole(made, out, env)
        check(is_good, f"{name}, after a kill at call {nth} of {n}: {again.code} {again.error.strip()}")
    check(2 * killed > len(numbers), f"{name}: {killed} of {len(numbers)} kills came before the command was done")
    print(f"{name}: {len(numbers)} of {n} calls, each with a full disk and killed", flush=True)


def what_is_replaced_stays(library):
    arguments, env, out = quantize()
    clear(out)
    check(Run([*arguments[:3], "F16", "-t", "1"], env).code == 0, "quantize to F16")
    before = sum_of(out)
    numbers, n = calls_of(library, ["quantize", MODEL, out.with_name("other.gguf"), "Q4_0", "-t", "1"], env)
    for does, nth in [("full", nth) for nth in numbers[::4]] + [("kill", nth) for nth in numbers[::4]]:
        run = Run(arguments, {**env, **preloaded(library, does, nth)})
        if run.code != 0:
            check(sum_of(out) == before, f"quantize over a file, {does} at call {nth} of {n}: the file has changed")
    print("quantize: the file that was to be replaced stays", flush=True)


def programs(library):
    """The program cache may fail as it likes: the answer is the same."""
    arguments = ["run", "-m", MODEL, "--tokens", "1,2,3", "-n", "6", "-t", "1", "--temp", "0"]
    want = Run(arguments).out
    cache = WORK / "cold"
    env = {"FUSEBOX_CACHE": str(cache)}
    shutil.rmtree(cache, ignore_errors=True)
    numbers, n = calls_of(library, arguments, env)
    for nth in numbers[:12]:
        shutil.rmtree(cache, ignore_errors=True)
        run = Run(arguments, {**env, **preloaded(library, "full", nth)})
        check((run.code, run.out) == (0, want), f"cache, disk full from call {nth} of {n}: {run.code} {run.error}")
        check(not cache.exists() or not parts(cache), f"cache, disk full from call {nth} of {n}: parts are left")
        shutil.rmtree(cache, ignore_errors=True)
        Run(arguments, {**env, **preloaded(library, "kill", nth)})
        run = Run(arguments, env)
        check((run.code, run.out) == (0, want), f"cache, after a kill at call {nth} of {n}: {run.code} {run.error}")
    print(f"program cache: {min(12, len(numbers))} of {n} calls, the same answer each time", flush=True)


def many_processes():
    arguments = [COMMAND, "run", "-m", MODEL, "--tokens", "1,2,3", "-n", "2", "-t", "1", "--temp", "0"]
    cache = WORK / "many"
    env = {**os.environ, "FUSEBOX_CACHE": str(cache)}
    start = lambda: subprocess.Popen(arguments, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    answers = {}
    for child in [start() for _ in range(64)]:
        out, error = child.communicate(timeout=100)
        answers.setdefault((child.returncode, out), []).append(error)
    check([code for code, _ in answers] == [0], f"64 processes on one cache: {answers.keys()}")
    check(not parts(cache), "64 processes on one cache leave parts")
    print("64 processes on one cold cache: one answer", flush=True)


def memory():
    """Below what is needed a command ends; it never answers otherwise, and from 64 MiB on it says why."""
    arguments = ["run", "-m", MODEL, "--tokens", "1,2,3", "-n", "4", "-t", "1", "--temp", "0"]
    want = Run(arguments).out
    told = 0
    for mib in (16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 512):
        run = Run(arguments, limit=(resource.RLIMIT_AS, (mib << 20, mib << 20)))
        is_answer, is_told = (run.code, run.out) == (0, want), is_refusal(run)
        told += is_told
        check(is_answer or is_told or mib < 64, f"{mib} MiB of address space: {run.code} {run.error.strip()[-200:]}")
        check(run.code != 0 or is_answer, f"{mib} MiB of address space: another answer")
    print(f"memory: 11 limits of address space, {told} refused in a sentence", flush=True)


def output():
    """Standard output that is closed or full, and signals."""
    arguments = ["run", "-m", MODEL, "--tokens", "1,2,3", "-n", "8", "-t", "1"]
    with open("/dev/full", "wb") as full:
        for line in (arguments, [*arguments, "--json"], ["inspect", MODEL], ["tokens", "-m", MODEL, "-p", "Hi"]):
            run = Run(line, stdout=full)
            check(is_refusal(run, "standard output"), f"{line[0]} into a full device: {run.code} {run.error.strip()}")
    closed = subprocess.run(
        ["sh", "-c", '"$0" "$@" >&-', COMMAND, *map(str, arguments)], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60
    )
    check(closed.returncode in (0, 2) and b"panicked" not in closed.stderr, f"closed output: {closed.returncode}")
    pipe = subprocess.Popen([COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    pipe.stdout.close()
    error = pipe.stderr.read()
    check(pipe.wait(60) in (0, 2, -signal.SIGPIPE) and b"panicked" not in error, f"a closed pipe: {error}")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        big = WORK / "signals/out.gguf"
        clear(big)
        child = subprocess.Popen([COMMAND, "quantize", MODEL, big, "F32", "-t", "1"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while child.poll() is None and not parts(big.parent):
            time.sleep(0.001)
        child.send_signal(number)
        code = child.wait(60)
        check(code in (-number, 0) and not parts(big.parent), f"{number.name} in quantize: {code}, {parts(big.parent)}")
    print("standard output closed, cut and full; three signals", flush=True)


def a_model_that_shrinks():
    """A model that is cut while it is read is a sentence of every command that reads it."""
    model = WORK / "cut.gguf"
    for line in (["run", "-m", model, "-p", "Once", "-n", "400", "--ignore-eos", "-t", "1"], ["quantize", model, WORK / "cut-out.gguf", "F32", "-t", "1"]):
        codes = set()
        for delay in range(0, 60, 6):
            shutil.copy(MODEL, model)
            child = subprocess.Popen([COMMAND, *map(str, line)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                     env={**os.environ, "FUSEBOX_CACHE": str(WORK / "programs")})
            time.sleep(delay / 1000)
            os.truncate(model, 100_000)
            error = child.stderr.read().decode()
            code = child.wait(60)
            codes.add(code)
            is_told = code == 2 and "cut.gguf: " in error.strip().split("\n")[-1]
            check(code == 0 or is_told, f"{line[0]}, cut after {delay} ms: {code} {error.strip()}")
        check(2 in codes, f"{line[0]}: no cut came while it read")
    check(not parts(WORK), f"a cut model leaves {parts(WORK)}")
    print("a model that becomes shorter: 20 times", flush=True)


class Hub(http.server.BaseHTTPRequestHandler):
    """One repository with one file, as the hub serves it."""

    protocol_version = "HTTP/1.1"
    content = MODEL.read_bytes()

    def do_GET(self):
        if "/resolve/" not in self.path:
            about = {"sha256": hashlib.sha256(self.content).hexdigest(), "size": len(self.content)}
            sibling = {"rfilename": "story-Q8_0.gguf", "size": len(self.content), "blobId": "b1", "lfs": about}
            return self.send(200, json.dumps({"sha": "c0ffee", "siblings": [sibling]}).encode(), {})
        asked = self.headers.get("Range", "")
        first, _, last = asked.removeprefix("bytes=").partition("-")
        begin, end = int(first or 0), int(last) + 1 if last else len(self.content)
        span = f"bytes {begin}-{min(end, len(self.content)) - 1}/{len(self.content)}"
        self.send(206 if asked else 200, self.content[begin:end], {"Content-Range": span} if asked else {})

    def send(self, status, body, headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            pass  # Who asked was killed.

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        pass  # Who asked was killed.


def main():
    wanted = sys.argv[2:]
    library = compiled() if sys.platform == "linux" else None
    server = Server(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub = f"http://127.0.0.1:{server.server_port}"
    stages = {"many": many_processes, "memory": memory, "output": output, "shrink": a_model_that_shrinks}
    if library:
        calls = {"quantize": quantize, "save": save, "logits": logits, "pull": lambda: pull(hub)}
        for name, job in calls.items():
            stages[name] = lambda name=name, job=job: every_call(library, name, job())
        stages["replace"] = lambda: what_is_replaced_stays(library)
        stages["programs"] = lambda: programs(library)
    else:
        print("skipped: there is no C compiler for faults of single calls, or no Linux")
    try:
        for name, stage in stages.items():
            if not wanted or name in wanted:
                start = time.time()
                stage()
                print(f"  {name}: {time.time() - start:.1f} s", flush=True)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    print(f"{len(FAULTS)} faults")
    sys.exit(1 if FAULTS else 0)


main()
