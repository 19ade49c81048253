#!/bin/sh
# What a perfect agent leaves behind.
set -eu
mkdir -p output
cat > output/triage.json <<'JSON'
{"queue": "billing", "priority": "high", "duplicate_of": null}
JSON
cat > output/reply.md <<'TEXT'
Hello Ada Obi,

thank you for writing. Our billing team has ticket T-3001 and answers within one working day.
TEXT
