#!/bin/sh
# Verifier of this task: the judge engine of agent-eval-harness, which the image
# must have. Harbor runs it as /tests/test.sh after the agent has finished;
# `casepack run` runs the same file with the three variables below.
#
#   CASEPACK_TESTS_DIR   this directory           (default: where this file lies)
#   CASEPACK_LOGS_DIR    agent/ and verifier/     (default: /logs)
#   CASEPACK_WORKDIR     what the agent worked in
#
# Exit status: that of the judge engine.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 1
tests=${CASEPACK_TESTS_DIR:-$here}
logs=${CASEPACK_LOGS_DIR:-/logs}
work=${CASEPACK_WORKDIR:-@WORKDIR@}

# What lies there now was put there by the agent, not by a judge.
[ -L "$logs/verifier" ] && rm -f -- "$logs/verifier"
rm -rf -- "$logs/verifier/reward.json" "$logs/verifier/reward.txt" "$logs/verifier/outputs"
mkdir -p -- "$logs/verifier/outputs" || exit 1

# The engine reads what the agent said from the workspace.
rm -rf -- "$work/stdout.log"
for log in "$logs"/agent/*.txt; do
    if [ -f "$log" ] && [ ! -L "$log" ]; then cat -- "$log"; fi
done >"$work/stdout.log"

# Prompt files and modules of judges are looked up from the current directory,
# which must not be the agent's: python3 -m imports from there first.
cd -- "$tests/judges" 2>/dev/null || cd -- "$tests" || exit 1
python3 -m agent_eval.harbor.reward --config "$tests/eval.yaml" --case-dir "$work" --out-dir "$logs/verifier"
status=$?

# Declared outputs, for whoever reads the trial. Links stay links.
for path in @OUTPUTS@; do
    if [ -e "$work/$path" ]; then cp -RP -- "$work/$path" "$logs/verifier/outputs/"; fi
done
exit "$status"
