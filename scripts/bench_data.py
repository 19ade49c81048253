#!/usr/bin/env python3
"""Datasets for scripts/bench, the same bytes on every machine.

usage: gen.py --out DIR [--seed N] [--scale F] {small10k,wide1k,heavy50,all} ...
Every byte is a function of (seed, dataset, case index, file index): two runs
with equal flags give equal trees (mtimes are set to a fixed instant too).
"""
import argparse, os, random, shutil, sys, time
from pathlib import Path

WORDS = ("agent task review patch module error retry token bucket digest manifest "
         "policy release branch commit index worker queue schema judge prompt case "
         "score output trace span file path config value default limit cache layer "
         "object store upload verify reward step input answer guide plan design").split()
EPOCH = 1_700_000_000  # fixed mtime


class W:
    """Buffered writer that creates each parent once and pins mtimes."""
    def __init__(self, root): self.root = root; self.seen = set(); self.n = 0; self.b = 0
    def put(self, rel, data, mode=0o644):
        p = os.path.join(self.root, rel); d = os.path.dirname(p)
        if d not in self.seen:
            os.makedirs(d, exist_ok=True); self.seen.add(d)
        fd = os.open(p, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        os.write(fd, data)  # every buffered file here is far below 2 GiB
        os.close(fd); os.utime(p, (EPOCH, EPOCH)); self.n += 1; self.b += len(data)


def prose(rng, n):
    """~n bytes of line-wrapped word text (gzip ratio about 3-4x)."""
    out, size, line = [], 0, 0
    while size < n:
        w = rng.choice(WORDS) if rng.random() > .15 else "%x" % rng.getrandbits(24)
        out.append(w); size += len(w) + 1; line += len(w) + 1
        if line > 72: out.append("\n"); line = 0
    return " ".join(out).encode()[:n]


def pyish(rng, n):
    out, size = [], 0
    while size < n:
        f = "def %s_%x(%s, %s=%d):\n    # %s\n    return %s[%d] + '%s'\n\n" % (
            rng.choice(WORDS), rng.getrandbits(16), rng.choice(WORDS), rng.choice(WORDS),
            rng.randrange(999), " ".join(rng.choices(WORDS, k=6)), rng.choice(WORDS),
            rng.randrange(99), rng.choice(WORDS))
        out.append(f); size += len(f)
    return "".join(out).encode()[:n]


def input_yaml(rng, i, n=300):
    head = "prompt: >\n  %s\npriority: %s\nticket: CP-%06d\n" % (
        "%s", rng.choice(["low", "normal", "high"]), i)
    body = prose(rng, max(8, n - len(head) + 2)).decode().replace("\n", "\n  ")
    return (head % body).encode()


def annotations(rng, i):
    return ("category: %s\ndedup_is_duplicate: %s\ntags: [%s, %s]\nexpected: %s-%06d\n" % (
        rng.choice(WORDS), rng.choice(["true", "false"]), rng.choice(WORDS),
        rng.choice(WORDS), rng.choice(WORDS), i)).encode()


def eval_yaml(name, files, shared):
    s = ["name: %s" % name, "description: benchmark dataset %s" % name,
         "execution:", "  skill: demo-skill", "  mode: case", '  arguments: "--ticket {{ input.ticket }} {{ input.prompt }}"',
         "runner:", "  type: claude-code", "models:", "  skill: model-a", "  judge: model-b",
         "dataset:", "  path: cases", "  schema: |", "    Each case has input.yaml with prompt, priority, ticket.",
         "  workspace:", "    files:"]
    s += ["      - %s" % f for f in files]
    for d, src in shared: s += ["      - dest: %s" % d, "        source: %s" % src]
    s += ["outputs:", "  - path: out", "    schema: one report.md per case", "judges:",
          "  - name: has_report", "    check: |", "      return (bool(outputs.get('files')), 'files present')",
          "  - name: quality", "    score_range: [1, 5]", "    prompt: |", "      Score the report from 1 to 5.", "thresholds:",
          "  quality:", "    min_mean: 3.0", ""]
    return "\n".join(s).encode()


def skill_dir(w, seed, nfiles=40, total=400 * 1024, base="skills/demo-skill"):
    rng = random.Random(f"{seed}/skill"); each = total // nfiles
    w.put(f"{base}/SKILL.md", b"---\nname: demo-skill\ndescription: demo\n---\n" + prose(rng, each - 45))
    for i in range(1, nfiles):
        sub = ("scripts", "references", "assets")[i % 3]; ext = ("py", "md", "json")[i % 3]
        w.put(f"{base}/{sub}/f{i:02d}.{ext}", (pyish if ext == "py" else prose)(rng, each),
              0o755 if ext == "py" else 0o644)


def small10k(root, seed, scale):
    w = W(root); n = max(1, int(10_000 * scale))
    w.put("eval.yaml", eval_yaml("small10k", ["notes.md"], [("demo-skill", "skills/demo-skill")]))
    skill_dir(w, seed)
    for i in range(n):
        rng = random.Random(f"{seed}/small/{i}"); c = f"cases/case-{i:05d}"
        w.put(f"{c}/input.yaml", input_yaml(rng, i)); w.put(f"{c}/annotations.yaml", annotations(rng, i))
        w.put(f"{c}/notes.md", prose(rng, rng.randint(1024, 4096)))
    return w


def wide1k(root, seed, scale):
    w = W(root); n = max(1, int(1_000 * scale))
    w.put("eval.yaml", eval_yaml("wide1k", ["src/"], [("demo-skill/SKILL.md", "skills/demo-skill/SKILL.md")]))
    skill_dir(w, seed)
    pool_rng = random.Random(f"{seed}/wide/pool")
    text = pyish(pool_rng, 4 << 20); prs = prose(pool_rng, 4 << 20)
    for i in range(n):
        rng = random.Random(f"{seed}/wide/{i}"); c = f"cases/case-{i:04d}"
        w.put(f"{c}/input.yaml", input_yaml(rng, i)); w.put(f"{c}/annotations.yaml", annotations(rng, i))
        for j in range(40):
            # log-uniform 1..64 KiB, 3 kinds; a unique first line keeps files distinct
            size = int(1024 * 2 ** (rng.random() * 6)); src = (text, prs)[j & 1]
            off = rng.randrange(len(src) - size); depth = 1 + j % 4
            d = "/".join(f"d{(j * 7 + k) % 5}" for k in range(depth))
            head = b"# %d/%d %016x\n" % (i, j, rng.getrandbits(64))
            if j % 8 == 7: data = head + rng.randbytes(size - len(head)) if size > len(head) else head
            else: data = (head + src[off:off + size])[:size]
            w.put(f"{c}/src/{d}/m{j:02d}.{'bin' if j % 8 == 7 else ('py','md')[j & 1]}", data)
    return w


def heavy50(root, seed, scale, total=2 << 30):
    """50 cases, one 20..200 MiB fixture each scaled so the sum is about `total`;
    cases 25..49 repeat the bytes of cases 0..24."""
    w = W(root)
    w.put("eval.yaml", eval_yaml("heavy50", ["fixture.bin"], [("demo-skill/SKILL.md", "skills/demo-skill/SKILL.md")]))
    skill_dir(w, seed)
    n = 50; half = n // 2; rng = random.Random(f"{seed}/heavy/sizes")
    # skewed sizes: most near 20 MiB, a few up to 200 MiB, exact mean total/50
    sizes = [20 + 180 * (rng.random() ** 6) for _ in range(half)]; sizes[0] = 200.0; sizes[1] = 20.0
    want = total / (1 << 20) / 2 - 200 - 20 * (half - 1)
    g = want / sum(s - 20 for s in sizes[1:])
    sizes = [200.0] + [min(200.0, 20 + g * (s - 20)) for s in sizes[1:]]
    for i in range(n):
        r = random.Random(f"{seed}/heavy/{i}"); c = f"cases/case-{i:02d}"
        w.put(f"{c}/input.yaml", input_yaml(r, i)); w.put(f"{c}/annotations.yaml", annotations(r, i))
        k = i % half; size = max(1, int(sizes[k] * scale * (1 << 20)))
        p = os.path.join(root, c, "fixture.bin"); br = random.Random(f"{seed}/heavy/fix/{k}"); left = size
        with open(p, "wb", buffering=0) as fh:
            while left:
                m = min(left, 1 << 20)
                # 3 of 4 MiB incompressible, 1 of 4 zero-ish/tiled, like model weights + sparse tables
                blk = br.randbytes(m) if br.random() < .75 else (br.randbytes(4096) * (m // 4096 + 1))[:m]
                fh.write(blk); left -= m
        os.utime(p, (EPOCH, EPOCH)); w.n += 1; w.b += size
    return w


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("sets", nargs="+", choices=["small10k", "wide1k", "heavy50", "all"])
    ap.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)))
    ap.add_argument("--seed", default="casepack-1"); ap.add_argument("--scale", type=float, default=1.0)
    ap.add_argument("--force", action="store_true", help="remove an existing dataset of that name first")
    a = ap.parse_args(); sets = ["small10k", "wide1k", "heavy50"] if "all" in a.sets else a.sets
    for s in sets:
        root = os.path.join(a.out, s)
        if os.path.exists(root):
            if not a.force: print(f"{s}: exists, skipped (--force to redo)"); continue
            shutil.rmtree(root)
        t = time.time(); w = globals()[s](root, a.seed, a.scale)
        print(f"{s}: {w.n} files, {w.b} bytes, {w.b/2**20:.1f} MiB, {time.time()-t:.1f}s")


if __name__ == "__main__": main()
