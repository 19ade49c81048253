#!/bin/sh
set -eu
cat > plan.json <<'JSON'
["New", "Fixed"]
JSON
