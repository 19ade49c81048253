"""Tests of the files that casepack puts into packages: test.sh, judge.py, judge_llm.py, intercept.py.

    python3 -m unittest discover -s tests/python        (standard library only)

Most tests run the real thing: test.sh in a temporary package, as Harbor does.
CASEPACK_TEST_PYTHON names another interpreter for the files under test.
"""
import base64
import concurrent.futures
import contextlib
import hashlib
import http.server
import importlib.util
import io
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "templates"
PYTHON = os.environ.get("CASEPACK_TEST_PYTHON") or sys.executable
HANG = 45       # seconds: what is not stopped goes on for a minute or more, a busy machine needs less
PROVIDERS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL",
             "EVAL_JUDGE_MODEL")


def load(name):
    spec = importlib.util.spec_from_file_location(name, TEMPLATES / (name + ".py"))
    module = importlib.util.module_from_spec(spec)
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = kept
    return module


judge = load("judge")
sys.modules["judge"] = judge                   # as judge.py does before it loads the other
judge_llm, intercept = load("judge_llm"), load("intercept")


def vectors():
    for up in (ROOT.parent, ROOT.parent.parent):
        path = up / "shared" / "vectors" / "aeh" / "reward.json"
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    return None


def check(body, name="c", **more):
    return dict({"name": name, "check": textwrap.dedent(body)}, **more)


class Together(unittest.TestSuite):
    """Runs tests side by side: they wait for their own processes most of the time."""

    def run(self, result, debug=False):
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda test: test(result), self))
        return result


def load_tests(loader, suites, pattern):
    return Together(test for suite in suites for test in suite)


class Package:
    """A task package with its logs and a workspace in a temporary directory."""

    def __init__(self, test):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="casepack-judge-"))
        test.addCleanup(shutil.rmtree, str(self.root), ignore_errors=True)
        self.tests, self.logs, self.work = self.root / "tests", self.root / "logs", self.root / "work"
        for path in (self.tests, self.logs / "agent", self.work):
            path.mkdir(parents=True)
        for name in ("test.sh", "judge.py"):
            shutil.copy(str(TEMPLATES / name), str(self.tests / name))
        self.bin = self.root / "bin"
        self.bin.mkdir()
        (self.bin / "python3").symlink_to(PYTHON)
        self.env, self.llm = {}, True

    def put(self, where, path, content="", mode=None):
        target = where / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        if mode is not None:
            target.chmod(mode)
        return target

    def start(self):
        """Take the listing of the workspace as casepack does before the agent runs."""
        files = []
        for path in sorted(p for p in self.work.rglob("*") if p.is_file()):
            data = path.read_bytes()
            files.append([str(path.relative_to(self.work)), "x" if path.stat().st_mode & 0o111 else "-",
                          hashlib.sha256(data).hexdigest(), len(data)])
        self.put(self.tests, "start.json", json.dumps({"files": files}))

    def run(self, *judges, **config):
        if self.llm and any(map(judge.needs_model, judges)):        # else packages have none
            shutil.copy(str(TEMPLATES / "judge_llm.py"), str(self.tests / "judge_llm.py"))
        config = dict({"schema": "casepack.verifier.v1", "dataset": "d", "case": "case-001", "step": None,
                       "image": "registry/img:1", "workdir": "/nowhere", "judges": list(judges)}, **config)
        self.put(self.tests, "config.json", json.dumps(config))
        env = {key: value for key, value in os.environ.items() if key not in PROVIDERS}
        env.update(CASEPACK_TESTS_DIR=str(self.tests), CASEPACK_LOGS_DIR=str(self.logs),
                   CASEPACK_WORKDIR=str(self.work), PATH="%s:%s" % (self.bin, os.environ["PATH"]), **self.env)
        done = subprocess.run(["sh", str(self.tests / "test.sh")], cwd=str(self.work), env=env,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=180)
        self.text, self.status = done.stdout.decode("utf-8", "replace"), done.returncode
        out = self.logs / "verifier"
        if (out / "reward.json").is_file():
            self.scores = json.loads((out / "reward.json").read_text(encoding="utf-8"))
            self.report = json.loads((out / "judges.json").read_text(encoding="utf-8"))
            self.judges = {entry["name"]: entry for entry in self.report["judges"]}
            assert float((out / "reward.txt").read_text()) == self.scores["reward"]
        else:
            self.scores = self.report = self.judges = None
        return self


class Rewards(unittest.TestCase):
    def setUp(self):
        self.vectors = vectors()
        if self.vectors is None:
            print("skipped: the reward vectors are not beside this repository")
            self.skipTest("no vectors")

    def test_every_compose_row(self):
        rows = self.vectors["compose"]
        self.assertGreater(len(rows), 40)
        for row in rows:
            with self.subTest(row["name"]):
                reward, metrics, notes = judge.compose(row["per_judge"], row["reward_section"],
                                                       row["judge_score_ranges"])
                self.assertAlmostEqual(reward, row["expect"]["reward"], places=12)
                self.assertEqual(metrics, row["expect"]["metrics"])
                if row["expect"].get("warned"):
                    self.assertTrue(notes)

    def test_every_formula_row(self):
        rows = self.vectors["formulas"]
        self.assertGreater(len(rows), 40)
        for row in rows:
            with self.subTest(row["formula"]):
                try:
                    judge.validate_formula(row["formula"])
                    valid = True
                except ValueError:
                    valid = False
                self.assertEqual(valid, row["valid"])


class RewardEdges(unittest.TestCase):
    def test_not_a_number_is_no_reward(self):
        inf = {"formula": " * ".join(["1e6"] * 6) + " * " + " * ".join(["(1e6 * 1e6 * 1e6 * 1e6)"] * 9), "gate": False}
        self.assertEqual(judge.compose({"s": {"value": 5}}, inf, {})[0], 1.0)
        big = " * ".join(["1e6"] * 12)
        nan = {"formula": "x = %s\ny = x * x * x * x * x\ny - y" % big}
        reward, _, notes = judge.compose({"s": {"value": 5}}, nan, {})
        self.assertEqual(reward, 0.0)
        self.assertIn("not a number", notes[0])
        self.assertEqual(judge.clamp(float("nan")), 0.0)

    def test_null_keys_are_defaults(self):
        keys = ("formula", "weights", "gate", "score_range", "raw", "judge", "normalize")
        block = dict.fromkeys(keys)
        self.assertEqual(judge.compose({"s": {"value": 5}}, block, {})[0], 0.0)
        self.assertEqual(judge.compose({"s": {"value": 5}}, dict(block, weights={"s": 1}), {})[0], 1.0)
        failed = {"s": {"value": 5}, "b": {"value": False}}
        self.assertEqual(judge.compose(failed, dict(block, weights={"s": 1}), {})[0], 0.0)
        self.assertEqual(judge.compose(failed, dict(block, judge="s", normalize=True), {})[0], 1.0)

    def test_the_size_of_formulas(self):
        judge.validate_formula("[%s]" % ", ".join(["1"] * 196))       # Module, Expr, List, Load: 200 nodes
        with self.assertRaises(ValueError):
            judge.validate_formula("[%s]" % ", ".join(["1"] * 197))

    def test_deep_and_hostile_formulas_are_refused(self):
        for text in ("(" * 5000 + ")" * 5000, "-" * 5000 + "1", "\0", "a" + ".b" * 60, "2 ** 9", "lambda: 1"):
            with self.assertRaises(ValueError, msg=text[:20]):
                judge.validate_formula(text)

    def test_an_error_never_raises_the_reward(self):
        check_judge, score_judge = {"name": "a", "check": "x"}, {"name": "a", "prompt": "x"}
        results = {"a": {"value": None, "error": "boom"}, "s": {"value": 5}}
        numeric = {"name": "s", "check": "x"}
        for first, reward, expected in (
                (check_judge, None, 0.0),                               # it may have been a gate
                (score_judge, None, 0.5),                               # it counts as its lowest score
                (check_judge, {"weights": {"s": 1}, "gate": False}, 1.0),   # it has no part in the reward
                (score_judge, {"weights": {"s": 1, "a": 3}}, 0.25),
                (score_judge, {"formula": "1 - a"}, 0.0),
                (check_judge, {"judge": "s", "normalize": True}, 1.0),
                (check_judge, {"judge": "a"}, 0.0),
                (score_judge, {"weights": {"s": 1, "a": 1}, "raw": ["a"], "score_range": [-10, 5]}, 0.5)):
            with self.subTest(first=first, reward=reward):
                self.assertEqual(judge.final_reward(results, reward, [first, numeric])[0], expected)


