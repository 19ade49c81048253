#!/bin/sh
# What a perfect agent leaves behind.
set -eu
mkdir -p output
cat > output/triage.json <<'JSON'
{"queue": "reliability", "priority": "urgent", "duplicate_of": null}
JSON
cat > output/reply.md <<'TEXT'
Hello Priya Nair,

thank you for writing. Our reliability team has ticket T-3005 and answers within one working day.
TEXT
