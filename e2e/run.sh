#!/usr/bin/env bash
# Serves Caddyfile.example and talks to it with the official OpenAI SDK and with curl.
#
# Usage: e2e/run.sh [ROUTER_BINARY]      default: go run ./xcaddy
#
# CONFIG     Caddyfile to serve; default Caddyfile.example. Its router must listen on BASE_URL.
# BASE_URL   of the router; default http://localhost:8080
# PYTHON     interpreter that makes the virtual environment; default python3
#
# The packages of e2e/requirements.txt go into .cache/e2e, which is kept for the next run.
set -euo pipefail
set -m # a background job is a process group of its own, so that it can be ended as a whole

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
config=${CONFIG:-$root/Caddyfile.example}
base=${BASE_URL:-http://localhost:8080}
export no_proxy=localhost,127.0.0.1 NO_PROXY=localhost,127.0.0.1

if [ $# -gt 0 ]; then
  server=("$(realpath "$1")")
else
  server=(go run ./xcaddy)
fi

work=$(mktemp -d)
pid=
# The group may outlive its leader: go run ends before the program that it runs.
stop() {
  [ -n "$pid" ] || return 0
  kill -TERM -- "-$pid" 2>/dev/null || true
  for _ in $(seq 100); do
    kill -0 -- "-$pid" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL -- "-$pid" 2>/dev/null || true
  pid=
}
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

if curl -s -o /dev/null --max-time 2 "$base/health"; then
  echo "e2e: something already answers on $base" >&2
  exit 1
fi

# The server compiles while pip installs. Caddy's own files stay out of the user's directories.
cd "$root"
XDG_CONFIG_HOME=$work XDG_DATA_HOME=$work "${server[@]}" run --config "$config" --adapter caddyfile >"$work/log" 2>&1 &
pid=$!
disown # so that its end is not announced

venv=$root/.cache/e2e
if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
  echo '*' >"$venv/.gitignore"
  cp "$here/requirements.txt" "$venv/requirements.txt"
fi

# Ten minutes: a cold build of Caddy and its modules on a small machine, with their download.
deadline=$((SECONDS + 600))
until curl -fs -o /dev/null --max-time 2 "$base/health"; do
  if ! kill -0 "$pid" 2>/dev/null || [ $SECONDS -ge $deadline ]; then
    echo "e2e: the router does not answer on $base; its log:" >&2
    tail -n 40 "$work/log" >&2
    exit 1
  fi
  sleep 0.2
done

status=0
PYTHONDONTWRITEBYTECODE=1 INFERRAIL_BASE_URL=$base/v1 "$venv/bin/python" -m pytest -q -p no:cacheprovider "$here/test_openai.py" || status=1
"$here/curl.sh" "$base" || status=1
if [ $status -ne 0 ]; then
  echo "e2e: failed; the end of the router's log:" >&2
  tail -n 40 "$work/log" >&2
fi
exit $status
