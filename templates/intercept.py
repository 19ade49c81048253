#!/usr/bin/env python3
"""PreToolUse hook of Claude Code: answers questions and keeps tools away from
an agent that works without a person.

    python3 -I "$CLAUDE_PROJECT_DIR/hooks/tools.py"      (stdin: the hook's JSON)

Reads tool_handlers.yaml beside this file's directory (or in the current one):

    handlers:                          the first that matches a call decides
    - match: what it is about          (words for people)
      patterns: [AskUserQuestion]      tool names, `*` matches any text
      input_filters: [jira]            Bash only: regular expressions, one must match
      env_checks: {VAR: {must_contain: [localhost]}}
      prompt: what to answer, or why the tool is denied
      prompt_file: the same in a file
    hook_model: model that answers questions
    case_overrides: {question: answer}

AskUserQuestion is answered from case_overrides, else answers.yaml or .json
(a key that equals the question's text or header), else by hook_model when a key
for it is in the environment, else with the first option. Other calls that match
are denied with the handler's prompt, unless env_checks are given and hold.
Calls that match nothing pass.

Why "allow" with answers: Claude Code runs AskUserQuestion without a person only
if a hook returns "allow" together with updatedInput that repeats the input and
adds `answers`, {question text: chosen label} (code.claude.com/docs/en/hooks).

Claude Code lets a call pass when its hook fails. So whatever goes wrong here is
a denial that says what, never a silent pass. Standard library only, Python 3.8+;
casepack writes tool_handlers.yaml as JSON, other YAML needs PyYAML.
Every answer is recorded in hook_answers.jsonl beside this file.
"""
import datetime
import fnmatch
import json
import os
import re
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
INPUT_MAX, FILE_MAX, TEXT_MAX = 8 << 20, 1 << 20, 100000
BUDGET = 45.0                 # seconds for all model calls: Claude Code's own limit is 60 by default
REQUEST_TIMEOUT = 20.0
CONFIRM = "yes"               # the answer to a question without options
STARTED = time.monotonic()


class Problem(Exception):
    """Why no decision could be made, in words for the agent and the log."""


def read(path):
    """Text of a regular file that is no link; None when there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return file.read(FILE_MAX).decode("utf-8", "replace")
    except OSError:
        return None


def parse(text, name):
    """JSON, or YAML when PyYAML is there."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        import yaml
    except ImportError:
        raise Problem("%s is YAML, which needs the module yaml (PyYAML) in the image; casepack writes it as JSON" % name)
    try:
        return yaml.safe_load(text)
    except Exception as error:
        raise Problem("%s cannot be read: %s" % (name, error))


def load_handlers():
    for base in (os.path.dirname(HERE), HERE, os.getcwd()):
        text = read(os.path.join(base, "tool_handlers.yaml"))
        if text is None:
            continue
        data = parse(text, "tool_handlers.yaml")
        if not isinstance(data, dict) or not isinstance(data.get("handlers") or [], list):
            raise Problem("tool_handlers.yaml has no list of handlers")
        return data, base
    raise Problem("tool_handlers.yaml is missing")


def find_handler(tool, given, handlers):
    for handler in handlers:
        if not isinstance(handler, dict):
            raise Problem("tool_handlers.yaml has a handler that is no mapping")
        patterns = handler.get("patterns") or []
        if isinstance(patterns, str):
            patterns = [patterns]
        if not any(fnmatch.fnmatchcase(tool, str(pattern)) for pattern in patterns):
            continue
        filters = handler.get("input_filters") or []
        command = str(given.get("command") or "")
        if tool == "Bash" and filters and not any(re.search(str(f), command, re.I) for f in filters):
            continue
        return handler
    return None


def advice(handler, base):
    """The handler's prompt; a prompt_file is read below the directory of tool_handlers.yaml."""
    if handler.get("prompt"):
        return str(handler["prompt"]).strip()
    path = str(handler.get("prompt_file") or "")
    if path and not path.startswith("/") and ".." not in path.split("/"):
        return (read(os.path.join(base, path)) or "").strip()
    return ""


def env_problem(checks):
    for name, check in checks.items():
        value, wanted = os.environ.get(name, ""), (check or {}).get("must_contain") or []
        wanted = [wanted] if isinstance(wanted, str) else wanted
        if wanted and not any(str(part).lower() in value.lower() for part in wanted):
            return "the environment variable %s must contain one of: %s" % (name, ", ".join(map(str, wanted)))
    return None


# --- Answers -----------------------------------------------------------------

def plain(value):
    """An answer as text: YAML's true is what people write as yes."""
    if isinstance(value, dict):
        value = value.get("answer")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return [str(item) for item in value]
    return None if value is None else str(value)