class Checks(unittest.TestCase):
    def one(self, body, **more):
        package = Package(self)
        package.put(package.work, "out/a.txt", "hello\n")
        package.run(check(body, **more), outputs=[{"path": "out"}], annotations={"want": "hello", "n": 3})
        self.assertEqual(package.status, 0, package.text)
        return package

    def all(self, *rows, **more):
        """One run with a check per row: a body, or a dict."""
        package = Package(self)
        package.put(package.work, "out/a.txt", "hello\n")
        package.run(*[dict(check(row), name="c%d" % n) if isinstance(row, str) else dict(row, name="c%d" % n)
                      for n, row in enumerate(rows)], outputs=[{"path": "out"}], annotations={"want": "hello", "n": 3},
                    **more)
        self.assertEqual(package.status, 0, package.text)
        return package, [package.judges["c%d" % n] for n in range(len(rows))]

    def test_verdicts(self):
        rows = (("return True", True), ("return False", False), ("return 3", 3), ("return 2.5", 2.5),
                ("return True, 'why'", True), ("return 4, None", 4),
                ("class V(float): pass\nprint('y' * 100000)\nreturn V(1.5)", 1.5),
                ("class F: value = 2; rationale = 'because'\nreturn F()", 2))
        _, entries = self.all(*[body for body, _ in rows])
        for (body, value), entry in zip(rows, entries):
            with self.subTest(body):
                self.assertIs(type(entry["value"]), type(value))
                self.assertEqual((entry["value"], entry["error"]), (value, None))
        self.assertEqual((entries[4]["rationale"], entries[5]["rationale"]), ("why", ""))
        self.assertEqual(entries[-1]["rationale"], "because")

    def test_no_verdict_is_an_error(self):
        rows = (("pass", "returned nothing"), ("return 'yes'", "a str"), ("return (True, 'a', 1)", "a tuple"),
                ("return None, 'n/a'", "returned nothing"), ("return []", "a list"),
                ("return float('nan')", "finite"), ("return 10 ** 400", "finite"),
                ("retrun True", "does not compile"), ("return outputs['nope']", "KeyError"),
                ("yield 1", "generator"), ("raise SystemExit(0)", "sys.exit(0)"),
                ("import sys\nsys.exit()", "sys.exit"), ("import os\nos._exit(0)", "ended without"),
                ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
                ("raise KeyboardInterrupt", "KeyboardInterrupt"),
                ("def f(): return f()\nreturn f()", "RecursionError"),
                ("raise Exception", "Exception"), ("# nothing", "returned nothing"),
                ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E (line 3"))
        package, entries = self.all(*[body for body, _ in rows])
        for (body, words), entry in zip(rows, entries):
            with self.subTest(body):
                self.assertIn(words, entry["error"])
                self.assertIsNone(entry["value"])
        self.assertEqual(package.scores, {"reward": 0.0, "casepack_judge_errors": len(rows)})
        self.assertEqual(package.text.count("ERROR"), len(rows))

    def test_one_error_is_no_reward(self):
        package = self.one("pass")
        self.assertEqual(package.scores, {"reward": 0.0, "casepack_judge_errors": 1})

    def test_an_error_names_the_line(self):
        package = self.one("print('the check ' 'says')\n\nreturn undefined_name")
        error = package.judges["c"]["error"]
        self.assertIn("the check says\n", package.text)
        self.assertIn("line 3 of the check: return undefined_name", error)

    def test_string_literals_are_kept_as_written(self):
        body = 'text = """a\n  b\nc"""\nreturn text == "a\\n  b\\nc", repr(text)'
        self.assertIs(self.one(body).judges["c"]["value"], True)

    def test_an_indented_check_works_and_keeps_its_literals(self):
        package = Package(self)
        package.run({"name": "c", "check": '    x = """a\nb"""\n    return x == "a\\nb"'})
        self.assertIs(package.judges["c"]["value"], True)

    def test_a_check_is_a_function(self):
        self.assertIs(self.one("""
            total = 0
            def add(n):
                nonlocal total
                total += n
            for n in range(4): add(n)
            return total == 6 and sum(total for _ in 'ab') == 12
        """).judges["c"]["value"], True)

    def test_arguments(self):
        entry = self.one("return arguments['limit'] > 1, str(arguments)",
                         arguments={"limit": 2, "day": {"$py": "date", "v": "2024-01-31"}}).judges["c"]
        self.assertIs(entry["value"], True)
        self.assertIn("datetime.date(2024, 1, 31)", entry["rationale"])

    def test_ranges_are_checked_only_when_declared(self):
        self.assertEqual(self.one("return 9").scores["reward"], 1.0)
        package = self.one("return 9", score_range=[0, 2])
        self.assertIn("outside the declared score_range", package.judges["c"]["error"])
        self.assertEqual(package.scores["reward"], 0.0)
        self.assertEqual(self.one("return 1", score_range=[0, 2]).scores["reward"], 0.5)
        self.assertIs(self.one("return False", score_range=[0, 2]).judges["c"]["value"], False)

    def test_a_missing_module_names_module_and_image(self):
        error = self.one("import no_such_module_xyz\nreturn True").judges["c"]["error"]
        self.assertIn("no_such_module_xyz", error)
        # It was run as a local run runs it; in a container the image is to be mended.
        self.assertIn("this machine's python3 (", error)
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("CASEPACK_TESTS_DIR", None)
            self.assertEqual(judge.place({"image": "registry/img:1"}), "the image registry/img:1")

    def test_timeouts(self):
        package = Package(self)
        began = time.monotonic()
        package.run(check("while True: pass", "loop"), check("import time\ntime.sleep(60)", "sleep"),
                    check("import subprocess\nsubprocess.run(['sleep', '60'])", "spawn"),
                    check("return True", "good"), judge_timeout=1)
        self.assertLess(time.monotonic() - began, HANG)
        for name in ("loop", "sleep", "spawn"):
            self.assertIn("stopped after 1 seconds", package.judges[name]["error"])
            self.assertNotIn("time was up", package.judges[name]["error"])
        self.assertIs(package.judges["good"]["value"], True)
        self.assertEqual(package.scores, {"reward": 0.0, "good": 1.0, "casepack_judge_errors": 3})

    def test_children_of_a_check_do_not_outlive_it(self):
        package = self.one("import subprocess, os\n"
                           "p = subprocess.Popen(['sleep', '300'])\nreturn True, str(p.pid)")
        pid = int(package.judges["c"]["rationale"])
        for _ in range(50):
            state = pathlib.Path("/proc/%d/stat" % pid)
            if not state.exists() or state.read_text().split(")")[-1].split()[0] == "Z":
                return
            time.sleep(0.1)
        self.fail("the check's child is still running")

    def test_too_large_a_result_is_an_error(self):
        package = self.one("return True, 'x' * 10 ** 7")
        self.assertEqual(len(package.judges["c"]["rationale"]), 20000 + len("[truncated]"))

    def test_a_broken_judge_does_not_stop_the_others(self):
        package = Package(self)
        package.run(check("raise ValueError('x')", "bad"), check("return 5", "good"), check("oops(", "worse"))
        self.assertEqual(package.scores["good"], 5.0)
        self.assertEqual(package.scores["reward"], 0.0)
        self.assertEqual(package.scores["casepack_judge_errors"], 2)
        self.assertEqual([entry["name"] for entry in package.report["judges"]], ["bad", "good", "worse"])

    def test_judges_do_not_see_each_other(self):
        package = Package(self)
        package.run(check("outputs['files']['x'] = 1\nimport builtins\nbuiltins.leak = 1\nreturn True", "a"),
                    check("import builtins\nreturn not outputs['files'] and not hasattr(builtins, 'leak')", "b"))
        self.assertEqual(package.scores["reward"], 1.0)

    def test_conditions(self):
        rows = (("annotations.get('want')", "run"), ("annotations['want'] == 'no'", "skip"), ("", "run"), (None, "run"),
                ("len(outputs['files']) == 1 and any(p.endswith('.txt') for p in outputs['files'])", "run"),
                ("all(annotations[k] for k in ['want', 'n'])", "run"), ("annotations['absent']", "error"),
                ("nope", "error"), ("__import__('os')", "error"), ("open('/etc/passwd')", "error"),
                ("1 +", "error"), (False, "skip"), (True, "run"), ("  \n annotations['n'] > 2\n", "run"))
        _, entries = self.all(*[check("return True", **{"if": condition}) for condition, _ in rows])
        for (condition, expected), entry in zip(rows, entries):
            with self.subTest(condition):
                state = "skip" if entry["skipped"] else "error" if entry["error"] else "run"
                self.assertEqual(state, expected, entry)
                if state == "error":
                    self.assertIn("`if` failed", entry["error"])

    def test_all_skipped_is_said_aloud(self):
        package = self.one("return True", **{"if": "False"})
        self.assertEqual(package.scores, {"reward": 1.0})
        self.assertIn("all were skipped", package.text)

    def test_no_judges_is_unjudged(self):
        package = Package(self).run()
        self.assertEqual(package.scores, {"reward": 0.0, "casepack_unjudged": 1})
        package = Package(self).run({"name": "pairwise", "prompt": "compare"})
        self.assertEqual(package.scores, {"reward": 0.0, "casepack_unjudged": 1})

    def test_a_judge_called_reward_does_not_replace_the_reward(self):
        package = Package(self).run(check("return 2", "reward"), check("return False", "b"))
        self.assertEqual(package.scores, {"reward": 0.0, "b": 0.0})

    def test_a_judge_without_a_kind_and_an_agent_judge_are_errors(self):
        package = Package(self).run({"name": "n"}, {"name": "a", "agent": {"timeout": 5}, "prompt": "p"})
        self.assertIn("no check", package.judges["n"]["error"])
        self.assertIn("harness", package.judges["a"]["error"])
        self.assertEqual(package.judges["a"]["kind"], "agent")

    def test_names_and_rationales_cannot_write_to_the_terminal(self):
        package = self.one("return False, '\\x1b]0;x\\x07 \\u202e evil\\nnext'", name="n\u001b[31m")
        self.assertNotIn("\x1b", package.text)
        self.assertNotIn("\u202e", package.text)
        self.assertIn("\\u202e", package.text)

    def test_formula_and_weights_reach_the_reward(self):
        judges = [check("return True", "a"), check("return 3", "s")]
        package = Package(self).run(*judges, reward={"formula": "a * s", "gate": False})
        self.assertEqual(package.scores, {"reward": 0.5, "a": 1.0, "s": 3.0})
        package = Package(self).run(*judges, reward={"formula": "a * nope"})
        self.assertEqual(package.scores["reward"], 0.0)
        self.assertIn("formula failed", package.text)


class Modules(unittest.TestCase):
    def test_code_judges(self):
        package = Package(self)
        package.put(package.tests, "judges/scoring.py", "def f(outputs, **kw):\n    return len(kw) == 0, 'plain'\n")
        package.put(package.tests, "judges/lib/deep/more.py",
                    "from lib.deep import helper\n\ndef g(outputs, limit):\n    return helper.N + limit\n")
        package.put(package.tests, "judges/lib/deep/helper.py", "N = 1\n")
        package.put(package.work, "hostile.py", "raise SystemExit(0)\n")
        package.run({"name": "a", "module": "scoring", "function": "f"},
                    {"name": "b", "module": "lib.deep.more", "function": "g", "arguments": {"limit": 3}},
                    {"name": "c", "module": "hostile", "function": "f"},
                    {"name": "d", "module": "scoring", "function": "absent"})
        self.assertIs(package.judges["a"]["value"], True)
        self.assertEqual(package.judges["b"]["value"], 4)
        self.assertIn("cannot import hostile, neither from tests/judges", package.judges["c"]["error"])
        self.assertIn("AttributeError", package.judges["d"]["error"])
        self.assertFalse(list(package.tests.rglob("__pycache__")))

    def test_nothing_is_imported_from_the_workspace(self):
        package = Package(self)
        for name in ("json", "yaml", "os", "sitecustomize", "usercustomize", "statistics", "urllib"):
            package.put(package.work, name + ".py", "import os\nos._exit(99)\n")
        package.env = {"PYTHONPATH": str(package.work), "PYTHONSTARTUP": str(package.work / "json.py")}
        package.run(check("import json, sys, os\nreturn os.getcwd() not in sys.path and '' not in sys.path, str(sys.path)"))
        self.assertIs(package.judges["c"]["value"], True, package.text)

    def test_the_current_directory_is_the_workspace(self):
        package = Package(self)
        package.put(package.work, "a.txt", "here")
        package.run(check("return open('a.txt').read() == 'here'"))
        self.assertIs(package.judges["c"]["value"], True)


class Builtins(unittest.TestCase):
    def test_cost_budget(self):
        for cost, expected in ((0.5, True), (1.5, False), (None, None)):
            package = Package(self)
            if cost is not None:
                package.put(package.logs, "agent/run_result.json", json.dumps({"cost_usd": cost}))
            package.run({"name": "b", "builtin": "efficiency/cost_budget", "arguments": {"max_cost_usd": 1.0}})
            self.assertIs(package.judges["b"]["value"], expected)
            self.assertEqual(package.scores["reward"], 1.0 if expected else 0.0)
        self.assertIn("no cost", package.judges["b"]["error"])

    def test_unknown_and_combined_builtins(self):
        package = Package(self).run({"name": "a", "builtin": "efficiency/nope"},
                                    {"name": "b", "builtin": "quality/cost_budget"},
                                    {"name": "c", "builtin": "cost_budget", "check": "return True"})
        self.assertIn("efficiency/cost_budget", package.judges["a"]["error"])
        self.assertIn("no builtin judge", package.judges["b"]["error"])
        self.assertIn("combined with check", package.judges["c"]["error"])

    def test_simulator_provenance(self):
        asked = {"type": "assistant", "message": {"content": [
            {"type": "tool_use", "name": "AskUserQuestion", "id": "1", "input": {"questions": [{}, {}]}}]}}
        for ledger, value in ((None, False), ("nothing asked", True), ([{"tier": "override"}], False), ([{"tier": "llm"}] * 2, True),
                              ([{"tier": "llm"}, {"tier": "fallback", "question": "Q"}], False)):
            package = Package(self)
            package.put(package.work, "tool_handlers.yaml", "{}")
            if ledger != "nothing asked":
                package.put(package.logs, "agent/claude-code.txt", json.dumps(asked))
            if isinstance(ledger, list):
                package.put(package.work, "hooks/hook_answers.jsonl", "\n".join(map(json.dumps, ledger)))
            package.run({"name": "p", "builtin": "process/simulator_provenance"})
            self.assertIs(package.judges["p"]["value"], value, package.text)


STREAM = [
    {"type": "system", "subtype": "init"},
    {"type": "assistant", "timestamp": "t1", "message": {"content": [
        {"type": "thinking", "thinking": "hmm"}, {"type": "text", "text": "I write.\u2028Really."},
        {"type": "tool_use", "id": "u1", "name": "mcp__jira__create", "input": {"title": "T"}}]}},
    {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "u1", "content": [
        {"type": "text", "text": "done"}], "is_error": False}]}},
    {"type": "assistant", "parent_tool_use_id": "x", "message": {"content": [
        {"type": "text", "text": "subagent"}, {"type": "tool_use", "id": "u2", "name": "mcp__jira__create", "input": {}}]}},
    {"type": "result", "total_cost_usd": 0.25, "num_turns": 3, "duration_ms": 1500,
     "usage": {"input_tokens": 10, "output_tokens": 5}},
]
SEE = "import json\nreturn True, json.dumps(%s, default=str)"


