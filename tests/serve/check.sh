#!/usr/bin/env bash
# Starts the server over the model of the repository and lets the scripts beside this one at it.
# In: the command; a model with a chat template in $FUSEBOX_SERVE_MODEL, if there is one. The real clients come from the
# package index into a virtual environment beside the build, once; without the index they are skipped.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
command=$(realpath "$1")
model=${FUSEBOX_SERVE_MODEL:-$root/assets/story.gguf}
command -v python3 >/dev/null || { echo "skipped: there is no python3 for the checks of the server"; exit 0; }

template=()
[ -n "${FUSEBOX_SERVE_MODEL:-}" ] || template=(--chat-template chatml)
said=$(mktemp)
"$command" serve -m "$model" --port 0 --drain-delay 0 "${template[@]}" >"$said" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$said"' EXIT
for _ in $(seq 300); do
  port=$(sed -n 's/^listening on .*:\([0-9]*\)$/\1/p' "$said")
  [ -z "$port" ] || ! python3 -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$port/ready')" 2>/dev/null || break
  sleep 0.1
done
python3 "$here/conformance.py" 127.0.0.1 "$port"

python3 "$here/hostile.py" 127.0.0.1 "$port" "${HOSTILE_REQUESTS:-1500}"

packages=(openai anthropic ollama litellm langchain-openai instructor openai-agents schemathesis selenium llm 'lm-eval[api]')
venv=${FUSEBOX_SERVE_VENV:-$root/target/serve-clients}
if [ ! -e "$venv/complete" ] && [ -z "${FUSEBOX_SERVE_VENV:-}" ]; then
  python3 -m venv "$venv" && "$venv/bin/pip" install --quiet "${packages[@]}" && touch "$venv/complete" ||
    echo "skipped: the clients of the server cannot be installed here"
fi
if [ -x "$venv/bin/python" ]; then
  "$venv/bin/python" "$here/clients.py" 127.0.0.1 "$port"
  "$venv/bin/python" "$here/page.py" 127.0.0.1 "$port"
fi
if [ -x "$venv/bin/schemathesis" ]; then
  # It leaves files where it runs. A thousand documents take longer than the deadline that it sends.
  scratch=$(mktemp -d)
  openapi=$(realpath "$root/serve/openapi.json") venv=$(realpath "$venv")
  (cd "$scratch" && "$venv/bin/schemathesis" run "$openapi" --url "http://127.0.0.1:$port" \
    --checks not_a_server_error,content_type_conformance --max-examples "${SCHEMATHESIS_EXAMPLES:-10}" --seed 1 --exclude-path /v1/rerank \
    --header "x-request-timeout: 5")
  rm -rf "$scratch"
fi
kill "$server" && wait "$server"

if command -v openssl >/dev/null; then
  secrets=$(mktemp -d)
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost -keyout "$secrets/key" -out "$secrets/certificate" 2>/dev/null
  "$command" serve -m "$model" --port 0 --drain-delay 0 "${template[@]}" --tls-cert "$secrets/certificate" --tls-key "$secrets/key" >"$said" &
  server=$!
  python3 "$here/https.py" "$said" "$secrets/certificate"
  kill "$server" && wait "$server"
  rm -rf "$secrets"
else
  echo "skipped: there is no openssl for a certificate of the server"
fi
python3 "$here/chaos.py" "$command" "$model" "${SECONDS_OF_CHAOS:-20}" 32
python3 "$here/prefixes.py" "$command" "$model"
