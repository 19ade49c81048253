#!/usr/bin/env python3
"""Judges one case: what the agent left -> reward.json.

    python3 -I judge.py [--tests DIR] [--logs DIR] [--workdir DIR]

Reads TESTS (config.json; evaluation/: answer keys; judges/: prompts, modules;
start.json: the workspace before the agent ran), the workspace and LOGS/agent.
Writes LOGS/verifier: reward.json, reward.txt, judges.json, outputs/.
Needs nothing but Python 3.8. LLM judges are in judge_llm.py beside this file.

* The workspace and the agent's logs are hostile: nothing is imported from there,
  no link is followed, special files are skipped, sizes are capped.
* A judge without a verdict is an error, never a pass. Errors are in judges.json;
  they stop neither the other judges nor the reward.

A `check` is the body of a function (outputs, arguments). It runs in a process of
its own, in the workspace, and returns True or False, a number, or (value,
rationale). Keys of `outputs`:
  files               {path: text} below the declared outputs; what is no text is
                      {"_binary": True, path, name}, what is too large
                      {"_truncated": True, path, name, size}
  X_content, X_file   text and absolute path of the first file of output X
  modified_files      {path: text} of what was added or changed elsewhere (also
                      in files, below _modified/)
  annotations, annotation_K_content (the file that annotation K names)
  inputs (as text), case_dir (the workspace), conversation, events, tool_calls;
  where known stdout, stderr, exit_code, duration_s, cost_usd, token_usage, num_turns
"""
import argparse
import ast
import base64
import contextlib
import datetime
import hashlib
import importlib.util
import itertools
import json
import linecache
import math
import os
import re
import select
import shutil
import signal
import stat
import sys
import time
import traceback

STARTED = time.monotonic()
HERE = os.path.dirname(os.path.abspath(__file__))
TEXT_MAX, TOTAL_MAX = 1 << 20, 64 << 20         # bytes that judges see: of a file, in all
COPY_MAX, COPY_TOTAL_MAX = 16 << 20, 128 << 20  # bytes copied to verifier/outputs
HASH_TOTAL_MAX = 1 << 30                        # bytes read to find out what changed
FILES_MAX, ENTRIES_MAX, DEPTH_MAX = 20000, 200000, 32
LOG_MAX, LOGS_MAX, EVENTS_MAX, FIELD_MAX = 16 << 20, 20, 20000, 50000
REPLY_MAX = 1 << 20                             # bytes that a judge's process sends back
CHECK_TIMEOUT, LLM_TIMEOUT, LLM_WIDTH = 60, 240, 4
VERIFIER_TIMEOUT = 300                          # seconds for everything, unless config.json says
DEFAULT_RANGE = (1.0, 5.0)
# What the harness itself puts into a workspace is no modified file.
HARNESS_NAMES = {".claude", ".git", ".work", ".staged-plugins", "subagents", "hooks", "stdout.log",
                 "stderr.log", "run_result.json", "batch.yaml", "case_order.yaml"}


class Problem(Exception):
    """Why there is no verdict, in words for the user."""


# --- config.json ---

TAGS = {"date": datetime.date.fromisoformat, "bytes": base64.b64decode, "float": float, "int": int,
        "datetime": lambda text: datetime.datetime.fromisoformat(re.sub("Z$", "+00:00", text)),
        "set": lambda items: set(untag(items)), "tuple": lambda items: tuple(untag(items)),
        "dict": lambda pairs: dict(untag(pairs))}


