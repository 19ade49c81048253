#!/bin/sh
set -eu
mkdir -p output
printf '%s\n' '{"component": "accounts", "priority": "P2", "duplicate_of": null}' > output/triage.json
