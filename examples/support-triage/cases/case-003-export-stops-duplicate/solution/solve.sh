#!/bin/sh
# What a perfect agent leaves behind.
set -eu
mkdir -p output
cat > output/triage.json <<'JSON'
{"queue": "reliability", "priority": "normal", "duplicate_of": "T-2041"}
JSON
cat > output/reply.md <<'TEXT'
Hello Mei Lin,

thank you for writing. Our reliability team has ticket T-3003 and answers within one working day.
TEXT