class Outputs(unittest.TestCase):
    def see(self, package, expression, **config):
        package.run(check(SEE % expression), **config)
        self.assertIsNone(package.judges["c"]["error"], package.text)
        return json.loads(package.judges["c"]["rationale"])

    def test_files_of_declared_outputs(self):
        package = Package(self)
        package.put(package.work, "out/sub/deep.txt", "deep")
        package.put(package.work, "out/b.md", "line\r\nnext\r\n")
        package.put(package.work, "out/a.bin", b"\xff\xfe\x00")
        package.put(package.work, "other.txt", "not declared")
        seen = self.see(package, "outputs", outputs=[{"path": "out/"}, {"path": "missing"}, {"path": ""}])
        self.assertEqual(set(seen["files"]), {"out/a.bin", "out/b.md", "out/sub/deep.txt"})
        self.assertEqual(seen["files"]["out/b.md"], "line\nnext\n")
        self.assertEqual(seen["files"]["out/a.bin"], {"_binary": True, "name": "a.bin",
                                                      "path": str(package.work / "out/a.bin")})
        self.assertNotIn("out_content", seen)              # the first file is no text
        self.assertEqual(seen["out_file"], str(package.work / "out/a.bin"))
        self.assertEqual(seen["case_dir"], str(package.work))
        copied = package.logs / "verifier" / "outputs" / "out"
        self.assertEqual((copied / "b.md").read_bytes(), b"line\r\nnext\r\n")
        self.assertEqual((copied / "sub" / "deep.txt").read_text(), "deep")

    def test_an_output_that_is_one_file(self):
        package = Package(self)
        package.put(package.work, "docs/report.html", "<p>")
        seen = self.see(package, "outputs", outputs=[{"path": "./docs/report.html"}])
        self.assertEqual(seen["files"], {"docs/report.html": "<p>"})
        self.assertEqual(seen["report.html_content"], "<p>")
        self.assertEqual(seen["report.html_file"], str(package.work / "docs/report.html"))

    def test_output_paths_that_leave_the_workspace(self):
        package = Package(self)
        package.put(package.root, "secret", "s")
        seen = self.see(package, "outputs['files']", outputs=[{"path": "../secret"}, {"path": str(package.root)}])
        self.assertEqual(seen, {})
        self.assertEqual(package.text.count("not below the workspace"), 2)

    def test_modified_files(self):
        package = Package(self)
        for name in ("same.txt", "changed.txt", "grown.txt", "gone.txt", "run.sh", "out/old.txt"):
            package.put(package.work, name, "abc")
        package.start()
        package.put(package.work, "changed.txt", "abd")
        package.put(package.work, "grown.txt", "abcd")
        package.put(package.work, "new/file.txt", "new")
        package.put(package.work, "new/pic.png", b"\x89\xff")
        package.put(package.work, "out/result.txt", "r")
        package.put(package.work, ".claude/settings.json", "{}")
        package.put(package.work, "hooks/x", "x")
        (package.work / "gone.txt").unlink()
        (package.work / "run.sh").chmod(0o755)
        seen = self.see(package, "[outputs['modified_files'], sorted(outputs['files'])]", outputs=[{"path": "out"}])
        self.assertEqual(seen[0], {"changed.txt": "abd", "grown.txt": "abcd", "new/file.txt": "new", "run.sh": "abc"})
        self.assertEqual(seen[1], ["_modified/changed.txt", "_modified/grown.txt", "_modified/new/file.txt",
                                   "_modified/new/pic.png", "_modified/run.sh", "out/old.txt", "out/result.txt"])

    def test_without_a_start_listing_nothing_is_called_modified(self):
        package = Package(self)
        package.put(package.work, "a.txt", "a")
        self.assertIs(self.see(package, "'modified_files' in outputs"), False)

    def test_annotations_and_the_files_they_name(self):
        package = Package(self)
        package.put(package.tests, "evaluation/reference.md", "gold")
        package.put(package.tests, "evaluation/sub/x.txt", "deep")
        package.put(package.tests, "evaluation/pic", b"\xff")
        package.put(package.root, "outside.txt", "outside")
        (package.tests / "evaluation" / "link").symlink_to(package.root / "outside.txt")
        seen = self.see(package, "{k: v for k, v in outputs.items() if k.startswith('annotation')}", annotations={
            "ref": "reference.md", "deep": "sub/x.txt", "up": "../../outside.txt", "abs": str(package.root / "outside.txt"),
            "link": "link", "dir": "sub", "pic": "pic", "text": "a\nb", "n": 1, "blank": "", "pad": " reference.md"})
        self.assertEqual({k: v for k, v in seen.items() if k != "annotations"},
                         {"annotation_ref_content": "gold", "annotation_deep_content": "deep"})
        self.assertEqual(seen["annotations"]["n"], 1)

    def test_tagged_values_are_python_values(self):
        values = {
            "date": {"$py": "date", "v": "2024-01-31"}, "when": {"$py": "datetime", "v": "2024-01-31T10:20:30.000120+02:00"},
            "zulu": {"$py": "datetime", "v": "2024-01-31T10:20:30Z"}, "naive": {"$py": "datetime", "v": "2024-01-31T10:20:30"},
            "raw": {"$py": "bytes", "v": base64.b64encode(b"\xff\0").decode()}, "nan": {"$py": "float", "v": "nan"},
            "inf": {"$py": "float", "v": "-inf"}, "set": {"$py": "set", "v": ["a", 1]},
            "pair": {"$py": "tuple", "v": [1, {"$py": "date", "v": "2024-01-31"}]},
            "map": {"$py": "dict", "v": [[1, "one"], [None, {"a": [True]}], [{"$py": "date", "v": "2024-01-31"}, 2]]},
            "dollar": {"$py": "dict", "v": [["$py", "date"]]}, "big": {"$py": "int", "v": "9" * 5000},
            "list": [1, {"x": {"$py": "bytes", "v": ""}}]}
        package = Package(self)
        package.run(check("""
            import datetime as d, math
            a = outputs['annotations']
            day, zone = d.date(2024, 1, 31), d.timezone(d.timedelta(hours=2))
            assert a['date'] == day and type(a['date']) is d.date
            assert a['when'] == d.datetime(2024, 1, 31, 10, 20, 30, 120, zone)
            assert a['zulu'] == d.datetime(2024, 1, 31, 10, 20, 30, 0, d.timezone.utc)
            assert a['naive'] == d.datetime(2024, 1, 31, 10, 20, 30)
            assert a['raw'] == b'\\xff\\0' and math.isnan(a['nan']) and a['inf'] == -math.inf
            assert a['set'] == {'a', 1} and a['pair'] == (1, day)
            assert a['map'] == {1: 'one', None: {'a': [True]}, day: 2} and a['dollar'] == {'$py': 'date'}
            assert a['big'] == 10 ** 5000 - 1 and a['list'] == [1, {'x': b''}]
            return True
        """), annotations=values, input=values)
        self.assertIsNone(package.judges["c"]["error"])
        with self.assertRaises(ValueError):
            judge.untag({"$py": "complex", "v": "1j"})

    def test_inputs_are_text(self):
        package = Package(self)
        seen = self.see(package, "outputs['inputs']", input={"prompt": "do\nit", "n": 3, "tags": ["a"],
                                                            "day": {"$py": "date", "v": "2024-01-31"}})
        self.assertEqual(seen, '**prompt**: do\nit\n\n**n**: 3\n\n**tags**: [\n  "a"\n]\n\n**day**: 2024-01-31')
        self.assertEqual(self.see(Package(self), "outputs['inputs']"), "")
        self.assertEqual(self.see(Package(self), "outputs['inputs']", input="plain"), "plain")

    def stream(self):
        package = Package(self)
        lines = ["not json", "[1]", "{broken", "null"] + [json.dumps(x, ensure_ascii=False) for x in STREAM]
        package.put(package.logs, "agent/claude-code.txt", "\n".join(lines) + "\n")
        package.put(package.logs, "agent/stderr.log", "warned")
        return package

    def test_stream_json(self):
        seen = self.see(self.stream(), "outputs", outputs=[{"tool": "jira"}])
        self.assertEqual(seen["conversation"], "I write.\u2028Really.")
        self.assertEqual([event["type"] for event in seen["events"]],
                         ["system", "assistant", "tool_result", "assistant", "result"])
        self.assertEqual(seen["events"][2]["tool_name"], "mcp__jira__create")
        self.assertEqual(seen["tool_calls"], [{"name": "mcp__jira__create", "input": {"title": "T"}}])
        self.assertEqual((seen["cost_usd"], seen["num_turns"], seen["duration_s"]), (0.25, 3, 1.5))
        self.assertEqual(seen["token_usage"], {"input": 10, "output": 5})
        self.assertEqual(seen["stderr"], "warned")
        self.assertTrue(seen["stdout"].startswith("not json\n"))
        self.assertNotIn("exit_code", seen)

    def test_traces_switch_things_off(self):
        seen = self.see(self.stream(), "outputs", traces={"stdout": False, "stderr": False, "events": False,
                                                          "metrics": False})
        self.assertEqual(seen["events"], [])
        for key in ("stdout", "stderr", "cost_usd", "num_turns"):
            self.assertNotIn(key, seen)

    def test_metrics_of_a_local_run_win(self):
        package = self.stream()
        package.put(package.logs, "agent/run_result.json", json.dumps({"exit_code": 0, "cost_usd": 9, "secret": 1}))
        seen = self.see(package, "outputs")
        self.assertEqual((seen["exit_code"], seen["cost_usd"], seen["num_turns"]), (0, 9, 3))
        self.assertNotIn("secret", seen)

    def test_trajectory(self):
        package = Package(self)
        package.put(package.logs, "agent/trajectory.json", json.dumps({"schema_version": "ATIF-v1.4", "steps": [
            {"step_id": 1, "source": "user", "message": "task"},
            {"step_id": 2, "source": "agent", "message": "reply", "reasoning_content": "why",
             "tool_calls": [{"tool_call_id": "t", "function_name": "Bash", "arguments": {"command": "ls"}}],
             "observation": {"results": [{"source_call_id": "t", "content": "files"}]}}],
            "final_metrics": {"total_cost_usd": 0.1, "total_prompt_tokens": 7}}))
        seen = self.see(package, "outputs", outputs=[{"tool": "Bash"}])
        self.assertEqual(seen["conversation"], "reply")
        self.assertEqual(seen["tool_calls"], [{"name": "Bash", "input": {"command": "ls"}}])
        self.assertEqual((seen["cost_usd"], seen["num_turns"], seen["token_usage"]), (0.1, 1, {"input": 7}))
        self.assertEqual([(event["content"], event["is_error"], event["tool_name"]) for event in seen["events"]
                          if event["type"] == "tool_result"], [("files", False, "Bash")])

    def test_codex_lines(self):
        package = Package(self)
        package.put(package.logs, "agent/codex.txt", "\n".join(json.dumps({"type": "item.completed", "item": item}) for item in (
            {"type": "command_execution", "id": "1", "command": "ls", "aggregated_output": "x", "exit_code": 2},
            {"type": "agent_message", "text": "hi"})))
        seen = self.see(package, "[outputs['conversation'], outputs['events'][1]['is_error']]")
        self.assertEqual(seen, ["hi", True])

    def test_plain_logs(self):
        package = Package(self)
        package.put(package.logs, "agent/stdout.log", "plain words\n")
        package.put(package.logs, "agent/a.txt", "first\n")
        seen = self.see(package, "[outputs['conversation'], outputs['stdout'], outputs['events']]")
        self.assertEqual(seen, ["first\nplain words", "first\nplain words", []])


