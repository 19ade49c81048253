#!/bin/sh
set -eu
mkdir -p output
printf '%s\n' '{"component": "docs", "priority": "P4", "duplicate_of": 88}' > output/triage.json