def guidance(bases):
    """(text of answers.yaml, its mapping). It is free text for a model first of all, so what
    cannot be read as a mapping is no error."""
    for base in bases:
        for name in ("answers.yaml", "answers.yml", "answers.json"):
            text = read(os.path.join(base, name))
            if text is None:
                continue
            try:
                data = parse(text, name)
            except Problem:
                data = flat_lines(text)
            if isinstance(data, dict):
                inner = data.get("answers")
                return text, dict(data, **inner) if isinstance(inner, dict) else data
            return text, {}
    return "", {}


def flat_lines(text):
    """`key: value` lines at the left margin: what can be said without a YAML reader."""
    found = {}
    for line in text.split("\n"):
        match = re.match(r"""("[^"]*"|'[^']*'|[^\s#'"\-?:][^:#]*)\s*:\s+([^|>&*!\[{%@].*)$""", line)
        if match:
            key, value = (part.strip() for part in match.groups())
            if value[:1] not in "\"'":
                value = re.sub(r"\s+#.*$", "", value)
            found[key.strip("\"'")] = value.strip("\"'")
    return found


def same(key, *names):
    return str(key).strip().lower() in [name.strip().lower() for name in names if name]


def fit(answer, labels, several):
    """The option an answer means; free text where there is none of that name."""
    if isinstance(answer, list):
        answer = answer if several else answer[:1]
        return ", ".join(fit(item, labels, False) for item in answer)
    return next((label for label in labels if same(label, answer)), answer)


def answer(question, config, bases, prompt, ask=None):
    """(answer, how it was found, details) for one question."""
    text, header = str(question.get("question") or ""), str(question.get("header") or "")
    options = [o for o in question.get("options") or [] if isinstance(o, dict) and o.get("label")]
    labels, several = [str(option["label"]) for option in options], bool(question.get("multiSelect"))
    overrides, model = config.get("case_overrides") or {}, config.get("hook_model")
    for key, value in overrides.items():
        if same(key, text, header) and plain(value) is not None:
            return fit(plain(value), labels, several), "override", {"source": "case_overrides"}
    notes, known = guidance(bases)
    for key, value in known.items():
        if same(key, text, header) and plain(value) is not None:
            return fit(plain(value), labels, several), "override", {"source": "answers"}
    details = {}
    if model:
        details["hook_model"] = str(model)
        try:
            said = (ask or ask_model)(str(model), question_prompt(text, options, several, prompt, notes, bases))
            said = said.strip().strip("\"'").strip()
            parts = [part.strip() for part in said.split(",")] if several else [said]
            chosen = [label for part in parts for label in labels if same(label, part)]
            if labels and len(chosen) == len(parts):
                return ", ".join(chosen), "llm", details
            if said and not labels:
                return said[:500], "llm", details
            details["llm_raw"] = said[:500]
        except Exception as error:
            details["error"] = ("%s" % error)[:500]
    return (labels[0] if labels else CONFIRM), "fallback", details


def question_prompt(text, options, several, prompt, notes, bases):
    case = next(filter(None, (read(os.path.join(base, name)) for base in bases
                              for name in ("input.yaml", "input.yml", "input.json"))), "")
    shown = "\n".join("- %s: %s" % (option["label"], option.get("description") or "") for option in options)
    return ("Answer a question for a user who is not there.\n\nInstructions:\n%s\n\nThe case:\n%s\n\nGuidance for "
            "answers:\n%s\n\nQuestion: %s\n\nOptions:\n%s\n\nReply with nothing but %s." % (
                prompt or "(none)", case[:TEXT_MAX], notes[:TEXT_MAX] or "(none)", text, shown or "(free text)",
                ("the labels of the options that apply, separated by commas" if several else
                 "the label of the option") if options else "the answer"))


