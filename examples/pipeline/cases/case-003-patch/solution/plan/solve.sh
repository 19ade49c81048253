#!/bin/sh
set -eu
cat > plan.json <<'JSON'
["Fixed"]
JSON
