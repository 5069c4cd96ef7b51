#!/usr/bin/env python3
"""Renews the tables of `docs/quality.md`: what each format and each mode costs on a text, and what stays the same bits.

Usage: tests/quality.py target/release/fusebox MODEL.gguf [--chunks N] [--text FILE] [--formats A,B] [--write]

Perplexity, KL divergence and agreement on the best token, of every format that `fusebox quantize` makes of the model,
of every KV cache, in the default mode and with --precise; all against the model itself in single precision.
llama.cpp scores the same files and chunks where its library is there (`tests/peer.py`).
With --write the tables go into the document, else to standard output.
"""

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from peer import Llama, library
from tables import records, table, told, write

CONTEXT = 512
# Names for mixes that another name in the list stands for.
SAME = {"Q3_K", "Q4_K", "Q5_K", "COPY"}
CACHES = ["f32", "f16", "q8_0", "q4_0"]


def formats(fusebox):
    """The formats that `quantize` makes, from its own refusal."""
    refused = subprocess.run([fusebox, "quantize", "a", "b", "?"], capture_output=True, text=True, check=False)
    names = refused.stderr.strip().split("one of ")[-1].split(", ")
    return [name for name in names if name not in SAME]


def score(fusebox, model, base, *flags):
    """The scores of a model against the base."""
    return json.loads(told(fusebox, "perplexity", "-m", model, "--kl", base, "--json", *flags))


def cells(scored):
    kl, same = max(scored["kl_divergence"], 0.0), 100 * scored["same_top"]
    return [f"{scored['perplexity']:.3f}", f"{kl:.5f}", f"{same:.1f} %"]


