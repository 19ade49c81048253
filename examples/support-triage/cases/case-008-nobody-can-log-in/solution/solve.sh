#!/bin/sh
# What a perfect agent leaves behind.
set -eu
mkdir -p output
cat > output/triage.json <<'JSON'
{"queue": "access", "priority": "urgent", "duplicate_of": null}
JSON
cat > output/reply.md <<'TEXT'
Hello Omar Haddad,

thank you for writing. Our access team has ticket T-3008 and answers within one working day.
TEXT
