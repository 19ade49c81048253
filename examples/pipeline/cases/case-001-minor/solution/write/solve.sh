#!/bin/sh
set -eu
cat > notes.md <<'TEXT'
## New
- Boats can be renamed.
## Fixed
- The harbour map no longer flickers.
TEXT
