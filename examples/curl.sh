#!/bin/sh
# Ask a server about support_ticket.json: sh examples/curl.sh
# Start one with `jev serve`. JEV_BASE_URL and JEV_API_KEY say which server to ask.
set -eu
cd "$(dirname "$0")"

curl --silent --show-error --fail-with-body \
  --header "content-type: application/json" \
  ${JEV_API_KEY:+--header "authorization: Bearer $JEV_API_KEY"} \
  --data-binary @support_ticket.json \
  "${JEV_BASE_URL:-http://127.0.0.1:8000}/v1/systemone"
