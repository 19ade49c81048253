"""`scripts/bench s3`: releases to a local S3 server and back, against what else moves files.

One s3s-fs on tmpfs serves both sides. Time is measured without anything between client and server;
requests and bytes are counted by a proxy in runs of their own, whose time is not looked at.
"""
import base64
import collections
import json
import os
import pathlib
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What 6,000 raw files of small10k cost these clients on a machine of the same kind, in wall seconds
# for each file, and how long `find -printf` over its 30,041 files took there.
ELSEWHERE = {"rclone": 5.2 / 6000, "aws up": 15.5 / 6000, "aws down": 25.7 / 6000}
ELSEWHERE_FIND = 0.17
MB = 1e6


class Counter:
    """A proxy that counts the requests and the bytes of their bodies, and all bytes that come back."""

    def __init__(self, endpoint):
        host, port = endpoint.removeprefix("http://").split(":")
        self.server = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.lock = threading.Lock()
        self.take()
        threading.Thread(target=self.accept, daemon=True).start()

    def take(self):
        """What was counted since the last time: requests by method, bytes up, bytes down."""
        with self.lock:
            counted = getattr(self, "counted", None)
            self.counted = [collections.Counter(), 0, 0]
            return counted

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(self.server)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.up, args=(client, server), daemon=True).start()
            threading.Thread(target=self.down, args=(server, client), daemon=True).start()

    def up(self, client, server):
        head, body = b"", 0
        while piece := self.receive(client):
            server.sendall(piece)
            while piece:
                if body:
                    taken = min(body, len(piece))
                    body, piece = body - taken, piece[taken:]
                    continue
                head += piece
                piece = b""
                if (end := head.find(b"\r\n\r\n")) >= 0:
                    piece = head[end + 4:]
                    lines = head[:end].decode("latin-1").split("\r\n")
                    head = b""
                    for line in lines[1:]:
                        name, _, value = line.partition(":")
                        if name.lower() == "content-length":
                            body = int(value)
                    with self.lock:
                        self.counted[0][lines[0].split()[0]] += 1
                        self.counted[1] += body
        self.end(server)

    def down(self, server, client):
        while piece := self.receive(server):
            with self.lock:
                self.counted[2] += len(piece)
            client.sendall(piece)
        self.end(client)

    @staticmethod
    def receive(one):
        try:
            return one.recv(1 << 18)
        except OSError:
            return b""

    @staticmethod
    def end(one):
        try:
            one.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Server:
    """s3s-fs over a directory in `base`, and how clients reach it."""

    def __init__(self, base):
        self.dir = base / "s3"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.script = {**os.environ, "S3_DIR": str(self.dir), "S3_BASE": str(port)}
        self.call("start", "s3s")
        names = ["AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
        shown = self.call("env") + "\nprintf '%s\\n' " + " ".join(f'"${name}"' for name in names)
        told = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, check=True)
        self.env = dict(zip(names, told.stdout.split("\n")), AWS_EC2_METADATA_DISABLED="true")
        self.endpoint = self.env["AWS_ENDPOINT_URL_S3"]
        self.pid = int((self.dir / "n1/pid").read_text())
        self.objects = self.dir / "n1/data/casepack"
        # For clients that take a bucket's root only: this server has no answer to a HEAD of a prefix.
        (self.dir / "n1/data/raw").mkdir()

    def call(self, *verb):
        done = subprocess.run([ROOT / "scripts/s3", *verb], env=self.script, text=True, check=True, stdout=subprocess.PIPE)
        return done.stdout

    def cpu(self):
        """Its user and system seconds so far."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(options, run, Table, data, release_binary):
    casepack = release_binary()
    place = options.dir or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
    base = pathlib.Path(tempfile.mkdtemp(prefix="casepack-bench-", dir=place))
    server = None
    try:
        server = Server(base)
        os.environ.update(server.env)
        # Nothing here speaks TLS, and some clients stumble over it all the same.
        os.environ.pop("AWS_CA_BUNDLE", None)
        bench = Bench(options, run, Table(), data, casepack, base, server)
        bench.small()
        bench.heavy()
    finally:
        if server:
            server.call("stop")
        shutil.rmtree(base, ignore_errors=True)
    if bench.table.missed:
        sys.exit(f"{bench.table.missed} goals were missed")


class Bench:
    def __init__(self, options, run, table, data, casepack, base, server):
        self.options, self.run, self.table, self.data = options, run, table, data
        self.casepack, self.base, self.server = casepack, base, server
        self.counter = Counter(server.endpoint)
        self.count = 0

    def pairs(self, name, ours, theirs, goal):
        """Wall time counts, unless others kept more than a quarter of a core busy meanwhile: then what
        counts is the time of our processes."""
        others = self.others()
        goals = {"wall": goal} if others <= 0.25 else {"cpu": goal}
        self.table.pairs(name, ours, theirs, **goals)
        if others > 0.25:
            print(f"  others kept {others:.1f} cores busy: CPU time counts", flush=True)

    def others(self):
        """Cores that were busy for others since the last call."""
        fields = pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
        busy = sum(int(field) for at, field in enumerate(fields) if at not in (3, 4))
        busy /= os.sysconf("SC_CLK_TCK")
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(one.ru_utime + one.ru_stime for one in used) + self.server.cpu()
        now = (time.monotonic(), busy - own)
        before, self.looked = getattr(self, "looked", now), now
        return (now[1] - before[1]) / max(now[0] - before[0], 1e-9)

    def fresh(self, name="out"):
        self.count += 1
        return self.base / f"{name}-{self.count}"

    def publish(self, dataset, store, out, *more):
        return self.run([self.casepack, "publish", "-q", f"s3://casepack/{store}", dataset, "--tag", "v1",
                         "--image", "example/image:1", "-o", out, *more])

    def pull(self, store, out, *more):
        return self.run([self.casepack, "pull", "-q", f"s3://casepack/{store}", "--ref", "v1", "-o", out, *more])

    def counted(self, act):
        """What `act` costs at the server."""
        os.environ["AWS_ENDPOINT_URL_S3"] = self.counter.endpoint
        self.counter.take()
        act()
        os.environ["AWS_ENDPOINT_URL_S3"] = self.server.endpoint
        methods, up, down = self.counter.take()
        return methods, up / MB, down / MB

    def dataset(self, name):
        dataset = self.data(self.base, name, self.options.scale)
        # Outside of a repository its own directory has to be named as its root.
        with open(dataset / "eval.yaml", "a") as config:
            config.write("casepack: {stage_skill: false, project_root: .}\n")
        return dataset

    def small(self):
        table, scale = self.table, self.options.scale
        small = self.dataset("small10k")
        files = sum(len(names) for _, _, names in os.walk(small))

        # Cold, against an archive of the same files.
        self.others()
        ours, theirs = [], []
        for pair in range(self.options.pairs):
            out, archive = self.fresh(), self.fresh("tar")
            ours.append(self.publish(small, f"cold-{pair}", out))
            theirs.append(self.run(["sh", "-c", f"tar -C {small} -cf - . | zstd -q -3 -o {archive}"]))
            shutil.rmtree(out)
        self.pairs("publish cold, against tar | zstd", ours, theirs, 1.3)
        table.most("  peak memory", max(run[2] for run in ours), "MiB", 64)
        published = statistics.median(run[0] for run in ours)
        self.others_up(small, files, published)

        out = self.fresh()
        methods, up, _ = self.counted(lambda: self.publish(small, "small", out))
        table.most("  PUT requests", methods["PUT"], "", 80)
        table.most("  uploaded", up, "MB", 16)
        document = self.document("small")
        catalog = sum(shard["size"] for shard in document["shards"])
        catalog += sum(pack["index"]["size"] for pack in document["packs"])
        table.most("  of this catalogs and indexes", catalog / MB, "MB", 5)
        print(f"  {len(document['shards'])} shards, {len(document['packs'])} packs")

        # Again, with nothing to do.
        methods, _, _ = self.counted(lambda: self.publish(small, "small", out))
        table.most("publish again: requests", methods.total(), "", 3)
        build = [self.casepack, "build", "-q", "--target", "bundle", small, "--image", "example/image:1", "-o", out]
        again, built = [], []
        for _ in range(self.options.pairs):
            again.append(self.publish(small, "small", out)[0])
            built.append(self.run(build)[0])
        over = statistics.median(a - b for a, b in zip(again, built))
        table.most("  longer than a build of nothing", 1000 * over, "ms", 30)

        # One case changed, one removed.
        cases = sorted(os.listdir(small / "cases"))
        with open(small / "cases" / cases[len(cases) // 2] / "input.yaml", "a") as case:
            case.write("changed: true\n")
        methods, up, _ = self.counted(lambda: self.publish(small, "small", out))
        table.most("one case changed: PUT requests", methods["PUT"], "", 10)
        table.most("  uploaded", up, "MB", 6)
        shutil.rmtree(small / "cases" / cases[len(cases) // 3])
        methods, up, _ = self.counted(lambda: self.publish(small, "small", out))
        table.most("one case removed: PUT requests", methods["PUT"], "", 16)
        print(f"  uploaded {up:.1f} MB")

        # One case of all.
        for view, requests, bytes in [("workspace", 6, 1.5), ("all", 14, 4)]:
            view_args = [] if view == "all" else ["--view", view]
            one = ["--case", cases[len(cases) // 4], *view_args]
            methods, _, down = self.counted(lambda: self.pull("small", self.fresh(), *one))
            table.most(f"one case, {view}: requests", methods.total(), "", requests)
            table.most("  downloaded", down, "MB", bytes)
        self.pulls(scale)

    def pulls(self, scale):
        """All cases, against an archive of the very files; again, against a look at each of them."""
        table = self.table
        self.others()
        whole, archive = self.fresh(), self.fresh("tar")
        self.pull("small", whole)
        count = sum(len(names) for _, _, names in os.walk(whole))
        print(f"pull writes {count} files")
        self.run(["sh", "-c", f"tar -C {whole} --exclude=./.casepack -cf - . | zstd -q -3 -o {archive}"])
        again, walks = [], []
        for _ in range(self.options.pairs):
            again.append(self.pull("small", whole))
            walks.append(self.run(["find", whole, "-printf", "%s %T@ %C@ %i\n"]))
        self.pairs("pull again, against find", again, walks, 1.2)
        shutil.rmtree(whole)
        ours, theirs = [], []
        for _ in range(self.options.pairs):
            pulled, unpacked = self.fresh(), self.fresh()
            ours.append(self.pull("small", pulled))
            shutil.rmtree(pulled)
            unpacked.mkdir()
            theirs.append(self.run(["sh", "-c", f"zstd -q -dc {archive} | tar -C {unpacked} -xf -"]))
            shutil.rmtree(unpacked)
        self.pairs("pull, against zstd -dc | tar x", ours, theirs, 1.3)
        table.most("  peak memory", max(run[2] for run in ours), "MiB", 64)
        pulled = statistics.median(run[0] for run in ours)
        self.others_down(count, pulled)


    def raw(self, small):
        """A part of the raw files that other clients can move in reasonable time."""
        part = self.base / "raw"
        if not part.exists():
            for case in sorted(os.listdir(small / "cases"))[:667]:
                shutil.copytree(small / "cases" / case, part / case)
            walks = [self.run(["find", small, "-printf", "%s %T@ %C@ %i\n"])[0] for _ in range(9)]
            self.calibration = statistics.median(walks) / (ELSEWHERE_FIND * self.options.scale)
        return part, sum(len(names) for _, _, names in os.walk(part))

    def other(self, name, command, files, count, ours, least):
        """Seconds that a client needs for `count` files of which it moves `files`."""
        if shutil.which(command[0]):
            each, told = self.run(command)[0] / files, f"scaled from {files} files"
        else:
            each = ELSEWHERE[name] * self.calibration
            told = f"not installed; measured elsewhere, calibrated by find: x {self.calibration:.2f}"
        ratio = each * count / ours
        self.table.missed += ratio < least
        missed = "" if ratio >= least else ", MISSED"
        print(f"  {name}: {each * count:.1f} s ({told}): {ratio:.0f} x faster (at least {least}{missed})", flush=True)

    def others_up(self, small, files, ours):
        part, count = self.raw(small)
        env = self.server.env
        os.environ.update(RCLONE_CONFIG_S3_TYPE="s3", RCLONE_CONFIG_S3_PROVIDER="Other",
                          RCLONE_CONFIG_S3_ENDPOINT=env["AWS_ENDPOINT_URL_S3"], RCLONE_CONFIG_S3_ENV_AUTH="true",
                          RCLONE_CONFIG="/dev/null")
        self.other("rclone", ["rclone", "copy", "-q", "--transfers", "32", part, "s3:raw"], count, files, ours, 30)
        shutil.rmtree(self.server.dir / "n1/data/raw")
        (self.server.dir / "n1/data/raw").mkdir()
        self.other("aws up", ["aws", "s3", "sync", "--quiet", part, "s3://raw"], count, files, ours, 60)

    def others_down(self, files, ours):
        count = sum(len(names) for _, _, names in os.walk(self.base / "raw"))
        into = self.fresh()
        # What it would take to have the same files; from the raw ones they would have to be made.
        self.other("aws down", ["aws", "s3", "cp", "--quiet", "--recursive", "s3://raw", into], count, files, ours, 60)

    def document(self, store):
        ref = json.loads((self.server.objects / store / "refs/v1.json").read_text())
        config = json.loads(base64.b64decode(ref["data"]))["config"]
        if "data" in config:
            return json.loads(base64.b64decode(config["data"]))
        blob = self.server.objects / store / "blobs/sha256" / config["digest"].removeprefix("sha256:")
        return json.loads(blob.read_text())

    def heavy(self):
        table = self.table
        for old in ("small10k", "raw"):
            shutil.rmtree(self.base / old)
        shutil.rmtree(self.server.objects)
        self.server.objects.mkdir()
        heavy = self.dataset("heavy50")
        size = sum(path.stat().st_size for path in heavy.rglob("*") if path.is_file())
        out = self.fresh()
        _, up, _ = self.counted(lambda: self.publish(heavy, "heavy", out))
        stored = sum(path.stat().st_size for path in (self.server.objects / "heavy").rglob("*") if path.is_file())
        table.most("heavy50: stored, of the input", stored / size, "", 0.55)
        table.most("  uploaded, of the input", up * MB / size, "", 0.55)
        shutil.rmtree(out)
        shutil.rmtree(self.server.objects / "heavy")
        hashing = f"find {heavy} -type f -print0 | xargs -0 -P2 -n4 openssl dgst -sha256"
        self.others()
        ours, theirs = [], []
        for pair in range(self.options.pairs):
            out, before = self.fresh(), self.server.cpu()
            ours.append(self.publish(heavy, f"heavy-{pair}", out))
            # All that the server does while it takes the bytes; on this machine's cores like the rest.
            wrote = self.server.cpu() - before
            wall, cpu, peak = self.run(["sh", "-c", hashing])
            print(f"  publish {ours[-1][0]:.2f} s, openssl {wall:.2f} s, the server {wrote:.2f} s of CPU")
            theirs.append((wall + wrote, cpu + wrote, peak))
            shutil.rmtree(out)
            if pair:
                shutil.rmtree(self.server.objects / f"heavy-{pair}")
        self.pairs("publish, against openssl + server", ours, theirs, 1.5)
        table.most("  peak memory", max(run[2] for run in ours), "MiB", 96)
        pulls = []
        for _ in range(self.options.pairs):
            pulled = self.fresh()
            pulls.append(self.pull("heavy-0", pulled))
            shutil.rmtree(pulled)
        print(f"pull: {statistics.median(run[0] for run in pulls):.2f} s")
        table.most("  peak memory", max(run[2] for run in pulls), "MiB", 96)
