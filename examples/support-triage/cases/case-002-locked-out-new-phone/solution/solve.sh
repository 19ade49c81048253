#!/bin/sh
# What a perfect agent leaves behind.
set -eu
mkdir -p output
cat > output/triage.json <<'JSON'
{"queue": "access", "priority": "high", "duplicate_of": null}
JSON
cat > output/reply.md <<'TEXT'
Hello Jonas Weber,

thank you for writing. Our access team has ticket T-3002 and answers within one working day.
TEXT
