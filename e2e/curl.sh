#!/usr/bin/env bash
# What the README shows with curl, and the edges that no SDK reaches. Usage: e2e/curl.sh BASE_URL
set -uo pipefail

base=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# ask ARGS…: one request; its status, head and body are left in $status, $work/head and $work/body.
ask() {
  : >"$work/head"
  : >"$work/body"
  status=$(curl -sN --noproxy '*' --max-time 60 -D "$work/head" -o "$work/body" -w '%{http_code}' "$@") || true
}

# check NAME COMMAND…: counts whether the command succeeds.
check() {
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "curl: FAILED: $name: status $status"
    cat "$work/head" "$work/body"
    echo
  fi
}

is() { [ "$status" = "$1" ]; }
header() { grep -qiE "^$1: *$2"$'\r?$' "$work/head"; }
body() { grep -qE "$1" "$work/body"; }
last() { [ "$(grep -v '^$' "$work/body" | tail -n 1)" = "$1" ]; }
atleast() { [ "$(grep -cE "$2" "$work/body")" -ge "$1" ]; }

json=(-H 'content-type: application/json')
chat='{"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16, "ignore_eos": true'

ask "$base/v1/chat/completions" "${json[@]}" -d "$chat}"
check 'a chat is answered' is 200
check 'a chat has content' body '"content": ?"[^"]+"'
check 'a chat has usage' body '"completion_tokens": ?16'
check 'the replica is named' header x-inferrail-replica '.+'
check 'the policy is named' header x-inferrail-policy '[a-z_]+'
check 'the request has an id' header x-request-id '.+'
check 'prompt tokens are counted' header x-inferrail-prompt-tokens '[0-9]+'
check 'cached tokens are predicted' header x-inferrail-cached-tokens '[0-9]+'

ask "$base/v1/chat/completions" "${json[@]}" -d "$chat, \"stream\": true}"
check 'a stream is answered' is 200
check 'a stream is one of events' header content-type 'text/event-stream.*'
check 'a stream has a chunk per token' atleast 16 '^data: \{.*"delta"'
check 'a stream ends with [DONE]' last 'data: [DONE]'

ask "$base/v1/completions" "${json[@]}" -d '{"model": "inferrail/sim-8b", "prompt": [1, 2, 3], "max_tokens": 4}'
check 'a completion of token ids is answered' is 200
check 'a completion has text' body '"object": ?"text_completion"'

ask "$base/v1/models"
check 'models are listed' is 200
check 'the alias is listed' body '"id": ?"sim"'

ask "$base/health"
check 'the router is healthy' is 200

ask "$base/v1/chat/completions" "${json[@]}" -d '{"model": "nope", "messages": []}'
check 'an unknown model is not found' is 404
check 'an unknown model is named' body '"message": ?".*nope'

ask "$base/v1/chat/completions" "${json[@]}" -d '{"model": "sim", "messages"'
check 'broken JSON is refused' is 400
check 'a refusal is an error object' body '"error": ?\{'

ask "$base/v1/chat/completions"
check 'GET is not allowed on chat' is 405
check 'what is allowed is said' header allow '.*POST.*'

ask "$base/v1/nothing" "${json[@]}" -d '{}'
check 'an unknown path is not found' is 404
check 'an unknown path is an error object' body '"error": ?\{'

echo "curl: $passed passed, $failed failed"
[ $failed -eq 0 ]