def ask_model(model, prompt):
    """The text that the model replies. Anthropic's or an OpenAI-compatible API."""
    import urllib.error
    import urllib.request
    env = {key: os.environ.get(key, "").strip() for key in (
        "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL")}
    anthropic = env["ANTHROPIC_API_KEY"] or env["ANTHROPIC_AUTH_TOKEN"]
    openai = env["OPENAI_API_KEY"] or env["OPENAI_BASE_URL"]
    if not anthropic and not openai:
        raise Problem("hook_model is set, but neither ANTHROPIC_API_KEY nor OPENAI_API_KEY")
    headers, body = {"content-type": "application/json"}, {"model": model, "messages": [{"role": "user", "content": prompt}]}
    anthropic = bool(anthropic) and (not openai or "claude" in model.lower())
    if anthropic:
        url = (env["ANTHROPIC_BASE_URL"] or "https://api.anthropic.com").rstrip("/") + "/v1/messages"
        headers["anthropic-version"] = "2023-06-01"
        if env["ANTHROPIC_API_KEY"]:
            headers["x-api-key"] = env["ANTHROPIC_API_KEY"]
        else:
            headers["authorization"] = "Bearer " + env["ANTHROPIC_AUTH_TOKEN"]
        body["max_tokens"] = 256
    else:
        url = (env["OPENAI_BASE_URL"] or "https://api.openai.com/v1").rstrip("/") + "/chat/completions"
        if env["OPENAI_API_KEY"]:
            headers["authorization"] = "Bearer " + env["OPENAI_API_KEY"]

    class Stay(urllib.request.HTTPRedirectHandler):       # the key goes to the configured host only
        def redirect_request(self, *_):
            return None

    opener = urllib.request.build_opener(Stay, urllib.request.ProxyHandler(urllib.request.getproxies_environment()))
    for last in (False, True):
        left = BUDGET - (time.monotonic() - STARTED)
        if left < 2:
            raise Problem("no time is left for the model")
        try:
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            with opener.open(request, timeout=min(left, REQUEST_TIMEOUT)) as response:
                reply = json.loads(response.read(FILE_MAX))
            if anthropic:
                return "".join(block.get("text") or "" for block in reply["content"])
            return reply["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            if last or error.code not in (408, 409, 429) and error.code < 500:
                raise Problem("the provider answered HTTP %d" % error.code)
        except OSError as error:
            if last:
                raise Problem("the provider cannot be reached: %s" % error)
        time.sleep(1)


def record(entry):
    """Append to the ledger; a failure must not change the decision."""
    try:
        entry["ts"] = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(os.path.join(HERE, "hook_answers.jsonl"), flags, 0o644)
        with os.fdopen(fd, "wb") as file:
            file.write((json.dumps(entry, default=str) + "\n").encode())
    except Exception:
        pass


# --- Decisions ---------------------------------------------------------------

def decide(call, ask=None):
    """The hook's answer for one call; None lets it pass."""
    tool, given = call.get("tool_name"), call.get("tool_input")
    given = given if isinstance(given, dict) else {}
    if not isinstance(tool, str) or not tool:
        raise Problem("the hook's input names no tool")
    config, base = load_handlers()
    handler = find_handler(tool, given, config.get("handlers") or [])
    if handler is None:
        return None
    if tool == "AskUserQuestion":
        cwd = call.get("cwd") if isinstance(call.get("cwd"), str) else os.getcwd()
        bases, prompt, answers = [cwd, base], advice(handler, base), {}
        questions = [q for q in given.get("questions") or [] if isinstance(q, dict)]
        if not questions:
            raise Problem("AskUserQuestion came without questions")
        for question in questions:
            text, tier, details = answer(question, config, bases, prompt, ask)
            answers[str(question.get("question") or "")] = text
            labels = [str(o.get("label")) for o in question.get("options") or [] if isinstance(o, dict)]
            record(dict(details, tier=tier, question=question.get("question"), options=labels, answer=text))
            if tier == "fallback":
                print("casepack: no answer is on file for %r, so it got %r" % (question.get("question"), text),
                      file=sys.stderr)
        return {"permissionDecision": "allow", "updatedInput": dict(given, answers=answers),
                "permissionDecisionReason": "answered by the evaluation"}
    if handler.get("env_checks"):
        problem = env_problem(handler["env_checks"])
        return deny("%s %s" % (advice(handler, base), problem)) if problem else None
    reason = advice(handler, base) or "The evaluation does not allow this tool: %s" % (handler.get("match") or tool)
    if tool == "Bash" and not handler.get("input_filters"):
        reason += " (Every Bash command is denied: this handler of tool_handlers.yaml has no input_filters.)"
    return deny(reason)


def deny(reason):
    return {"permissionDecision": "deny", "permissionDecisionReason": reason.strip()[:4000]}


def main():
    try:
        try:
            call = json.loads(sys.stdin.buffer.read(INPUT_MAX))
            if not isinstance(call, dict):
                raise Problem("the hook's input is no JSON object")
            decision = decide(call)
        except (Exception, RecursionError) as error:
            what = str(error) if isinstance(error, Problem) else "%s: %s" % (type(error).__name__, error)
            record({"tier": "disabled", "reason": what})
            decision = deny("The evaluation's tool interception failed, so the call is denied: %s" % what)
        if decision is not None:
            decision["hookEventName"] = "PreToolUse"
            sys.stdout.write(json.dumps({"hookSpecificOutput": decision}) + "\n")
            sys.stdout.flush()
        return 0
    except BaseException:
        return 2                      # Claude Code blocks the call


if __name__ == "__main__":
    sys.exit(main())
