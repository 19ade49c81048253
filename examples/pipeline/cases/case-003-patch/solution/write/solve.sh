#!/bin/sh
set -eu
cat > notes.md <<'TEXT'
## Fixed
- The lamp turns off at dawn.
TEXT
