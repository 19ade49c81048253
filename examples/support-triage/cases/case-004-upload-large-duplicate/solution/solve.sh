#!/bin/sh
# What a perfect agent leaves behind.
set -eu
mkdir -p output
cat > output/triage.json <<'JSON'
{"queue": "reliability", "priority": "normal", "duplicate_of": "T-2047"}
JSON
cat > output/reply.md <<'TEXT'
Hello Tomas Novak,

thank you for writing. Our reliability team has ticket T-3004 and answers within one working day.
TEXT
