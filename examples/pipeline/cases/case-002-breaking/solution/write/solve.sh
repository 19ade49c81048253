#!/bin/sh
set -eu
cat > notes.md <<'TEXT'
## Breaking
- The old ticket format is gone.
## New
- Tickets can be shared.
## Fixed
- Tides are right in winter.
TEXT