class Hostile(unittest.TestCase):
    SEEN = "import json\nreturn True, json.dumps(outputs['files'])"

    def run_with(self, package, **more):
        began = time.monotonic()
        package.run(check(self.SEEN), outputs=[{"path": "out"}], **more)
        self.assertLess(time.monotonic() - began, HANG)
        self.assertIsNone(package.judges["c"]["error"], package.text)
        return json.loads(package.judges["c"]["rationale"])

    def test_links_and_special_files(self):
        package = Package(self)
        package.put(package.tests, "evaluation/gold.txt", "gold")
        package.put(package.work, "out/ok.txt", "ok")
        for name, target in (("passwd", "/etc/passwd"), ("key", package.tests / "evaluation" / "gold.txt"),
                             ("dir", package.tests), ("loop", "loop"), ("up", ".."), ("ok-link", "ok.txt")):
            (package.work / "out" / name).symlink_to(target)
        os.mkfifo(str(package.work / "out" / "fifo"))
        os.mkfifo(str(package.logs / "agent" / "claude-code.txt"))
        (package.logs / "agent" / "b.txt").symlink_to(package.tests / "evaluation" / "gold.txt")
        package.start()
        self.assertEqual(self.run_with(package), {"out/ok.txt": "ok"})
        self.assertNotIn("gold", package.text)
        self.assertIn("out/passwd is a link or special file", package.text)
        copied = sorted(p.name for p in (package.logs / "verifier" / "outputs" / "out").iterdir())
        self.assertEqual(copied, ["ok.txt"])
        tree = judge.Tree(str(package.work), [])
        self.assertEqual(tree.read("out/ok.txt"), b"ok")
        for path in ("out/fifo", "out/ok-link", "out", "", "../tests/test.sh", str(package.tests / "test.sh"), "out/dir/test.sh"):
            self.assertIsNone(tree.read(path), path)

    def test_the_output_directory_is_a_link(self):
        package = Package(self)
        package.put(package.tests, "evaluation/gold.txt", "gold")
        (package.work / "out").symlink_to(package.tests / "evaluation")
        self.assertEqual(self.run_with(package), {})
        package = Package(self)
        (package.work / "a").symlink_to("/etc")
        package.run(check(self.SEEN), outputs=[{"path": "a/passwd"}])
        self.assertEqual(json.loads(package.judges["c"]["rationale"]), {})
        self.assertIn("leads through a link", package.text)

    def test_the_workspace_is_a_link_to_the_answers(self):
        for target in ("tests/evaluation", "elsewhere"):
            package = Package(self)
            package.put(package.tests, "evaluation/out/gold.txt", "gold")
            package.put(package.root, "elsewhere/out/gold.txt", "gold")
            package.work.rmdir()
            package.work.symlink_to(package.root / target)
            package.run(check("return True"))
            self.assertEqual(package.scores["reward"], 0.0)
            self.assertIn("may have replaced it", package.judges["c"]["error"])

    def test_a_parent_of_the_workspace_is_a_link_to_the_tests(self):
        package = Package(self)
        (package.tests / "work").mkdir()
        (package.root / "home").symlink_to(package.tests)
        package.work = package.root / "home" / "work"
        package.run(check("return True"))
        self.assertEqual(package.scores["reward"], 0.0)

    def test_a_missing_workspace_is_no_crash(self):
        package = Package(self)
        package.run(check("return not outputs['files']"), workdir="")
        self.assertEqual(package.scores["reward"], 1.0)
        config = json.loads((package.tests / "config.json").read_text())
        package.put(package.tests, "config.json", json.dumps(config))
        done = subprocess.run([PYTHON, "-I", str(package.tests / "judge.py"), "--tests", str(package.tests), "--logs",
                               str(package.logs), "--workdir", str(package.root / "absent")], stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"cannot be opened", done.stdout)

    def test_a_sparse_file_is_not_read(self):
        package = Package(self)
        package.put(package.work, "out/ok.txt", "ok")
        package.put(package.work, "big")
        for name in ("out/huge.txt", "big"):
            with open(str(package.work / name), "wb") as file:
                file.truncate(10 << 30)
        package.put(package.tests, "start.json", json.dumps({"files": [["big", "-", "0" * 64, 10 << 30]]}))
        seen = self.run_with(package)
        self.assertEqual(seen["out/huge.txt"], {"_truncated": True, "name": "huge.txt", "size": 10 << 30,
                                                "path": str(package.work / "out/huge.txt")})
        self.assertEqual(seen["out/ok.txt"], "ok")
        self.assertFalse((package.logs / "verifier/outputs/out/huge.txt").exists())
        self.assertTrue(any("too large" in note for note in package.report["notes"]))
        self.assertTrue(any("not compared" in note for note in package.report["notes"]))

    def test_names_that_are_not_text(self):
        package = Package(self)
        with contextlib.suppress(OSError):
            (package.work / "out").mkdir()
            with open(os.fsencode(str(package.work)) + b"/out/\xff\n\x1b[2J.txt", "wb") as file:
                file.write(b"x")
        package.start = None
        seen = self.run_with(package)
        self.assertEqual(len(seen), 1)
        self.assertNotIn("\x1b", package.text)
        json.loads((package.logs / "verifier" / "judges.json").read_bytes().decode("utf-8", "strict"))

    def test_deep_directories(self):
        package = Package(self)
        here = package.work / "out"
        for _ in range(60):
            here = here / "d"
        here.mkdir(parents=True)
        (here / "deep.txt").write_text("x")
        self.assertEqual(self.run_with(package), {})
        self.assertIn("nested deeper", package.text)

    def test_limits_on_number_and_bytes(self):
        package = Package(self)
        for number in range(30):
            package.put(package.work, "out/%02d.txt" % number, "x" * 100)
        notes = []
        tree = judge.Tree(str(package.work), notes)
        shelf = judge.Shelf(tree, str(package.root / "copies"))
        shelf.files, shelf.bytes, shelf.copy_bytes = 20, 1000, 500
        got = [shelf.take(path, info, copy=True) for path, info in tree.walk("out")]
        self.assertEqual(len(list((package.root / "copies" / "out").iterdir())), 5)
        self.assertEqual(sum(1 for item in got if isinstance(item, str)), 10)
        self.assertEqual(sum(1 for item in got if isinstance(item, dict)), 10)
        self.assertEqual(got[20:], [None] * 10)
        self.assertTrue(any("more than 20000 files" in note for note in notes))
        tree.entries = 5
        self.assertEqual(len(list(tree.walk("out"))), 5)
        self.assertEqual(len(list(judge.Tree(str(package.work), []).walk())), 30)

    def test_many_files_are_quick_enough(self):
        package = Package(self)
        package.start()
        first = package.put(package.work, "0")
        for number in range(1, 20002):
            os.link(str(first), str(package.work / str(number)))
        package.run(check("return len(outputs['files']) == 20000"))
        self.assertEqual(package.scores["reward"], 1.0, package.text[-500:])
        self.assertIn("more than 20000 files", package.text)

    def test_planted_reward_files_are_replaced(self):
        for plant in ("file", "directory", "link", "verifier-link"):
            with self.subTest(plant):
                package = Package(self)
                out, outside = package.logs / "verifier", package.put(package.root, "outside", "mine")
                if plant == "verifier-link":
                    package.put(package.root, "other/reward.json", "mine")
                    out.symlink_to(package.root / "other")
                else:
                    out.mkdir()
                    for name in ("reward.json", "reward.txt", "judges.json", "outputs"):
                        if plant == "file":
                            (out / name).write_text('{"reward": 1.0}')
                        elif plant == "link":
                            (out / name).symlink_to(outside)
                        else:
                            (out / name / "sub").mkdir(parents=True)
                package.put(package.work, "out/a", "a")
                package.run(check("return False"), outputs=[{"path": "out"}])
                self.assertEqual(package.scores, {"reward": 0.0, "c": 0.0})
                self.assertEqual(outside.read_text(), "mine")
                self.assertFalse(out.is_symlink())
                if plant == "verifier-link":
                    self.assertEqual((package.root / "other/reward.json").read_text(), "mine")

    def test_hostile_log_lines(self):
        package = Package(self)
        rows = ['{"type":"assistant","message":{"content":"text"}}', '{"type":"assistant","message":7}',
                '{"type":"assistant","message":{"content":[null,3,{"type":"text","text":9},{"type":"tool_use"}]}}',
                '{"type":"user","message":{"content":[{"type":"tool_result","content":{"a":1}}]}}',
                '{"type":"result","usage":[],"total_cost_usd":"free","duration_ms":"x"}', "[" * 100000,
                '{"a":' * 100000, '{"type":"result","num_turns":' + "9" * 20000 + "}", '{"type":["a"]}', "\0", "{}"]
        package.put(package.logs, "agent/claude-code.txt", "\n".join(rows))
        package.run(check("return outputs['conversation'] == 'text', outputs['conversation']"))
        self.assertIs(package.judges["c"]["value"], True, package.text)

    @unittest.skipIf(os.geteuid() == 0, "root reads everything")
    def test_unreadable_files(self):
        package = Package(self)
        package.put(package.work, "out/no.txt", "x", 0o000)
        package.put(package.work, "out/yes.txt", "y")
        self.assertEqual(self.run_with(package)["out/yes.txt"], "y")


