#!/usr/bin/env python3
"""A stand-in for an agent: applies the rules of the skill with plain string search.

Runs in the workspace of one case, reads only what is there, and uses no network, so that the
example gives the same result everywhere. Standard library only.
"""

import argparse
import json
import pathlib
import re


def field(text, name):
    """The value of a top-level `name: value` line of input.yaml."""
    found = re.search(rf"^{name}:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip().strip("\"'") if found else ""


def queues(skill):
    """The table of the skill: (words, queue), in order."""
    rows = re.findall(r"^\| (.+?) \| (\w+) \|$", skill, re.MULTILINE)
    return [(words.split(", "), queue) for words, queue in rows if queue != "queue"]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--skill", default="triage-skill.md")
    skill = pathlib.Path(options.parse_args().skill).read_text()
    ticket = pathlib.Path("input.yaml").read_text()
    thread = pathlib.Path("thread.md").read_text()
    said = (field(ticket, "subject") + "\n" + thread).lower()

    queue = next(
        (queue for words, queue in queues(skill) if any(word in said for word in words)),
        "general",
    )
    if "production is down" in said or "nobody can" in said:
        priority = "urgent"
    elif queue in ("billing", "access"):
        priority = "high"
    else:
        priority = "normal"

    duplicate_of = None
    for line in pathlib.Path("reference/open-tickets.tsv").read_text().splitlines()[1:]:
        number, code, _ = line.split("\t")
        if code.lower() in said and code != "-":
            duplicate_of = number

    name = field(ticket, "customer")
    follow = f" It repeats {duplicate_of}, which is being worked on." if duplicate_of else ""
    output = pathlib.Path("output")
    output.mkdir(exist_ok=True)
    (output / "triage.json").write_text(
        json.dumps({"queue": queue, "priority": priority, "duplicate_of": duplicate_of}) + "\n"
    )
    (output / "reply.md").write_text(
        f"Hello {name},\n\nthank you for writing. The {queue} team has your ticket.{follow} "
        "You hear from us within one working day.\n"
    )


if __name__ == "__main__":
    main()
