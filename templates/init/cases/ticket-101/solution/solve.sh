#!/bin/sh
set -eu
mkdir -p output
printf '%s\n' '{"component": "storage", "priority": "P1", "duplicate_of": null}' > output/triage.json
