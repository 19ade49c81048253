#!/bin/sh
# What a perfect agent leaves behind.
set -eu
mkdir -p output
cat > output/triage.json <<'JSON'
{"queue": "billing", "priority": "high", "duplicate_of": null}
JSON
cat > output/reply.md <<'TEXT'
Hello Sara Lindqvist,

thank you for writing. Our billing team has ticket T-3007 and answers within one working day.
TEXT