class Base:
    """A file of `perplexity --save`: the chunks, and the log-probabilities of the second half of each."""

    def __init__(self, path):
        import numpy

        data = Path(path).read_bytes()
        self.context, self.n_vocab, self.n_chunks = struct.unpack_from("<3i", data, 8)
        self.tokens = numpy.frombuffer(data, "<i4", self.context * self.n_chunks, 20)
        words = numpy.frombuffer(data, "<u2", offset=20 + self.tokens.nbytes)
        self.rows = words.reshape(self.n_chunks, -1, 2 * ((self.n_vocab + 1) // 2) + 4)

    def logs(self, chunk):
        """Log-probabilities of every scored position of a chunk."""
        rows = self.rows[chunk]
        heads = rows[:, :4].copy().view("<f4")
        return rows[:, 4 : 4 + self.n_vocab] * heads[:, :1] + heads[:, 1:]


def scored_by(peer, path, base, bos):
    """What llama.cpp scores on the chunks of the base."""
    import numpy

    losses, divergences, same = [], [], []
    first = base.context // 2
    with Llama(peer, path, base.context) as model:
        for chunk in range(base.n_chunks):
            tokens = base.tokens[chunk * base.context : (chunk + 1) * base.context].copy()
            fed = tokens.copy()
            if bos is not None:
                fed[0] = bos
            logits = model.logits(fed, first)[:-1]
            logs = logits - logits.max(1, keepdims=True)
            logs -= numpy.log(numpy.exp(logs).sum(1, keepdims=True))
            wanted = base.logs(chunk)[: len(logs)]
            losses.extend(-logs[numpy.arange(len(logs)), tokens[first + 1 :]])
            # What is less likely than the file can say counts nothing, as for both programs.
            terms = numpy.where(wanted > -16, numpy.exp(wanted) * (wanted - logs), 0)
            divergences.extend(terms.sum(1))
            same.extend(logs.argmax(1) == wanted.argmax(1))
    mean = lambda values: float(numpy.mean(values))
    return {"perplexity": float(numpy.exp(mean(losses))), "kl_divergence": mean(divergences), "same_top": mean(same)}


def quality(fusebox, model, names, chunks, text, folder):
    """Tables of formats and of caches."""
    base = folder / "base"
    exact = ["--precise", "--kv-type", "f32"]
    told(fusebox, "perplexity", "-m", model, "-f", text, "-c", CONTEXT, "--chunks", chunks, "--save", base, *exact)
    lib = library()
    if lib is None:
        print("skipped: xllamacpp and numpy are not installed, so llama.cpp scores nothing", file=sys.stderr)
        peer = lambda path: ["–"] * 3
    else:
        metadata = json.loads(told(fusebox, "inspect", model, "--json"))["metadata"]
        has_bos = metadata.get("tokenizer.ggml.add_bos_token")
        bos = metadata["tokenizer.ggml.bos_token_id"] if has_bos else None
        peer = lambda path: cells(scored_by(lib, path, Base(base), bos))
    rows = []
    for name in names:
        path = folder / "quantised.gguf"
        if name == "COPY":
            path = Path(model)
        else:
            told(fusebox, "quantize", model, path, name)
        n_mib = path.stat().st_size / (1 << 20)
        both = [cells(score(fusebox, path, base, *flags)) for flags in ([], exact)]
        rows.append([f"`{name}`" if name != "COPY" else "as it is", f"{n_mib:.0f}", *both[0], *both[1], *peer(path)])
        print(" ".join(rows[-1]), file=sys.stderr)
    heads = ["perplexity", "KL", "same token"]
    modes = [f"{head}, {mode}" for mode in ("default", "`--precise`", "llama.cpp") for head in heads]
    by_format = table(["format", "MiB", *modes], rows)
    rows = []
    for cache in CACHES:
        both = [cells(score(fusebox, model, base, "--kv-type", cache, *more)) for more in ([], ["--precise"])]
        rows.append([f"`{cache}`", *both[0], *both[1]])
    by_cache = table(["KV cache", *modes[:6]], rows)
    return by_format, by_cache


class Server:
    """`fusebox serve` on a port of its own."""

    def __init__(self, fusebox, *flags):
        self.process = subprocess.Popen(
            [fusebox, "serve", "--port", "0", *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        line = self.process.stdout.readline()
        self.address = line.split()[-1]

    def __enter__(self):
        for _ in range(600):
            try:
                urllib.request.urlopen(self.address + "/health").read()
                return self
            except OSError:
                time.sleep(0.1)
        sys.exit("the server is not ready after a minute")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def scores(self, prompts, n_tokens):
        """The first answer of a request with several prompts: its tokens and their log-probabilities."""
        body = {"prompt": prompts, "max_tokens": n_tokens, "temperature": 0, "logprobs": 0, "cache_salt": str(time.time())}
        request = urllib.request.Request(
            self.address + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        found = json.load(urllib.request.urlopen(request))["choices"][0]["logprobs"]
        return found["tokens"], found["token_logprobs"]


def differences(one, other):
    """`same bits`, or by how much log-probabilities differ, up to the first token that does."""
    n = next((at for at, pair in enumerate(zip(one[0], other[0])) if pair[0] != pair[1]), len(one[0]))
    most = max((abs(a - b) for a, b in zip(one[1][:n], other[1][:n])), default=0.0)
    if one == other:
        return "same bits"
    end = "" if n == len(one[0]) else f"; another token at {n}"
    return f"{most:.1e}{end}"


def determinism(fusebox, model, text, folder):
    """What changes bits, and by how much a log-probability of 64 greedy tokens then differs."""
    prompt = Path(text).read_text(encoding="utf-8")[:1200]
    file = folder / "prompt"
    file.write_text(prompt, encoding="utf-8")
    rows = []

    def logits(*flags, cache):
        path = folder / "logits.npy"
        path.unlink(missing_ok=True)
        command = [fusebox, "logits", "-m", model, "-f", str(file), "-o", str(path), *flags]
        subprocess.run(command, check=True, capture_output=True, env={"FUSEBOX_CACHE": str(folder / cache)})
        return path.read_bytes()

    def answer(flags, server=(), prompts=(prompt,)):
        with Server(fusebox, "-m", str(model), "--parallel", "8", *flags, *server) as one:
            return one.scores(list(prompts), 64)

    modes = ([], ["--precise"])
    same = lambda one, other: "same bits" if one == other else "other bits"
    first = [logits(*mode, cache="cold") for mode in modes]
    rows.append(["another run, its programs read from disk", *(same(a, logits(*m, cache="cold")) for a, m in zip(first, modes))])
    rows.append(["another run, compiled anew", *(same(a, logits(*m, cache="new")) for a, m in zip(first, modes))])
    rows.append(["1 thread", *(same(a, logits("-t", "1", *m, cache="cold")) for a, m in zip(first, modes))])
    alone = [answer(mode) for mode in modes]
    company = [prompt, *(prompt[:at] for at in range(300, 1000, 100))]
    for what, more in [
        ("another server", {}),
        ("1 thread of a server", {"server": ["-t", "1"]}),
        ("chunks of 64 tokens", {"server": ["--max-batch-tokens", "64"]}),
        ("7 others beside it", {"prompts": company}),
    ]:
        rows.append([what, *(differences(a, answer(mode, **more)) for a, mode in zip(alone, modes))])
    return table(["what changes", "default", "`--precise`"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fusebox")
    parser.add_argument("model")
    parser.add_argument("--chunks", type=int, default=40)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--formats", help="some formats only, by comma")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = given.text or records(folder)
        names = given.formats.split(",") if given.formats else ["COPY", *formats(given.fusebox)]
        by_format, by_cache = quality(given.fusebox, given.model, names, given.chunks, text, folder)
        tables = {"formats": by_format, "caches": by_cache, "bits": determinism(given.fusebox, given.model, text, folder)}
    if given.write:
        write("quality.py", tables)
    else:
        print("\n".join(tables.values()))


if __name__ == "__main__":
    main()
