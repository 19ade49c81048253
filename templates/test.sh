#!/bin/sh
# Verifier of this task. Harbor runs it as /tests/test.sh after the agent has
# finished; `casepack run` runs the same file with the three variables below.
# All the work is done by judge.py, which needs nothing but python3 (3.8+).
#
#   CASEPACK_TESTS_DIR   this directory           (default: where this file lies)
#   CASEPACK_LOGS_DIR    agent/ and verifier/     (default: /logs)
#   CASEPACK_WORKDIR     what the agent worked in (default: see config.json)
#
# Exit status: 0 when a reward was written, whatever it is; else 1.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 1
tests=${CASEPACK_TESTS_DIR:-$here}
logs=${CASEPACK_LOGS_DIR:-/logs}

# What lies there now was put there by the agent, not by a judge.
[ -L "$logs/verifier" ] && rm -f -- "$logs/verifier"
rm -rf -- "$logs/verifier/reward.json" "$logs/verifier/reward.txt"
mkdir -p -- "$logs/verifier" || exit 1

if ! command -v python3 >/dev/null 2>&1; then
    image=$(sed -n 's/.*"image"[[:space:]]*:[[:space:]]*"\([^"]*\)".*/\1/p' "$tests/config.json" 2>/dev/null |
        head -n 1 | tr -cd 'A-Za-z0-9._/:@-')
    echo "casepack: no reward was written: the judges need python3 (3.8 or newer)," >&2
    echo "casepack: and the image ${image:-of this task} has none. Add it to the image," >&2
    echo "casepack: or build the package on an image that has it (--image, --base-image)." >&2
    exit 1
fi

# -I: neither the environment, nor the user's site directory, nor the current
# directory (the agent's) can put a module in front of the standard library.
exec python3 -I "$tests/judge.py" --tests "$tests" --logs "$logs" --workdir "${CASEPACK_WORKDIR:-}"