class Shell(unittest.TestCase):
    def test_lf_and_mode(self):
        for name in ("test.sh", "judge.py", "judge_llm.py", "intercept.py"):
            self.assertNotIn(b"\r", (TEMPLATES / name).read_bytes())
        self.assertTrue(os.access(str(TEMPLATES / "test.sh"), os.X_OK))

    def test_without_python_there_is_no_reward(self):
        package = Package(self)
        package.run(check("return True"))
        bare = package.root / "bare"
        bare.mkdir()
        for tool in ("sh", "dirname", "rm", "mkdir", "sed", "head", "tr"):
            (bare / tool).symlink_to(shutil.which(tool))
        done = subprocess.run([shutil.which("sh"), str(package.tests / "test.sh")], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env={"PATH": str(bare), "CASEPACK_LOGS_DIR": str(package.logs)})
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"registry/img:1", done.stderr)
        self.assertIn(b"python3", done.stderr)
        self.assertFalse((package.logs / "verifier" / "reward.json").exists())

    def test_defaults_come_from_where_the_script_lies(self):
        package = Package(self)
        package.run(check("return outputs['case_dir'] == %r" % str(package.work)), workdir=str(package.work))
        env = {"PATH": "%s:%s" % (package.bin, os.environ["PATH"]), "CASEPACK_LOGS_DIR": str(package.logs)}
        done = subprocess.run([str(package.tests / "test.sh")], stdout=subprocess.PIPE, env=env, cwd="/")
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"reward: 1", done.stdout)

    def test_an_unusable_config_gives_no_reward(self):
        twins = {"schema": "casepack.verifier.v1", "judges": [check("return True"), check("return True")]}
        for text in ("", "[]", '{"schema": "other", "judges": []}', "{", json.dumps(twins)):
            package = Package(self)
            package.run()
            package.put(package.tests, "config.json", text)
            done = subprocess.run(["sh", str(package.tests / "test.sh")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  env={"PATH": "%s:%s" % (package.bin, os.environ["PATH"]),
                                       "CASEPACK_LOGS_DIR": str(package.logs)})
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"no reward was written", done.stdout)
            self.assertFalse((package.logs / "verifier" / "reward.json").exists())

    def test_a_terminal_that_cannot_show_text(self):
        package = Package(self)
        package.env = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
        package.run(check("return True, 'gr\u00fcn \u2713'"))
        self.assertEqual(package.status, 0)
        self.assertEqual(package.judges["c"]["rationale"], "gr\u00fcn \u2713")


class Provider:
    """A model API on the loopback interface: gives the scripted replies in turn (or the one of
    the requested model), keeps the requests."""

    def __init__(self, test, *replies):
        self.replies, self.requests, self.lock = list(replies), [], threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "null")
                with outer.lock:
                    outer.requests.append((self.path, dict(self.headers.items()), body))
                    reply = outer.replies.pop(0) if len(outer.replies) > 1 else outer.replies[0]
                if isinstance(reply, dict) and body and body.get("model") in reply:
                    reply = reply[body["model"]]
                status, headers, data = reply if isinstance(reply, tuple) else (200, {}, reply)
                data = data if isinstance(data, bytes) else json.dumps(data).encode()
                self.send_response(status)
                for key, value in dict({"content-length": len(data)}, **headers).items():
                    self.send_header(key, str(value))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        test.addCleanup(server.server_close)
        test.addCleanup(server.shutdown)
        self.url = "http://127.0.0.1:%d" % server.server_port

    def prompt(self, model=None):
        """What was sent last (to a model); None when nothing was."""
        return next((body["messages"][-1]["content"] for _, _, body in reversed(self.requests)
                     if model in (None, body["model"])), None)


def claude(**verdict):
    return {"content": [{"type": "text", "text": "hm"}, {"type": "tool_use", "name": "submit_verdict",
                                                         "input": dict({"rationale": "r"}, **verdict)}]}


def openai(text=None, **verdict):
    calls = [{"function": {"name": "submit_verdict", "arguments": json.dumps(dict({"rationale": "r"}, **verdict))}}]
    return {"choices": [{"message": {"content": text} if text else {"content": None, "tool_calls": calls}}]}


