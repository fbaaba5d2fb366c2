#!/bin/sh
# A streamed answer of a running server, piece by piece, with curl, awk and sed alone. Exits 1 where there was none.
set -eu
url=${EDGEINFER_URL:-http://127.0.0.1:8080}
question=$(printf '%s\n' "${1:-Hi}" | awk '{
  gsub(/\\/, "&&"); gsub(/"/, "\\\\&"); gsub(/\t/, "\\t"); gsub(/[[:cntrl:]]/, " ")
  printf "%s%s", between, $0; between = "\\n"
}')
# What an answer holds besides text is escaped as JSON has it; of that, printf understands all but \" and \u00xx.
text='s/\\\\/\\0134/g; s/\\"/"/g; s/\\u00[0-9a-f][0-9a-f]//g'
# The key comes through a pipe: other users of this computer can read what is on a command line.
printf '%s' "${EDGEINFER_API_KEY:+Authorization: Bearer $EDGEINFER_API_KEY}" |
  curl --silent --show-error --no-buffer "$url/v1/chat/completions" --header @- \
    --header 'Content-Type: application/json' \
    --data "{\"messages\": [{\"role\": \"user\", \"content\": \"$question\"}], \"stream\": true, \"max_tokens\": 200}" |
  {
    code=1
    while IFS= read -r line || [ -n "$line" ]; do
      case $line in
        'data: [DONE]') code=0 ;;
        'data: {"error":'* | '{"error":'*)
          printf '%b\n' "$(printf '%s' "$line" | sed "s/.*\"message\":\"\(.*\)\",\"type\".*/\1/; $text")" >&2 ;;
        'data: '*)
          printf '%b' "$(printf '%s' "$line" | sed -n 's/.*"delta":{"content":"\(.*\)"},"logprobs":null.*/\1/p' | sed "$text")" ;;
      esac
    done
    echo
    exit $code
  }
