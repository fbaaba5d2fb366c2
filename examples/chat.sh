#!/bin/sh
# A streamed answer of a running server, piece by piece, with curl and sed alone.
set -eu
url=${EDGEINFER_URL:-http://127.0.0.1:8080}
question=$(printf '%s' "${1:-Hi}" | sed 's/\\/\\\\/g; s/"/\\"/g')
curl --silent --show-error --fail-with-body --no-buffer "$url/v1/chat/completions" \
  --header 'Content-Type: application/json' \
  ${EDGEINFER_API_KEY:+--header "Authorization: Bearer $EDGEINFER_API_KEY"} \
  --data "{\"messages\": [{\"role\": \"user\", \"content\": \"$question\"}], \"stream\": true, \"max_tokens\": 200}" |
  sed -u -n 's/^data: .*"delta":{"content":"\(.*\)"},"logprobs":null,"finish_reason":null}].*$/\1/p' |
  while IFS= read -r piece; do printf '%b' "$(printf '%s' "$piece" | sed 's/\\"/"/g')"; done
echo
