#!/usr/bin/env python3
"""A stand-in for an agent: does what the instruction of the step asks for, without a model."""

import json
import pathlib
import sys

HEADINGS = [("Breaking", "breaking"), ("New", "new"), ("Fixed", "fixed")]


def main():
    instruction = sys.argv[1]
    changes = [
        line.split("\t") for line in pathlib.Path("changes.txt").read_text().splitlines()
    ]
    if instruction.startswith("Plan"):
        kinds = {kind for kind, _ in changes}
        plan = [heading for heading, kind in HEADINGS if kind in kinds]
        pathlib.Path("plan.json").write_text(json.dumps(plan) + "\n")
        return
    kinds = dict(HEADINGS)
    lines = []
    for heading in json.loads(pathlib.Path("plan.json").read_text()):
        lines.append(f"## {heading}")
        lines.extend(f"- {text}" for kind, text in changes if kind == kinds[heading])
    pathlib.Path("notes.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