def untag(value):
    """Undo {"$py": type, "v": ...}, which stands for what JSON cannot say."""
    if isinstance(value, list):
        return [untag(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$py" not in value:
        return {key: untag(item) for key, item in value.items()}
    if value["$py"] not in TAGS:
        raise ValueError("config.json has a value of the unknown type %r" % value["$py"])
    return TAGS[value["$py"]](value["v"])


def tojson(value):
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, default=str)
    except (TypeError, ValueError):             # keys that JSON does not have
        return str(value)


def input_text(value):
    if not isinstance(value, dict):
        return "" if value is None else str(value)
    return "\n\n".join("**%s**: %s" % (key, tojson(item) if isinstance(item, (dict, list)) else item)
                       for key, item in value.items())


def load_config(tests):
    limit = getattr(sys, "set_int_max_str_digits", id)
    limit(0)                                    # only here are integers of any length read
    with open(os.path.join(tests, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    if config.get("schema") != "casepack.verifier.v1":
        raise ValueError("config.json has the schema %r, not casepack.verifier.v1" % config.get("schema"))
    config["input"] = input_text(untag(config.get("input")))
    config["annotations"] = table(untag(config.get("annotations")))
    if len({judge["name"] for judge in config["judges"]}) < len(config["judges"]):
        raise ValueError("two judges have one name")
    for judge in config["judges"]:
        judge["arguments"] = untag(judge.get("arguments") or {})
    limit(4300)
    return config


# --- Reward ---

FUNCTIONS = {"min": min, "max": max, "abs": abs, "round": round, "sum": sum, "len": len,
             "mean": lambda values: sum(values) / len(values) if values else 0.0}
NODES = tuple(getattr(ast, name) for name in (
    "Module Expr Assign BinOp UnaryOp BoolOp Compare IfExp List Tuple Load Store And Or Add Sub Mult Div "
    "FloorDiv Mod UAdd USub Eq NotEq Lt LtE Gt GtE").split())


def allowed(node):
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") in FUNCTIONS
    if isinstance(node, ast.Name):
        return not (isinstance(node.ctx, ast.Store) and node.id.startswith("_"))
    if isinstance(node, ast.Constant):
        return node.value is None or isinstance(node.value, (int, float)) and abs(node.value) <= 1e6
    return isinstance(node, NODES)


def validate_formula(text):
    """Syntax tree of a reward formula; ValueError when it is outside the language."""
    try:
        tree = ast.parse(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError("it cannot be parsed: %s" % error)
    nodes = list(ast.walk(tree))
    if len(nodes) > 200 or not tree.body or not isinstance(tree.body[-1], ast.Expr):
        raise ValueError("it must end with an expression and have at most 200 syntax nodes, not %d" % len(nodes))
    for node in nodes:
        if not allowed(node):
            raise ValueError("not allowed in a formula: %.80s" % ast.dump(node))
    return tree


def run_formula(text, names):
    tree = validate_formula(text)
    last = ast.Expression(tree.body.pop().value)
    names = dict(names, **FUNCTIONS, __builtins__={})
    exec(compile(tree, "<formula>", "exec"), names)
    result = float(eval(compile(last, "<formula>", "eval"), names))
    if result != result:
        raise ValueError("the result is not a number")
    return result


def is_number(value):
    """A verdict: a bool or a finite number."""
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:
        return False


def clamp(value):
    return max(0.0, min(1.0, value)) if value == value else 0.0


def compose(per_judge, block, ranges):
    """(reward, {judge: number}, notes) from {judge: {"value", "error"}}, the
    `reward:` block (or None) and {judge: declared score_range}."""
    notes, given = [], block or {}
    numbers = {name: float(result["value"]) for name, result in per_judge.items() if is_number(result.get("value"))}
    bools = {name for name in numbers if isinstance(per_judge[name]["value"], bool)}
    gate_failed = not all(numbers[name] for name in bools)

    def scaled(name, as_is=False):
        if name in bools or as_is:
            return clamp(numbers[name])
        low, high = ranges.get(name) or given.get("score_range") or DEFAULT_RANGE
        return clamp((numbers[name] - low) / (high - low)) if high > low else 0.0

    def total():
        single, gate = given.get("judge"), given.get("gate")
        if gate_failed and (single is None if gate is None else gate):
            return 0.0
        if block is None:
            scores = [scaled(name) for name in numbers if name not in bools]
            errored = any(result.get("error") for result in per_judge.values())
            return sum(scores) / len(scores) if scores else 0.0 if errored else 1.0
        if single in numbers:
            return scaled(single, not given.get("normalize"))
        if single is not None:
            notes.append("the rewarded judge %s gave no number: reward 0.0" % single)
            return 0.0
        raw, formula = given.get("raw") or [], (given.get("formula") or "weighted").strip()
        values = {name: scaled(name, name in ([raw] if isinstance(raw, str) else raw)) for name in numbers}
        if formula == "weighted":
            weights = {name: weight for name, weight in (given.get("weights") or {}).items() if name in values}
            whole = sum(weights.values())
            return clamp(sum(weights[name] * values[name] for name in weights) / whole) if whole > 0 else 0.0
        try:
            return clamp(run_formula(formula, values))
        except Exception as error:
            notes.append("the reward formula failed, reward 0.0: %s: %s" % (type(error).__name__, error))
            return 0.0

    return total(), numbers, notes


def final_reward(per_judge, block, judges):
    """compose(), but an errored judge counts for no more than its worst verdict
    would: compose() leaves it out, and a gate that was not read would be passed."""
    ranges = {judge["name"]: judge["score_range"] for judge in judges if judge.get("score_range")}
    value, numbers, notes = compose(per_judge, block, ranges)
    worst = dict(per_judge)
    for judge in judges:
        if per_judge[judge["name"]].get("error"):
            worst[judge["name"]] = {"value": -1e300 if gives_number(judge) else False}
    lower = min(value, compose(worst, block, ranges)[0])
    if lower < value:
        notes.append("judges errored and count as their worst verdict: %.4g instead of %.4g" % (lower, value))
    return lower, numbers, notes


# --- Reading what is not trusted ---

DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def split(path):
    """Components of a relative path; none when it is absolute or leads upwards."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return [] if path.startswith("/") or ".." in parts or "\0" in path else parts


def as_text(data):
    """Text with LF line ends, as Python reads text files; None when it is none."""
    try:
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except (UnicodeDecodeError, AttributeError):
        return None


class Tree:
    """Reads below one directory: each component is opened by handle, no link
    is followed, only regular files are read."""

    def __init__(self, path, notes):
        self.path, self.notes, self.entries = path, notes, ENTRIES_MAX
        self.fd = os.open(path, DIR_FLAGS)

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)

    @contextlib.contextmanager
    def directory(self, parts):
        fd = os.dup(self.fd)
        try:
            for part in parts:
                outer, fd = fd, os.open(part, DIR_FLAGS, dir_fd=fd)
                os.close(outer)
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def open(self, path):
        *parents, name = split(path) or [""]
        with self.directory(parents) as fd:
            with open(name, "rb", opener=lambda name, _: os.open(name, FILE_FLAGS, dir_fd=fd)) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError(0, "not a regular file")
                yield file

    def read(self, path, limit=TEXT_MAX):
        """Bytes of one file, at most `limit`; None when it is no regular file."""
        try:
            with self.open(path) as file:
                return file.read(limit)
        except OSError:
            return None

    def walk(self, *parts):
        """(relative path, stat) of each regular file, sorted."""
        try:
            with self.directory(parts[:-1]) as fd:
                yield from self.below(fd, parts[:-1], parts[-1:])
        except FileNotFoundError:
            pass
        except OSError as error:
            self.note("%s leads through a link or what is no directory: %s" % ("/".join(parts), error.strerror))

    def below(self, fd, parts, names=()):
        if not names:
            with os.scandir(fd) as entries:
                names = sorted(entry.name for entry in itertools.islice(entries, self.entries))
            self.entries -= len(names)
            if not self.entries:
                self.note("%s has %d entries or more: the rest was not looked at" % (self.path, ENTRIES_MAX))
        for name in names:
            path = "/".join((*parts, name))
            try:
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    yield path, info
                elif not stat.S_ISDIR(info.st_mode):
                    self.note("%s is a link or special file: skipped" % path)
                elif len(parts) >= DEPTH_MAX:
                    self.note("%s is nested deeper than %d: not looked at" % (path, DEPTH_MAX))
                else:
                    inner = os.open(name, DIR_FLAGS, dir_fd=fd)
                    try:
                        yield from self.below(inner, (*parts, name))
                    finally:
                        os.close(inner)
            except FileNotFoundError:
                pass
            except OSError as error:
                self.note("%s cannot be read: %s" % (path, error.strerror))


def open_tree(path, notes):
    try:
        return Tree(path, notes)
    except OSError as error:
        notes.append("%s cannot be opened: %s" % (path, error.strerror))
        return None


def table(value):
    return value if isinstance(value, dict) else {}


def tables(value):
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def load_json(text):
    """The mapping that the text is; an empty one when it is none."""
    try:
        return table(json.loads(text))
    except (ValueError, RecursionError):
        return {}


# --- What the agent did ---

def cut(text, limit=FIELD_MAX):
    return text if len(text) <= limit else text[:limit] + "[truncated]"


def flat(content):
    """Text of a message's or tool result's content."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in tables(content) if isinstance(part.get("text"), str))


class Log:
    """Events and metrics, in one form whichever log told them."""

    def __init__(self):
        self.events, self.metrics, self.tools = [], {}, {}

    def say(self, when, text, calls=(), thinking="", **more):
        """`calls`: (id, tool, input)"""
        tools = [{"name": str(name or ""), "id": used or "", "input": {
            key: cut(value) if isinstance(value, str) else value for key, value in table(given).items()}}
            for used, name, given in calls]
        self.tools.update((str(tool["id"]), tool["name"]) for tool in tools)
        if thinking:
            more["thinking"] = thinking
        self.events.append(dict(more, type="assistant", text=flat(text), tools=tools, timestamp=when))

    def tell(self, when, used, content, is_error, **more):
        self.events.append(dict(more, type="tool_result", tool_use_id=used or "", content=cut(flat(content)),
                                tool_name=self.tools.get(str(used), ""), is_error=bool(is_error), timestamp=when))

    def measure(self, cost, turns, usage, *keys):
        usage = {name: usage[key] for name, key in zip(("input", "output", "cache_read", "cache_create"), keys)
                 if usage.get(key) is not None}
        self.metrics = {"cost_usd": cost, "num_turns": turns, "token_usage": usage or None}


def read_stream(text):
    """Claude Code's stream-json, or Codex's JSON lines."""
    log = Log()
    for line in text.split("\n"):
        item = load_json(line)
        if len(log.events) >= EVENTS_MAX:
            break
        kind, when, part = item.get("type"), item.get("timestamp"), table(item.get("item"))
        more = {key: item[key] for key in ("parent_tool_use_id", "agent_id") if item.get(key)}
        content = table(item.get("message")).get("content")
        blocks = tables(content)
        if kind == "assistant" and content is not None:
            log.say(when, content if isinstance(content, str) else [b for b in blocks if b.get("type") == "text"],
                    [(b.get("id"), b.get("name"), b.get("input")) for b in blocks if b.get("type") == "tool_use"],
                    "\n".join(b["thinking"] for b in blocks if isinstance(b.get("thinking"), str)), **more)
        elif kind == "user":
            for b in blocks:
                if b.get("type") == "tool_result":
                    log.tell(when, b.get("tool_use_id"), b.get("content"), b.get("is_error"), **more)
        elif kind == "result":
            cost, turns = item.get("total_cost_usd"), item.get("num_turns")
            log.events.append({"type": "result", "cost_usd": cost, "num_turns": turns, "timestamp": when})
            log.measure(cost, turns, table(item.get("usage")), "input_tokens", "output_tokens",
                        "cache_read_input_tokens", "cache_creation_input_tokens")
            if is_number(item.get("duration_ms")):
                log.metrics["duration_s"] = item["duration_ms"] / 1000
        elif kind == "system":
            log.events.append({"type": "system", "subtype": item.get("subtype") or "", "timestamp": when})
        elif kind == "item.completed" and part.get("type") == "agent_message":
            log.say(when, part.get("text"))
        elif kind == "item.completed" and part.get("type") == "command_execution":
            log.say(when, "", [(part.get("id"), "Bash", {"command": part.get("command")})])
            log.tell(when, part.get("id"), part.get("aggregated_output"), part.get("exit_code"))
    return log


def read_trajectory(data):
    """Harbor's trajectory.json (ATIF)."""
    log, total = Log(), table(data.get("final_metrics"))
    for step in tables(data.get("steps"))[:EVENTS_MAX]:
        when = step.get("timestamp")
        if step.get("source") == "agent":
            log.say(when, step.get("message"), [
                (call.get("tool_call_id"), call.get("function_name"), call.get("arguments"))
                for call in tables(step.get("tool_calls"))], flat(step.get("reasoning_content")))
        for result in tables(table(step.get("observation")).get("results")):
            log.tell(when, result.get("source_call_id"), result.get("content"), False)
    turns = sum(event["type"] == "assistant" for event in log.events)
    log.measure(total.get("total_cost_usd"), turns or None, total, "total_prompt_tokens", "total_completion_tokens",
                "total_cached_tokens")
    return log


def conversation(events, thinking=False):
    """Visible text of the agent itself, without its subagents."""
    parts = []
    for event in events:
        if event["type"] == "assistant" and not event.get("parent_tool_use_id"):
            if thinking and "thinking" in event:
                parts.append("[thinking]\n" + event["thinking"])
            parts.append(event["text"])
    return "\n\n".join(part for part in parts if part)


def tool_uses(events):
    return [(event, tool) for event in events for tool in event.get("tools", [])]


def agent_logs(tree, traces):
    """What the agent's logs say, as keys of `outputs`."""
    def text(path):
        data = tree.read(path, LOG_MAX + 1) or b""
        if len(data) > LOG_MAX:
            tree.note("%s is larger than %d bytes: cut" % (path, LOG_MAX))
        return data[:LOG_MAX].decode("utf-8", "replace")

    paths = [path for path, _ in tree.walk()]
    top = [path for path in paths if "/" not in path]
    errors = [path for path in top if "stderr" in path]
    said = [path for path in top if path not in errors and path.endswith((".txt", "stdout.log"))]
    said = {path: text(path) for path in said[:LOGS_MAX]}
    for path in [*said, *[path for path in paths if path.endswith(".jsonl")][:LOGS_MAX]]:
        log = read_stream(said.get(path) or text(path))
        if log.events:
            break
    else:
        log = read_trajectory(load_json(text("trajectory.json")))
    log.metrics.update(load_json(text("run_result.json")))    # written by casepack run
    whole = "\n".join(part.rstrip("\n") for part in said.values())
    out = {"conversation": conversation(log.events) if log.events else whole}
    if traces.get("events", True):
        out["events"] = log.events
    if traces.get("stdout", True) and said:
        out["stdout"] = whole
    if traces.get("stderr", True) and errors:
        out["stderr"] = "\n".join(text(path) for path in errors)
    for name in ("exit_code", "duration_s", "cost_usd", "token_usage", "num_turns"):
        if traces.get("metrics", True) and log.metrics.get(name) is not None:
            out[name] = log.metrics[name]
    if table(log.metrics.get("hook_outputs")):                # data of the dataset's hooks, told by casepack run
        out["hook_outputs"] = log.metrics["hook_outputs"]
    return out


# --- The `outputs` of judges ---

class Shelf:
    """Takes files of the workspace for judges, within the limits."""

    def __init__(self, tree, copies):
        self.tree, self.copies = tree, copies
        self.files, self.bytes, self.copy_bytes = FILES_MAX, TOTAL_MAX, COPY_TOTAL_MAX

    def take(self, path, info, copy=False):
        """Text, a marker, or None when there are too many files; with `copy`
        the file also goes to verifier/outputs, which Harbor downloads."""
        if self.files <= 0:
            self.tree.note("more than %d files: the rest was not given to judges" % FILES_MAX)
            return None
        self.files -= 1
        shown, kept = min(TEXT_MAX, self.bytes), min(COPY_MAX, self.copy_bytes) if copy else 0
        limit, size = max(shown, kept), info.st_size
        data = self.tree.read(path, limit + 1) if size <= limit else None
        if copy and not (data is not None and len(data) <= kept and self.keep(path, data)):
            self.tree.note("%s (%d bytes) was not copied to verifier/outputs" % (path, size))
        marker = {"path": os.path.join(self.tree.path, path), "name": os.path.basename(path)}
        if data is None or len(data) > shown:
            self.tree.note("%s (%d bytes) is too large for judges or cannot be read" % (path, size))
            return dict(marker, _truncated=True, size=size)
        self.bytes -= len(data)
        text = as_text(data)
        return dict(marker, _binary=True) if text is None else text

    def keep(self, path, data):
        self.copy_bytes -= len(data)
        target = os.path.join(self.copies, path)
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "xb") as file:
                return file.write(data) == len(data)


def collect(config, tests, logs, workdir, out, notes):
    """Everything that judges may look at."""
    annotations, declared = config["annotations"], config.get("outputs") or []
    record = {"files": {}, "annotations": annotations, "inputs": config["input"], "case_dir": workdir,
              "conversation": "", "events": [], "steps": {}}
    keys = open_tree(os.path.join(tests, "evaluation"), [])
    for key, value in annotations.items() if keys else ():
        if isinstance(value, str) and len(value) < 256 and value == value.strip() and "\n" not in value:
            text = as_text(keys.read(value, TOTAL_MAX))
            if text is not None:
                record["annotation_%s_content" % key] = text

    real, own = os.path.realpath(workdir) + os.sep, os.path.realpath(tests) + os.sep
    if os.path.islink(workdir) or real.startswith(own):
        raise Problem("the workspace %s is a link or leads to the tests: the agent may have replaced it" % workdir)
    tree = open_tree(workdir, notes)
    if tree is not None:
        shelf, paths = Shelf(tree, os.path.join(out, "outputs")), [output.get("path") or "" for output in declared]
        add_outputs(record, shelf, filter(None, paths))
        add_modified(record, shelf, paths, os.path.join(tests, "start.json"))
        ledger = tree.read("hooks/hook_answers.jsonl")
        if ledger is not None:
            record["hook_answers"] = [load_json(line) for line in ledger.split(b"\n") if line]
        record["interception_configured"] = tree.read("tool_handlers.yaml") is not None

    agent = open_tree(os.path.join(logs, "agent"), notes)
    if agent is not None:
        record.update(agent_logs(agent, config.get("traces") or {}))
    record["tool_calls"] = [
        {"name": tool["name"], "input": tool["input"]} for event, tool in tool_uses(record["events"])
        if not event.get("parent_tool_use_id")
        and any(output["tool"] in tool["name"] for output in declared if output.get("tool"))]
    return record


def add_outputs(record, shelf, paths):
    files = record["files"]
    for path in paths:
        parts = split(path)
        if not parts:
            shelf.tree.note("the output path %s is not below the workspace: skipped" % path)
            continue
        path, key, first = "/".join(parts), parts[-1], True
        for found, info in shelf.tree.walk(*parts):
            if found not in files:
                text = shelf.take(found, info, copy=True)
                if text is None:
                    return
                files[found] = text
            if first and found in (path, os.path.join(path, os.path.basename(found))):   # itself, or directly in it
                first = False
                record[key + "_file"] = os.path.join(shelf.tree.path, found)
                if isinstance(files[found], str):
                    record[key + "_content"] = files[found]


def add_modified(record, shelf, paths, listing):
    if not os.path.isfile(listing):
        return
    with open(listing, encoding="utf-8") as file:
        before = {entry[0]: entry[1:] for entry in json.load(file)["files"]}
    declared = tuple("/".join(split(path)) + "/" for path in paths if split(path))
    record["modified_files"], budget = {}, HASH_TOTAL_MAX
    for path, info in shelf.tree.walk():
        if path.split("/")[0] in HARNESS_NAMES or (path + "/").startswith(declared):
            continue
        mode, digest, size = before.get(path, ("", "", -1))
        if size == info.st_size and mode == ("x" if info.st_mode & 0o111 else "-"):
            if size > budget:
                shelf.tree.note("%s was not compared with the start: too much to hash" % path)
                continue
            budget -= size
            now = hashlib.sha256()
            with contextlib.suppress(OSError), shelf.tree.open(path) as file:   # unreadable now: changed
                for piece in iter(lambda: file.read(1 << 17), b""):
                    now.update(piece)
            if now.hexdigest() == digest:
                continue
        text = shelf.take(path, info)
        if text is None:
            return
        record["files"]["_modified/" + path] = text
        if isinstance(text, str):
            record["modified_files"][path] = text


# --- Judges (each in a process of its own) ---

# What an `if` may call: it is an expression over annotations and outputs.
IF_NAMES = {f.__name__: f for f in (len, any, all, min, max, sum, abs, round, sorted, set, list, dict, tuple, str,
                                    int, float, bool, isinstance, range, enumerate, zip)}


def cost_budget(record, arguments):
    cost, limit = record.get("cost_usd"), arguments.get("max_cost_usd", 1.0)
    if not is_number(cost):
        raise Problem("the agent's logs tell no cost, so the budget of $%.2f cannot be checked" % limit)
    return cost <= limit, "cost $%.2f, budget $%.2f" % (cost, limit)


def simulator_provenance(record, arguments):
    """Every question that was answered for the user has an answer on record, none of them arbitrary."""
    ledger = record.get("hook_answers")
    asked = sum(len(tables(tool["input"].get("questions"))) or 1
                for _, tool in tool_uses(record["events"]) if tool["name"] == "AskUserQuestion")
    if ledger is None and not (asked and record.get("interception_configured")):
        return True, "no intercepted question"
    good = [entry for entry in tables(ledger) if entry.get("tier") in ("override", "llm")]
    bad = [entry for entry in tables(ledger) if entry.get("tier") in ("fallback", "disabled") or entry.get("error")]
    first = "; first: %s" % str(bad[0].get("question") or bad[0].get("reason"))[:80] if bad else ""
    return not bad and len(good) >= asked and ledger is not None, (
        "%d questions asked, %d answers from overrides, answers.yaml or the model, %d others%s" % (
            asked, len(good), len(bad), first))


# None: in judge_llm.py.
BUILTINS = {"efficiency/cost_budget": cost_budget, "process/simulator_provenance": simulator_provenance,
            "safety/no_harmful_content": None, "quality/output_completeness": None}


def builtin_name(judge):
    return next((name for name in BUILTINS if judge.get("builtin") in (name, name.split("/")[1])), None)


def kind_of(judge):
    for kind, keys in (("builtin", ["builtin"]), ("check", ["check"]), ("agent", ["agent"]),
                       ("llm", ["prompt", "prompt_file", "llm_rubric"])):
        if any(judge.get(key) for key in keys):
            return kind
    return "code" if judge.get("module") and judge.get("function") else "none"


def needs_model(judge):
    return kind_of(judge) == "llm" or kind_of(judge) == "builtin" and BUILTINS.get(builtin_name(judge), 0) is None


def gives_bool(judge):
    return judge.get("feedback_type") == "bool" or kind_of(judge) == "builtin"


def gives_number(judge):
    """The judge is known to give scores, so that an error in it cannot hide a failed gate."""
    return bool(judge.get("score_range") or judge.get("feedback_type") in ("int", "float")
                or kind_of(judge) in ("llm", "agent") and not gives_bool(judge))


def evaluate(judge, record, context):
    """One judge's result: {"value", "rationale"[, "samples"]} or {"skipped", ...}."""
    condition, kind, arguments = judge.get("if"), kind_of(judge), judge["arguments"]
    if condition not in (None, ""):
        names = {"__builtins__": IF_NAMES, "annotations": record["annotations"], "outputs": record}
        try:
            holds = eval(str(condition).strip(), names)
        except Exception as error:
            raise Problem("the `if` failed: %s: %s" % (type(error).__name__, error))
        if not holds:
            return {"skipped": True, "rationale": "skipped: `if` is false: %s" % condition}
    if kind == "builtin":
        others = [key for key in ("check", "prompt", "prompt_file", "module", "function", "agent") if judge.get(key)]
        if others:
            raise Problem("`builtin` cannot be combined with %s" % ", ".join(others))
        if builtin_name(judge) is None:
            raise Problem("there is no builtin judge %s; there are %s" % (judge["builtin"], ", ".join(BUILTINS)))
    if needs_model(judge):
        return load_llm().evaluate(judge, record, context)
    if kind == "agent":
        raise Problem("agent judges need the agent-eval harness (--verifier harness)")
    if kind == "none":
        raise Problem("the judge has no check, prompt, prompt_file, llm_rubric, builtin or module and function")
    if kind == "code":
        function = getattr(importlib.import_module(judge["module"]), judge["function"])
        return verdict(function(outputs=record, **arguments), judge)
    function = compile_check(judge) if kind == "check" else BUILTINS[builtin_name(judge)]
    return verdict(function(record, arguments), judge)


def load_llm():
    """judge_llm.py by its path: looked for by name, another could be found."""
    path = os.path.join(HERE, "judge_llm.py")
    if not os.path.isfile(path):
        raise Problem("LLM judges need judge_llm.py beside judge.py, and it is missing: build the package again")
    sys.modules["judge"] = sys.modules[__name__]        # what it imports from
    spec = importlib.util.spec_from_file_location("judge_llm", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_check(judge):
    """The check as function(outputs, arguments). Its statements are parsed as
    they stand and moved into a function: indenting the text would change
    string literals that span lines."""
    source, name = judge["check"], "<check %s>" % judge["name"]
    try:
        tree = ast.parse("def check(outputs, arguments): pass", name)
        try:
            body = ast.parse(source, name).body
        except IndentationError:                        # the whole text is indented
            body = ast.parse("if 1:\n" + source, name).body[0].body
            for statement in body:
                ast.increment_lineno(statement, -1)
        tree.body[0].body = body or tree.body[0].body
        code = compile(tree, name, "exec")
    except (SyntaxError, ValueError) as error:
        raise Problem("the check does not compile: %s" % error)
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {"__name__": "check"}
    exec(code, space)
    return space["check"]


def verdict(result, judge):
    """A judge's return value as {"value", "rationale"}, or Problem."""
    rationale, bounds = "", judge.get("score_range")
    if isinstance(result, tuple) and len(result) == 2:
        result, rationale = result
    elif hasattr(result, "value"):
        result, rationale = result.value, getattr(result, "rationale", "")
    if not isinstance(result, (int, float)):
        raise Problem("the judge returned %s; return True or False, a number, or (value, rationale)" % (
            "nothing" if result is None else "a %s, which is no verdict" % type(result).__name__))
    if not is_number(result):
        raise Problem("the judge returned %.40s, which is not a finite number" % result)
    if bounds and not isinstance(result, bool) and not bounds[0] <= result <= bounds[1]:
        raise Problem("the score %s is outside the declared score_range %s" % (result, bounds))
    plain = next(kind for kind in (bool, int, float) if isinstance(result, kind))   # no subclass
    return {"value": plain(result), "rationale": "" if rationale is None else cut(str(rationale), 20000)}


def explain(error, context):
    """Why a judge failed, for a person who sees nothing else."""
    if isinstance(error, Problem):
        return str(error)
    if isinstance(error, SystemExit):
        return "the judge called sys.exit(%s) instead of returning a verdict" % (error.code,)
    if isinstance(error, ImportError) and error.name:
        return "the judge cannot import %s, neither from tests/judges nor from %s: %s" % (
            error.name, context["place"], error)
    text = type(error).__name__
    with contextlib.suppress(Exception):                # its message may not be showable
        text += ": %s" % error if str(error) else ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith("<check ") or "/judges/" in frame.filename:
            where = "the check" if frame.filename.startswith("<") else os.path.basename(frame.filename)
            return "%s (line %s of %s: %s)" % (text, frame.lineno, where, frame.line or "")
    return text


def child(judge, record, context, pipe):
    """Run one judge and send its result as one line of JSON. Never returns."""
    me = os.getpid()
    try:
        os.setsid()                                     # so that its own children end with it
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(record["case_dir"] if os.path.isdir(record["case_dir"]) else "/")
        sys.dont_write_bytecode = True
        if not needs_model(judge):                      # whose own imports must not be shadowed
            sys.path.insert(0, os.path.join(context["tests"], "judges"))
        try:
            result = evaluate(judge, record, context)
        except BaseException as error:
            result = {"error": explain(error, context)}
        if os.getpid() == me:                           # not a process that the judge forked
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            line = json.dumps(result).encode()
            if len(line) >= REPLY_MAX:
                line = json.dumps({"error": "the judge's result is larger than %d bytes" % REPLY_MAX}).encode()
            with open(pipe, "wb") as file:
                file.write(line + b"\n")
    finally:
        os._exit(0)


def start(judge, record, context, timeout):
    """What finish() needs; the judge works on meanwhile."""
    now = time.monotonic()
    limit = max(0.0, min(timeout, context["deadline"] - now))
    late = "the judge was stopped after %.3g seconds without a verdict" % limit
    if limit < timeout:
        late += ": the verifier's time was up"
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        child(judge, record, dict(context, until=now + 0.9 * limit), writer)
    os.close(writer)
    return pid, reader, now + limit, late


def finish(pid, reader, until, late):
    """The judge's result."""
    data, problem = b"", "the judge's process ended without a verdict"
    while b"\n" not in data and len(data) <= REPLY_MAX:
        if not select.select([reader], [], [], max(0.01, until - time.monotonic()))[0]:
            problem = late
            break
        piece = os.read(reader, 1 << 16)
        if not piece:
            break
        data += piece
    os.close(reader)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
        problem += " (signal %d)" % os.WTERMSIG(status)
    return load_json(data) or {"error": problem}


def run_judges(judges, width, *how):
    """{name: result}; each judge in a process of its own, `width` at a time."""
    waiting, running, results = list(judges), [], {}
    while waiting or running:
        if waiting and len(running) < width:
            judge = waiting.pop(0)
            running.append((judge["name"], start(judge, *how)))
        else:
            name, started = running.pop(0)
            results[name] = finish(*started)
    return results


# --- The report ---

def show(text, limit=300):
    """One line that is safe on a terminal: control and bidi characters are escaped."""
    text = " ".join(str(text).split())[:limit]
    return re.sub("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]",
                  lambda match: "\\u%04x" % ord(match.group()), text)


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def write(path, text):
    """In one step; what lies there is the agent's and goes."""
    remove(path + ".new")
    with open(path + ".new", "xb") as file:
        file.write(text.encode("utf-8", "replace"))
    os.rename(path + ".new", path)


def place(config):
    """Where modules are looked for; a local run says where its files are, and has no image"""
    if os.environ.get("CASEPACK_TESTS_DIR"):
        return "this machine's python3 (%s)" % sys.executable
    return "the image %s" % (config.get("image") or "(unknown)")


def judge_case(config, judges, tests, logs, workdir, out, notes):
    """{judge: its entry in judges.json}"""
    # A tenth of the time is left to write a reward.
    deadline = STARTED + 0.9 * (config.get("verifier_timeout") or VERIFIER_TIMEOUT)
    context = {"tests": tests, "place": place(config), "deadline": deadline,
               "model": (config.get("models") or {}).get("judge")}
    try:
        record = collect(config, tests, logs, workdir, out, notes)
    except Exception as error:
        problem = str(error) if isinstance(error, Problem) else "%s: %s" % (type(error).__name__, error)
        results = dict.fromkeys((judge["name"] for judge in judges), {
            "error": "the outputs could not be read: " + problem})
    else:
        results = run_judges([judge for judge in judges if not needs_model(judge)], 1,
                             record, context, config.get("judge_timeout") or CHECK_TIMEOUT)
        results.update(run_judges([judge for judge in judges if needs_model(judge)], LLM_WIDTH,
                                  record, context, config.get("llm_timeout") or LLM_TIMEOUT))
    entries = {}
    for judge in judges:
        result = results[judge["name"]]
        if not (result.get("error") or result.get("skipped") or is_number(result.get("value"))):
            result = {"error": "the judge gave no verdict"}
        entries[judge["name"]] = {
            "name": judge["name"], "kind": kind_of(judge), "value": result.get("value"),
            "rationale": result.get("rationale") or "", "error": result.get("error"),
            "skipped": bool(result.get("skipped")), "samples": result.get("samples") or []}
    return entries


def main():
    options = argparse.ArgumentParser(description="Judge one case and write its reward.")
    options.add_argument("--tests", default=HERE)
    options.add_argument("--logs", default="/logs")
    options.add_argument("--workdir", default="")
    options = options.parse_args()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    tests, logs = os.path.abspath(options.tests), os.path.abspath(options.logs)
    out = os.path.join(logs, "verifier")
    if os.path.islink(out) or not os.path.isdir(out):
        remove(out)
        os.makedirs(out)
    for name in ("reward.json", "reward.txt", "judges.json", "outputs"):
        remove(os.path.join(out, name))
    try:
        config = load_config(tests)
    except Exception as error:
        print("casepack: no reward was written: %s: %s" % (type(error).__name__, show(error)), file=sys.stderr)
        return 1

    judges, notes = [judge for judge in config["judges"] if judge["name"] != "pairwise"], []
    workdir = os.path.abspath(options.workdir or config.get("workdir") or os.getcwd())
    entries = judge_case(config, judges, tests, logs, workdir, out, notes)
    errors = sum(bool(entry["error"]) for entry in entries.values())
    reward, scores, more = final_reward(entries, config.get("reward"), judges)
    notes += more
    if not judges:
        reward, scores = 0.0, {"casepack_unjudged": 1}
        notes.append("there are no judges here: the case is unjudged")
    elif not scores and not errors:
        notes.append("no judge gave a verdict: all were skipped")
    scores["reward"] = reward
    if errors:
        scores["casepack_judge_errors"] = errors

    report = {"schema": "casepack.judges.v1", "dataset": config.get("dataset"), "case": config.get("case"),
              "step": config.get("step"), "reward": reward, "judges": list(entries.values()), "notes": notes}
    for name, text in (("judges.json", json.dumps(report, indent=1, sort_keys=True, ensure_ascii=False)),
                       ("reward.txt", repr(reward)),
                       ("reward.json", json.dumps(scores, sort_keys=True, allow_nan=False))):
        write(os.path.join(out, name), text + "\n")
    for name, entry in entries.items():
        value = entry["value"]
        state = ("ERROR" if entry["error"] else "skip" if entry["skipped"] else
                 ("FAIL", "pass")[value] if isinstance(value, bool) else "%.4g" % value)
        print("%-8s %s  %s" % (state, show(name, 80), show(entry["error"] or entry["rationale"])))
    for text in notes:
        print("note: %s" % show(text))
    print("reward: %.4g%s" % (reward, " (%d of %d judges errored)" % (errors, len(judges)) if errors else ""))
    return 0


if __name__ == "__main__":
    if sys.version_info < (3, 8):
        sys.exit("casepack: no reward was written: judge.py needs Python 3.8 or newer, this is %d.%d" % sys.version_info[:2])
    sys.exit(main())