class Llm(unittest.TestCase):
    def with_claude(self, *replies):
        package, server = Package(self), Provider(self, *replies)
        package.env = {"ANTHROPIC_API_KEY": "key-a", "ANTHROPIC_BASE_URL": server.url, "no_proxy": "*"}
        return package, server

    def with_openai(self, *replies):
        package, server = Package(self), Provider(self, *replies)
        package.env = {"OPENAI_API_KEY": "key-o", "OPENAI_BASE_URL": server.url + "/v1/", "ANTHROPIC_API_KEY": "",
                       "no_proxy": "*"}
        return package, server

    def judge(self, package, expected, words=None, **more):
        package.run(dict({"name": "j", "prompt": "Judge this.", "model": "m"}, **more))
        entry = package.judges["j"]
        self.assertEqual(entry["value"], expected, package.text)
        if words:
            self.assertIn(words, entry["error"])
        else:
            self.assertIsNone(entry["error"])
        return package

    def test_anthropic(self):
        package, server = self.with_claude(claude(score=4))
        self.judge(package, 4, model="claude-x")
        self.assertEqual(package.judges["j"]["samples"], [])
        self.assertEqual(package.scores["reward"], 0.75)
        path, headers, body = server.requests[0]
        headers = {key.lower(): value for key, value in headers.items()}
        self.assertEqual((path, headers["x-api-key"], body["model"]), ("/v1/messages", "key-a", "claude-x"))
        self.assertIn("anthropic-version", headers)
        schema = body["tools"][0]["input_schema"]["properties"]["score"]
        self.assertEqual((schema["type"], schema["minimum"], schema["maximum"]), ("integer", 1.0, 5.0))
        self.assertEqual(body["tool_choice"], {"type": "tool", "name": "submit_verdict"})

    def test_openai(self):
        package, server = self.with_openai(openai(passed=True))
        self.judge(package, True, feedback_type="bool")
        path, headers, body = server.requests[0]
        self.assertEqual((path, headers["Authorization"]), ("/v1/chat/completions", "Bearer key-o"))
        self.assertEqual([m["role"] for m in body["messages"]], ["system", "user"])
        package, _ = self.with_openai(openai('Well: {"rationale": "ok", "score": 2.5}'))
        self.judge(package, 2.5, score_range=[0, 10], feedback_type="float")

    def test_both_keys(self):
        anthropic, chat = Provider(self, claude(score=5)), Provider(self, openai(score=1))
        for model, value in (("claude-x", 5), ("gpt-x", 1)):
            package = Package(self)
            package.env = {"ANTHROPIC_API_KEY": "a", "ANTHROPIC_BASE_URL": anthropic.url, "OPENAI_API_KEY": "o",
                           "OPENAI_BASE_URL": chat.url, "no_proxy": "*"}
            self.judge(package, value, model=model)

    def test_model_that_names_its_provider(self):
        anthropic, chat = Provider(self, claude(score=5), claude(score=5)), Provider(self, openai(score=1))
        keys = {"ANTHROPIC_API_KEY": "a", "ANTHROPIC_BASE_URL": anthropic.url, "OPENAI_API_KEY": "o",
                "OPENAI_BASE_URL": chat.url, "no_proxy": "*"}
        for model, value in (("anthropic:/plain-name", 5), ("Anthropic://plain-name", 5), ("openai:/plain-name", 1)):
            package = Package(self)
            package.env = keys
            self.judge(package, value, model=model)
        bodies = [body for _, _, body in anthropic.requests + chat.requests]
        self.assertEqual([body["model"] for body in bodies], ["plain-name"] * 3)

    def test_model_whose_provider_is_not_there(self):
        package, server = self.with_claude(claude(score=5))
        self.judge(package, None, "neither OPENAI_API_KEY nor OPENAI_BASE_URL is set", model="openai:/n")
        for model in ("runner:/n", "elsewhere:/n"):
            package.env = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.url, "no_proxy": "*"}
            self.judge(package, None, model.split("/")[0] + "/ is not known here", model=model)
        self.assertEqual(server.requests, [])

    def test_without_provider_or_model(self):
        package = self.judge(Package(self), None, "ANTHROPIC_API_KEY")
        self.assertEqual(package.scores, {"reward": 0.0, "casepack_judge_errors": 1})
        package, _ = self.with_claude(claude(score=5))
        self.judge(package, None, "no model", model=None)
        package, server = self.with_claude(claude(score=5))
        package.run({"name": "j", "prompt": "p"}, models={"judge": "from-config"})
        self.assertEqual(server.requests[0][2]["model"], "from-config")

    def each(self, *rows):
        """Runs rows of (reply, keys of the judge) at once; gives their entries."""
        package, _ = self.with_claude({"m%d" % n: reply for n, (reply, _) in enumerate(rows)})
        package.run(*[dict({"name": "m%d" % n, "prompt": "p", "model": "m%d" % n}, **keys)
                      for n, (_, keys) in enumerate(rows)])
        self.assertEqual(len(package.judges), len(rows))
        return package, [package.judges["m%d" % n] for n in range(len(rows))]

    def test_replies_that_are_no_verdict(self):
        rows = ((claude(score="5"), "no verdict"), (claude(passed=True), "no verdict"),
                (claude(score=True), "no verdict"), ({"content": []}, "no verdict"),
                ({"content": [{"type": "text", "text": "It is a 5/5, score: 5"}]}, "no verdict"),
                ({"content": [{"type": "text", "text": '{"score": 1} or {"score": 5}'}]}, "more than one"),
                ({"nothing": 1}, "unknown form"), (b"<html>", "no JSON object"), ([1], "no JSON object"))
        package, entries = self.each(*[(reply, {}) for reply, _ in rows])
        for (reply, words), entry in zip(rows, entries):
            with self.subTest(reply):
                self.assertIn(words, entry["error"])
                self.assertIsNone(entry["value"])
        self.assertEqual(package.scores, {"reward": 0.0, "casepack_judge_errors": len(rows)})
        package, _ = self.with_openai({"choices": [{"message": {"tool_calls": [{"function": {"arguments": "{"}}]}}]})
        self.judge(package, None, "unknown form")

    def test_ranges_and_types(self):
        rows = ((claude(score=7), {"score_range": [0, 5]}, "outside"), (claude(passed=1), {"feedback_type": "bool"}, "no verdict"),
                (claude(score=3.5), {"feedback_type": "int"}, "feedback_type is int"),
                (claude(score=3), {"feedback_type": "str"}, "cannot be rewarded"),
                (claude(score=3.0), {"feedback_type": "int"}, None), (claude(score=3.5), {}, None))
        _, entries = self.each(*[(reply, keys) for reply, keys, _ in rows])
        for (reply, keys, words), entry in zip(rows, entries):
            with self.subTest(reply, **keys):
                self.assertIn(words, entry["error"]) if words else self.assertIsNone(entry["error"])
        self.assertEqual((entries[-2]["value"], type(entries[-2]["value"]), entries[-1]["value"]), (3, int, 3.5))

    def test_retries(self):
        busy = (429, {"retry-after": "0"}, {"error": "busy"})
        package, server = self.with_claude(busy, (503, {"retry-after": "0"}, {}), claude(score=5))
        self.judge(package, 5)
        self.assertEqual(len(server.requests), 3)
        package, server = self.with_claude(busy)
        self.judge(package, None, "tried 4 times")
        self.assertEqual(len(server.requests), 4)
        package, server = self.with_claude((401, {}, {"error": "bad key key-a"}))
        self.judge(package, None, "HTTP 401")
        self.assertEqual(len(server.requests), 1)
        self.assertNotIn("key-a", package.text + json.dumps(package.report))

    def test_the_key_does_not_follow_redirects(self):
        thief = Provider(self, claude(score=5))
        for status in (302, 303, 307):
            package, _ = self.with_claude((status, {"location": thief.url}, {}))
            self.judge(package, None, "HTTP %d" % status)
        self.assertEqual(thief.requests, [])

    def test_a_server_without_forced_tools(self):
        package, server = self.with_openai((400, {}, {"error": "tool_choice is not supported"}),
                                           openai('```json\n{"rationale": "r", "passed": false}\n```'))
        self.judge(package, False, feedback_type="bool")
        self.assertNotIn("tools", server.requests[1][2])

    def test_a_provider_that_does_not_answer(self):
        silent = socket.create_server(("127.0.0.1", 0))          # accepts, and says nothing
        self.addCleanup(silent.close)
        for port, words in ((silent.getsockname()[1], "timed out (tried"), (9, "refused (tried")):
            package, _ = self.with_claude(claude(score=5))
            package.env["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:%d" % port
            package.run({"name": "j", "prompt": "p", "model": "m"}, check("return True"), llm_timeout=3)
            self.assertIn("cannot be reached", package.judges["j"]["error"])
            self.assertIn(words, package.judges["j"]["error"])
            self.assertIs(package.judges["c"]["value"], True)

    def test_a_provider_that_answers_for_ever_is_stopped(self):
        listener, stop = socket.create_server(("127.0.0.1", 0)), threading.Event()
        self.addCleanup(listener.close)
        self.addCleanup(stop.set)

        def drip():
            with contextlib.suppress(OSError), listener.accept()[0] as peer:
                peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while not stop.wait(0.1):
                    peer.sendall(b" ")

        threading.Thread(target=drip, daemon=True).start()
        package, _ = self.with_claude(claude(score=5))
        package.env["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:%d" % listener.getsockname()[1]
        package.run({"name": "j", "prompt": "p", "model": "m"}, llm_timeout=3)
        self.assertIn("stopped after 3 seconds", package.judges["j"]["error"])

    def test_a_reward_is_written_within_the_verifiers_time(self):
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        package, _ = self.with_claude(claude(score=5))
        package.env["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:%d" % silent.getsockname()[1]
        began = time.monotonic()
        package.run(check("return True", "c"), check("import time\ntime.sleep(60)", "sleep"), check("import time\ntime.sleep(9)", "late"),
                    *[{"name": "j%d" % n, "prompt": "p", "model": "m", "samples": 3} for n in range(9)],
                    verifier_timeout=6)
        self.assertLess(time.monotonic() - began, HANG)
        self.assertEqual(package.scores, {"reward": 0.0, "c": 1.0, "casepack_judge_errors": 11})
        for name in ("sleep", "late", "j0", "j8"):
            # Which of the two ends come first depends on how busy the machine is.
            self.assertRegex(package.judges[name]["error"], "the verifier's time was up|no time was left to ask")

    def test_requests_end_in_time(self):
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        url, began = "http://127.0.0.1:%d" % silent.getsockname()[1], time.monotonic()
        for until, words in ((began - 1, "no time was left"), (began + 0.5, "timed out (tried 1 times)"),
                             (began + 2.5, "timed out (tried 1 times)")):
            with self.assertRaises(judge.Problem) as raised:
                judge_llm.post(url, {}, {}, until)
            self.assertIn(words, str(raised.exception))
        self.assertLess(time.monotonic() - began, HANG)

    def test_without_its_file(self):
        package, _ = self.with_claude(claude(score=5))
        package.put(package.work, "judge_llm.py", "raise SystemExit('from the workspace')")
        package.put(package.work, "judge.py", "raise SystemExit('from the workspace')")
        package.put(package.tests, "judges/judge_llm.py", "raise SystemExit('from the project')")
        package.put(package.tests, "judges/judge.py", "raise SystemExit('from the project')")
        package.env["PYTHONPATH"] = str(package.work)
        judges = {"name": "j", "prompt": "p", "model": "m"}, check("return True")
        package.run(*judges)
        self.assertEqual(package.scores, {"reward": 1.0, "j": 5.0, "c": 1.0})
        (package.tests / "judge_llm.py").unlink()
        package.llm = False
        package.run(*judges)
        self.assertIn("need judge_llm.py beside judge.py, and it is missing", package.judges["j"]["error"])
        self.assertEqual(package.scores, {"reward": 0.0, "c": 1.0, "casepack_judge_errors": 1})

    def test_samples(self):
        def votes(*values):
            return [claude(passed=value) if value is not None else claude() for value in values]
        for replies, value in ((votes(True, True, False), True), (votes(True, False, False), False),
                               (votes(True, True, False, False), False), (votes(True, None, None), False)):
            package, server = self.with_claude(*replies)
            self.judge(package, value, feedback_type="bool", samples=len(replies))
            self.assertEqual(len(server.requests), len(replies))
            self.assertEqual(len(package.judges["j"]["samples"]), len(replies))
        package, _ = self.with_claude(*[claude(score=n) for n in (5, 2, 4, 3)])
        self.judge(package, 3, samples=4)
        package, _ = self.with_claude(*votes(None, None))
        self.judge(package, None, "no verdict", feedback_type="bool", samples=2)
        package, server = self.with_claude(claude(score=1))
        package.run(check("return True", samples=5))
        self.assertEqual(package.judges["c"]["samples"], [])

    def prompted(self, *rows, **config):
        """The prompts that came of judges with these keys; None where none was sent."""
        package, server = self.with_claude(claude(score=5))
        package.put(package.work, "out/a.md", "{{ conversation }} text")
        package.put(package.work, "out/b.bin", b"\xff")
        package.put(package.logs, "agent/claude-code.txt", "\n".join(json.dumps(item) for item in STREAM))
        package.put(package.tests, "judges/prompts/p.md", "From file: {{ inputs }}")
        package.put(package.tests, "judges/docs/guide.md", "Guide {% x %}")
        package.put(package.tests, "judges/http/__init__.py", "raise ImportError('a project file in the way')")
        package.put(package.tests, "evaluation/ref.md", "gold")
        names = ["j%d" % number for number in range(len(rows))]
        package.run(*[dict({"name": name, "model": name}, **row) for name, row in zip(names, rows)],
                    outputs=[{"path": "out"}], annotations={"want": "yes", "ref": "ref.md"}, input={"task": "T"}, **config)
        self.errors = [package.judges[name]["error"] for name in names]
        return [server.prompt(name) for name in names]

    def test_placeholders(self):
        rows = (("{{ conversation }}", "I write."), ("{{reasoning}}", "[thinking]\nhmm"), ("{{ inputs }}", "**task**: T"),
                ("{{ outputs }}", "### out/a.md\n\n{{ conversation }} text"), ("{{ outputs }}", "<binary: b.bin>"),
                ("{{ outputs.conversation }}", "I write."), ("{{ outputs['files']['out/a.md'] }}", "text"),
                ("{{ outputs.events[0] }}", "'init'"), ("{{ annotations['nope'] }}|", "|"),
                ("{{ annotations }}", "- **want**: yes"), ("{{ annotations }}", "### ref (file content)\n\ngold"),
                ("{{ annotations.want }}|", "yes|"), ("{{ annotations.get('nope', 'fallback') }}", "fallback"),
                ("{{ annotations.nope | default('dflt') }}", "dflt"), ("{{ arguments.k }}", "v"),
                ("{{ arguments | tojson }}", '"k": "v"'), ("{{ tool_trace }}", "1. mcp__jira__create"),
                ("{{ evidence }}", "Cost: 0.25\nTool calls: {'mcp__jira__create': 2}\nFiles written: out/a.md, out/b.bin"), ("{{ annotations_text }}", "want"), ("[{{ outputs.nope }}]", "[]"))
        prompts = self.prompted(*[{"prompt": text, "arguments": {"k": "v"}} for text, _ in rows])
        for (text, words), prompt, error in zip(rows, prompts, self.errors):
            with self.subTest(text):
                self.assertIsNone(error)
                self.assertIn(words, prompt)

    def test_placeholders_need_no_jinja(self):
        names = {"a": {"k": "v", "items": "own"}, "list": ["first"], "none": None, "empty": ""}
        blocked = dict.fromkeys(("jinja2", "jinja2.sandbox"))
        with unittest.mock.patch.dict(sys.modules, blocked):
            for text, expected in (("{{ a.k }}{{ a['k'] }}{{a.get('k')}}", "vvv"), ("{{ list[0] }}{{ list[9] }}|", "first|"),
                                   ("{{ a.items }}", "own"), ("{{ a.x }}{{ none.x }}{{ list['k'] }}|", "|"),
                                   ("{{ a.get('x') }}{{ a.get('x', 1) }}", "None1"), ("{{ none | default('d') }}", "d"),
                                   ("{{ empty | default('d') }}{{ a.k | default('d') }}", "dv"), ("{{ 'q' }}{{ 7 }}", "q7"),
                                   ("{{ a | tojson }}", '{\n  "k": "v",\n  "items": "own"\n}'), ("{ {x} }", "{ {x} }")):
                self.assertEqual(judge_llm.render(text, names, "img"), expected, text)
            for text in ("{{ a[list[0]] }}", "{{ a | upper }}", "{{ a + a }}", "{{ a.k() }}", "{{ }}", "{{ a b }}", "{% if a %}",
                         "{# a #}", "{{- a }}", "{{ a -}}", "{{ a[1:] }}", "{{ a[b.k] }}", "{{ [x for x in a] }}"):
                with self.assertRaisesRegex(judge.Problem, "jinja2 in img", msg=text):
                    judge_llm.render(text, names, "img")
            with self.assertRaisesRegex(judge.Problem, "unknown placeholder {{ b }}; known are a, empty, list, none"):
                judge_llm.render("{{ b }}", names, "img")

    def test_prompt_files_context_and_rubrics(self):
        wrong = ({"prompt_file": "prompts/absent.md"}, {"prompt_file": "../config.json"}, {"prompt_file": "/etc/passwd"},
                 {"prompt": "p", "context": ["absent.md"]})
        file, context, rubric, placed, *refused = self.prompted(
            {"prompt_file": "prompts/p.md"}, {"prompt": "p", "context": ["docs/guide.md"]},
            {"llm_rubric": "Polite?"}, {"llm_rubric": "Polite? {{conversation}}"}, *wrong)
        self.assertEqual(file, "From file: **task**: T")
        self.assertIn("## Context: guide.md\n\nGuide {% x %}", context)
        self.assertTrue(rubric.startswith("Polite?\n\n# Agent Response to Evaluate\n\nI"))
        self.assertEqual(placed.count("I write."), 1)
        self.assertEqual(refused, [None] * 4)
        for error in self.errors[4:]:
            self.assertIn("is not in the package", error)

    def test_unknown_placeholders_and_jinja(self):
        unknown, jinja = self.prompted({"prompt": "{{ converstion }}"}, {
            "prompt": "{% if annotations.want %}on {{ outputs.files | length }}{% endif %}"})
        self.assertIsNone(unknown)
        self.assertIn("unknown placeholder {{ converstion }}", self.errors[0])
        if jinja is None:
            self.assertIn("jinja2", self.errors[1])
            self.assertIn("registry/img:1", self.errors[1])
        else:
            self.assertEqual(jinja, "on 2")

    def test_model_builtins(self):
        for name in ("safety/no_harmful_content", "output_completeness"):
            package, server = self.with_claude(claude(passed=False))
            package.put(package.work, "out/a.md", "made")
            package.run({"name": "b", "builtin": name, "model": "m", "arguments": {"criteria": ["crit-1"]}},
                        outputs=[{"path": "out"}])
            self.assertIs(package.judges["b"]["value"], False)
            self.assertIn("made", server.prompt())
        self.assertIn("crit-1", server.prompt())

    def test_conditions_hold_for_models(self):
        package, server = self.with_claude(claude(score=5))
        package.run({"name": "j", "prompt": "p", "model": "m", "if": "annotations.get('x')"})
        self.assertTrue(package.judges["j"]["skipped"])
        self.assertEqual(server.requests, [])

    def test_model_judges_run_side_by_side(self):
        package, server = self.with_claude(claude(score=5))
        package.run(*[{"name": "j%d" % n, "prompt": "p", "model": "m"} for n in range(9)])
        self.assertEqual(package.scores["reward"], 1.0)
        self.assertEqual([entry["name"] for entry in package.report["judges"]], ["j%d" % n for n in range(9)])


class Interceptor(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="casepack-hook-"))
        self.addCleanup(shutil.rmtree, str(self.root), ignore_errors=True)
        (self.root / "hooks").mkdir()
        shutil.copy(str(TEMPLATES / "intercept.py"), str(self.root / "hooks" / "tools.py"))
        self.env = {}

    def handlers(self, *handlers, **more):
        (self.root / "tool_handlers.yaml").write_text(json.dumps(dict({"handlers": list(handlers)}, **more)))

    def call(self, tool, raw=None, options=("-I",), **given):
        data = raw if raw is not None else json.dumps({"hook_event_name": "PreToolUse", "tool_name": tool,
                                                       "tool_input": given, "cwd": str(self.root)}).encode()
        env = {key: value for key, value in os.environ.items() if key not in PROVIDERS}
        done = subprocess.run([PYTHON, *options, str(self.root / "hooks" / "tools.py")], input=data,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=str(self.root), timeout=60,
                              env=dict(env, **self.env))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.errors = done.stderr.decode()
        if not done.stdout:
            return None
        answer = json.loads(done.stdout)["hookSpecificOutput"]
        self.assertEqual(answer.pop("hookEventName"), "PreToolUse")
        return answer

    def ask(self, *questions, **more):
        questions = [q if isinstance(q, dict) else {"question": q, "header": "Head", "options": [
            {"label": "First", "description": "1"}, {"label": "Second"}, {"label": "Third, too"}]} for q in questions]
        answer = self.call("AskUserQuestion", questions=questions, metadata={"kept": 1})
        self.assertEqual(answer["permissionDecision"], "allow")
        self.assertEqual(answer["updatedInput"]["questions"], questions)
        self.assertEqual(answer["updatedInput"]["metadata"], {"kept": 1})
        return answer["updatedInput"]["answers"]

    def ledger(self):
        return [json.loads(line) for line in (self.root / "hooks" / "hook_answers.jsonl").read_text().splitlines()]

    ASK = {"match": "questions", "patterns": ["AskUserQuestion"], "prompt": "Answer as the owner."}

    def test_order_of_answers(self):
        self.handlers(self.ASK, case_overrides={"Q1?": "second", "Q5?": {"answer": "free", "source": "human"}})
        (self.root / "answers.yaml").write_text('# guidance\nQ1?: First\nQ2?: "Third, too"\n"Q3: which?": First\nmood: nice\n')
        self.assertEqual(self.ask("Q1?", "q2? ", "Q3: which?", "Q4?", "Q5?"),
                         {"Q1?": "Second", "q2? ": "Third, too", "Q3: which?": "First", "Q4?": "First", "Q5?": "free"})
        self.assertEqual([row["tier"] for row in self.ledger()], ["override"] * 3 + ["fallback", "override"])
        self.assertIn("Q4?", self.errors)

    def test_headers_json_and_several_choices(self):
        self.handlers(self.ASK)
        (self.root / "answers.json").write_text(json.dumps({"answers": {"head": ["first", "Second"], "Sure?": True}}))
        several = {"question": "Which?", "header": "Head", "multiSelect": True,
                   "options": [{"label": "First"}, {"label": "Second"}]}
        sure = {"question": "Sure?", "options": [{"label": "Yes"}, {"label": "No"}]}
        self.assertEqual(self.ask(several, sure, {"question": "Free text?"}),
                         {"Which?": "First, Second", "Sure?": "Yes", "Free text?": "yes"})

    def test_guidance_that_is_prose(self):
        self.handlers(self.ASK)
        (self.root / "answers.yaml").write_text("Just be kind: and\n  - [unclosed\n\ttabs")
        self.assertEqual(self.ask("Q?"), {"Q?": "First"})

    def test_the_model_answers(self):
        (self.root / "input.yaml").write_text("task: the-task\n")
        (self.root / "answers.yaml").write_text("Prefer the second.\n")
        self.handlers(self.ASK, hook_model="claude-h")
        server = Provider(self, {"content": [{"type": "text", "text": ' "second" '}]})
        self.env = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.url, "no_proxy": "*"}
        self.assertEqual(self.ask("Q?"), {"Q?": "Second"})
        self.assertEqual(self.ledger()[0]["tier"], "llm")
        for words in ("Answer as the owner.", "the-task", "Prefer the second.", "Q?", "- First: 1"):
            self.assertIn(words, server.prompt())
        chat = Provider(self, {"choices": [{"message": {"content": "Third, too"}}]})
        self.env = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": chat.url + "/v1", "no_proxy": "*"}
        self.assertEqual(self.ask("Q?"), {"Q?": "Third, too"})

    def test_a_model_that_fails_is_on_record(self):
        self.handlers(self.ASK, hook_model="m")
        self.assertEqual(self.ask("Q?"), {"Q?": "First"})
        self.assertIn("ANTHROPIC_API_KEY", self.ledger()[0]["error"])
        server = Provider(self, {"content": [{"type": "text", "text": "none of them"}]})
        self.env = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.url, "no_proxy": "*"}
        self.assertEqual(self.ask("Q?"), {"Q?": "First"})
        self.assertEqual((self.ledger()[1]["tier"], self.ledger()[1]["llm_raw"]), ("fallback", "none of them"))

    def test_other_tools(self):
        (self.root / "why.md").write_text("Use the emulator.\n")
        self.handlers({"match": "jira", "patterns": ["mcp__jira__*"], "prompt": "No real Jira."},
                      {"match": "web", "patterns": "WebFetch", "prompt_file": "why.md"},
                      {"match": "escape", "patterns": ["Glob"], "prompt_file": "../../etc/passwd"},
                      {"match": "scripts", "patterns": ["Bash"], "input_filters": ["jira"], "prompt": "No."},
                      {"match": "local only", "patterns": ["Deploy"], "env_checks": {"TARGET": {"must_contain": ["local"]}}})
        for tool, given, words in (("mcp__jira__create", {}, "No real Jira."), ("WebFetch", {}, "Use the emulator."),
                                   ("Glob", {}, "escape"), ("Bash", {"command": "python JIRA.py"}, "No."),
                                   ("Deploy", {}, "TARGET")):
            answer = self.call(tool, **given)
            self.assertEqual(answer["permissionDecision"], "deny")
            self.assertIn(words, answer["permissionDecisionReason"])
        for tool, given in (("Bash", {"command": "ls"}), ("Read", {"file_path": "x"}), ("mcp__other__x", {})):
            self.assertIsNone(self.call(tool, **given))
        self.env = {"TARGET": "http://LOCALhost"}
        self.assertIsNone(self.call("Deploy"))

    def test_bash_without_filters_is_denied_and_says_why(self):
        self.handlers({"match": "Any script", "patterns": ["Bash"], "prompt": "No."})
        self.assertIn("no input_filters", self.call("Bash", command="ls")["permissionDecisionReason"])

    def test_whatever_goes_wrong_is_a_denial(self):
        for name, text in (("missing", None), ("number", "7"), ("handlers", '{"handlers": 7}'),
                           ("handler", '{"handlers": ["x"]}'), ("pattern", '{"handlers": [{"patterns": 7}]}'),
                           ("filter", '{"handlers": [{"patterns": ["Read", "Bash"], "input_filters": ["("]}]}'),
                           ("deep", "[" * 100000)):
            with self.subTest(name):
                path = self.root / "tool_handlers.yaml"
                if text is not None:
                    path.write_text(text)
                answer = self.call("Bash", command="ls")
                self.assertEqual(answer["permissionDecision"], "deny")
                self.assertIn("interception failed", answer["permissionDecisionReason"])
        self.handlers(self.ASK)
        for raw in (b"", b"[]", b"{", b"\xff", b"{}", b'{"tool_name": 7}', b"[" * 100000):
            self.assertEqual(self.call("", raw=raw)["permissionDecision"], "deny")
        self.assertEqual(self.call("AskUserQuestion", questions=[])["permissionDecision"], "deny")

    def test_yaml_handlers_need_a_reader(self):
        (self.root / "tool_handlers.yaml").write_text("handlers:\n- match: web\n  patterns: [WebFetch]\n  prompt: No web.\n")
        answer = self.call("WebFetch", options=("-I", "-S"))        # -S: no installed modules
        self.assertEqual(answer["permissionDecision"], "deny")
        self.assertIn("PyYAML", answer["permissionDecisionReason"])
        self.assertEqual(self.call("Read", options=("-I", "-S"))["permissionDecision"], "deny")
        if importlib.util.find_spec("yaml") and PYTHON == sys.executable:
            self.assertEqual(self.call("WebFetch")["permissionDecisionReason"], "No web.")
            self.assertIsNone(self.call("Read"))

    def test_links_are_not_followed(self):
        self.handlers(self.ASK)
        outside = self.root / "outside.yaml"
        outside.write_text("Q?: Second\n")
        (self.root / "answers.yaml").symlink_to(outside)
        ledger = self.root / "hooks" / "hook_answers.jsonl"
        ledger.symlink_to(self.root / "elsewhere")
        self.assertEqual(self.ask("Q?"), {"Q?": "First"})
        self.assertFalse((self.root / "elsewhere").exists())

    def test_flat_lines(self):
        text = 'a: b\n  nested: no\n# c: d\n- e: f\n"g: h": \'i\' \nj: |\n  k\nl: m # note\nn:o\np: [q]\n'
        self.assertEqual(intercept.flat_lines(text), {"a": "b", "g: h": "i", "l": "m"})


if __name__ == "__main__":
    unittest.main()
