#!/bin/sh
set -eu
cat > plan.json <<'JSON'
["Breaking", "New", "Fixed"]
JSON
