"""A stand-in for an agent: it follows the rules of the skill, word by word."""

import json
import pathlib
import re

ticket = pathlib.Path("ticket.md").read_text(encoding="utf-8").lower()
skill = pathlib.Path("triage-skill.md").read_text(encoding="utf-8")

answer = {"component": None, "priority": None, "duplicate_of": None}
for words, component, priority in re.findall(r"^\| (.+) \| (\w+) \| (P\d) \|$", skill, re.M):
    if words in ticket:
        answer["component"], answer["priority"] = component, priority
        break
duplicate = re.search(r"duplicate of #(\d+)", ticket)
if duplicate:
    answer["duplicate_of"] = int(duplicate.group(1))

output = pathlib.Path("output")
output.mkdir(exist_ok=True)
(output / "triage.json").write_text(json.dumps(answer) + "\n", encoding="utf-8")
print(f"triage: {answer}")
