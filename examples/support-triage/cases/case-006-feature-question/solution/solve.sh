#!/bin/sh
# What a perfect agent leaves behind.
set -eu
mkdir -p output
cat > output/triage.json <<'JSON'
{"queue": "general", "priority": "normal", "duplicate_of": null}
JSON
cat > output/reply.md <<'TEXT'
Hello Lucas Martin,

thank you for writing. Our general team has ticket T-3006 and answers within one working day.
TEXT
