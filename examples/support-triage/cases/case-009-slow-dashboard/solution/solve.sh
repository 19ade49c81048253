#!/bin/sh
# What a perfect agent leaves behind.
set -eu
mkdir -p output
cat > output/triage.json <<'JSON'
{"queue": "reliability", "priority": "normal", "duplicate_of": null}
JSON
cat > output/reply.md <<'TEXT'
Hello Elena Petrova,

thank you for writing. Our reliability team has ticket T-3009 and answers within one working day.
TEXT
