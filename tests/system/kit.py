# SPDX-License-Identifier: Apache-2.0
"""What system tests share: a lab that goes away at the end, commands that must succeed or must fail, the
history load in the background. A test is a script; it prints what it does and exits 0, 1 or 77 (skipped)."""
import atexit, contextlib, errno, glob, json, os, signal, socket, struct, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("ASHLAR_BIN", os.path.join(ROOT, "build/release/bin"))
LAB = os.path.join(ROOT, "tests/lab")
LONG = os.environ.get("ASHLAR_TEST_LONG") == "1"


def fail(text):
    print(f"FAILED: {text}", flush=True)
    sys.exit(1)


def need_root():
    if os.geteuid() != 0:
        print("skipped: needs root")
        sys.exit(77)


def step(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def sh(*cmd, rc=0, timeout=300, env=None):
    """Runs a command that must end with rc (None: any). Returns its output."""
    r = subprocess.run([str(c) for c in cmd], capture_output=True, text=True, errors="replace", timeout=timeout,
                       env=dict(os.environ, **(env or {})))
    if rc is not None and r.returncode != rc:
        fail(f"{' '.join(str(c) for c in cmd)}: exit {r.returncode}, expected {rc}\n{r.stdout[-2000:]}{r.stderr[-3000:]}")
    return r.stdout if rc is not None else (r.returncode, r.stdout, r.stderr)


class Lab:
    def __init__(self, name, *args, timeout=90):
        need_root()
        self.name, self.timeout = f"{name}-{os.getpid()}", timeout
        self.ok = False
        atexit.register(self.end)
        step(f"lab up {' '.join(args)}")
        self.do("up", *args)

    def do(self, verb, *args, rc=0, timeout=None):
        t = timeout or self.timeout
        return sh(sys.executable, LAB, verb, *args, "--name", self.name, "--timeout", t, rc=rc, timeout=t + 60,
                  env={"ASHLAR_BIN": BIN})

    def end(self):
        if not self.ok:
            for n in ["1", "2", "3", "client"]:
                rc, out, _ = self.do("logs", n, rc=None)
                path = out.strip()
                if rc == 0 and os.path.exists(path):
                    print(f"--- last lines of {n}'s log")
                    print("".join(open(path, errors="replace").readlines()[-int(os.environ.get("LOG_LINES", 25)):]))
        if os.environ.get("KEEP") and not self.ok:
            print(f"kept: tests/lab down --name {self.name}")
            return
        self.do("down", rc=None)

    def done(self):
        self.ok = True
        self.do("down")
        base = os.path.dirname(os.path.dirname(self.path(1)))
        left = [f for f in os.listdir(base) if self.name in f]
        if left:
            fail(f"the lab left {left} in {base}")
        print("passed", flush=True)

    def path(self, node, *more):
        return os.path.join(os.environ.get("ASHLAR_LAB_DIR", "/var/tmp/ashlar-lab"), self.name,
                            node if node == "client" else f"node{node}", *more)

    def ashlar(self, *args, node=1, rc=0, timeout=300):
        return sh(os.path.join(BIN, "ashlar"), *args, rc=rc, timeout=timeout,
                  env={"ASHLAR_ADMIN": "unix:" + self.path(node, "admin.sock")})

    def json(self, *args, node=1):
        return json.loads(self.ashlar(*args, "-o", "json", node=node))

    def get(self, path, node=1):
        """The body of an answer over the admin socket: for what is asked again and again, without a process each time."""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10)
            s.connect(self.path(node, "admin.sock"))
            s.sendall(f"GET /v1/{path} HTTP/1.0\r\n\r\n".encode())
            parts = iter(lambda: s.recv(65536), b"")
            return b"".join(parts).split(b"\r\n\r\n", 1)[1].decode()

    def metrics(self, node=1):
        return self.get("metrics", node)

    def uri(self, node, volume):
        return self.do("uri", node, volume).strip()

    def socket(self, node):
        return self.path(node, "nbd.sock")

    def volume(self, name, size, copies=2):
        self.ashlar("volume", "create", name, "--size", size, "--copies", copies)
        # The other nodes hear of it a moment later.
        for line in self.do("env").splitlines():
            if line.startswith("NODE"):
                n = line[4:line.index("_")]
                watch_for(f"volume {name} at node {n}", lambda: self.ashlar("volume", "show", name, node=n, rc=None)[0] == 0, 10)

    def start_unclaimed(self, node):
        self.do("start-unclaimed", node)

    def alive(self, node):
        return f"NODE{node}_PID=" in self.do("env")

    def log_since(self, node, at):
        """Warnings and errors of the node's log behind this byte."""
        with open(self.path(node, "log"), errors="replace") as f:
            f.seek(at)
            return [x.strip() for x in f if "level=error" in x or "level=warn" in x]

    def in_sync_via(self, node, timeout=120):
        def whole():
            o = self.json("status", node=node)["objects"]
            return o["total"] == o["in_sync"]
        watch_for("all objects to be in-sync", whole, timeout)

    def in_sync(self, timeout=120):
        self.do("wait", "in-sync", timeout=timeout)


class History:
    """The history load, running until finish(); see history.c."""

    def __init__(self, lab, volume, nodes, seconds=600, clients=4, blocks=256, seed=None):
        self.stop_file = f"/tmp/ashlar-history-{os.getpid()}-{time.monotonic_ns()}"
        cmd = [os.path.join(BIN, "history"), "--volume", volume, "--clients", clients, "--blocks", blocks,
               "--seconds", seconds, "--stop-file", self.stop_file]
        for n in nodes:
            cmd += ["--socket", lab.socket(n)]
        if seed:
            cmd += ["--seed", seed]
        self.p = subprocess.Popen([str(c) for c in cmd], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        atexit.register(lambda: self.p.poll() is None and self.p.kill())
        line = self.p.stdout.readline()
        if "started" not in line:
            fail("history did not start: " + line + (self.p.stdout.read() or ""))

    def finish(self, rc=0):
        open(self.stop_file, "w").close()
        out, _ = self.p.communicate(timeout=400)
        os.unlink(self.stop_file)
        print(out.strip(), flush=True)
        if self.p.returncode != rc:
            fail(f"history ended with {self.p.returncode}")
        return out


class Load:
    """fio writing at queue depth 16, each completion noted, so that a stall can be told from the load around it."""

    def __init__(self, uri, size, seconds=600, iops=3000, depth=16):
        self.base = f"/tmp/ashlar-load-{os.getpid()}-{time.monotonic_ns()}"
        self.p = subprocess.Popen(["fio", "--name=j", "--ioengine=nbd", f"--uri={uri}", "--rw=randwrite", "--bs=4k",
                                   f"--iodepth={depth}", f"--size={size}", "--time_based", f"--runtime={seconds}",
                                   f"--rate_iops={iops}", f"--write_lat_log={self.base}", "--log_unix_epoch=1",
                                   "--output-format=json"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.marks = []
        atexit.register(self.clean)

    @contextlib.contextmanager
    def during(self, what, limit_ms=None):
        """What is done in this block may stall the load for limit_ms; finish() judges that (None: its caller does)."""
        begin = time.time()
        yield
        self.marks.append((what, begin, time.time(), limit_ms))

    def clean(self):
        if self.p.poll() is None:
            self.p.kill()
        for f in glob.glob(self.base + "_*"):
            os.unlink(f)

    def finish(self):
        """Ends it; it must have met no error, and no stall longer than it may be."""
        self.p.send_signal(signal.SIGINT)
        out, _ = self.p.communicate(timeout=120)
        j = json.loads(out[out.index("{"):])["jobs"][0]
        if j["error"]:
            fail(f"the load got an I/O error: {j['error']}")
        lines = [x.split(",") for x in open(self.base + "_clat.1.log")]
        self.ends = sorted(int(x[0]) for x in lines)
        self.lat = [(int(x[0]), int(x[1]) / 1e6) for x in lines]
        self.clean()
        for what, begin, end, limit in self.marks:
            gap, lat = self.worst(begin, end)
            step(f"{what}: longest gap {gap:.0f} ms, longest latency {lat:.0f} ms")
            if limit and max(gap, lat) > limit:
                fail(f"{what}: the load stalled for more than {limit} ms")

    def worst(self, begin, end):
        """Of the wall-clock seconds begin … end: the longest gap between completions and the longest latency, in ms."""
        t = [begin * 1000] + [x for x in self.ends if begin * 1000 <= x <= end * 1000] + [end * 1000]
        gap = max(b - a for a, b in zip(t, t[1:]))
        # An I/O that ended in the interval or began in it.
        lat = [ms for x, ms in self.lat if begin * 1000 <= x and x - ms <= end * 1000]
        return gap, max(lat, default=0)


def fio(uri, *args, **kw):
    return sh("fio", "--name=j", "--ioengine=nbd", "--verify_state_save=0", f"--uri={uri}", *args, **kw)


def watch_for(what, test, timeout):
    end = time.monotonic() + timeout
    while not test():
        if time.monotonic() > end:
            fail(f"timed out waiting for {what}")
        time.sleep(0.05)


class NbdError(Exception):
    """The errno that the server answered, and its text if it sent one."""

    def __init__(self, errno, text=""):
        super().__init__(f"errno {errno} {text}")
        self.errno, self.text = errno, text


class Nbd:
    """A small blocking NBD client with structured replies, so that tests see errno and text as sent."""

    def __init__(self, socket_path, export, timeout=60):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(timeout)
        self.s.connect(socket_path)
        self.cookie = 0
        self.take(18)
        self.s.sendall(struct.pack(">I", 3))
        self.option(8, b"")  # structured replies
        name = export.encode()
        self.option(7, struct.pack(">I", len(name)) + name + struct.pack(">H", 0))

    def take(self, n):
        out = bytearray(n)
        self.fill(memoryview(out))
        return out

    def fill(self, out):
        while out:
            got = self.s.recv_into(out)
            if not got:
                raise ConnectionError("the server closed the connection")
            out = out[got:]

    def option(self, number, data):
        self.s.sendall(b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data)
        while True:
            _, _, kind, n = struct.unpack(">QIII", self.take(20))
            body = self.take(n)
            if kind == 3 and body[:2] == b"\0\0":
                self.size = struct.unpack(">Q", body[2:10])[0]
            if kind == 1:
                return
            if kind & 0x80000000:
                raise NbdError(kind, body.decode(errors="replace"))

    def call(self, kind, off, length, data=b""):
        self.cookie += 1
        self.s.sendall(struct.pack(">IHHQQI", 0x25609513, 0, kind, self.cookie, off, length) + data)
        out, error = bytearray(length if kind == 0 else 0), None
        while True:
            magic, = struct.unpack(">I", self.take(4))
            if magic == 0x67446698:
                e, _ = struct.unpack(">IQ", self.take(12))
                if e:
                    raise NbdError(e)
                return out
            flags, chunk, _, n = struct.unpack(">HHQI", self.take(16))
            if chunk == 1:
                at = struct.unpack(">Q", self.take(8))[0] - off
                self.fill(memoryview(out)[at:at + n - 8])
                body = b""
            else:
                body = self.take(n)
            if chunk & 0x8000:
                e, k = struct.unpack(">IH", body[:6])
                error = NbdError(e, body[6:6 + k].decode(errors="replace"))
            if flags & 1:
                if error:
                    raise error
                return out

    def read(self, off, n):
        return self.call(0, off, n)

    def write(self, off, data):
        self.call(1, off, len(data), data)

    def trim(self, off, n):
        self.call(4, off, n)

    def flush(self):
        self.call(3, 0, 0)

    def close(self):
        try:
            self.s.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 2, 0, 0, 0))
        except OSError:
            pass
        self.s.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def groups_of(volume, block):
    """The disk groups that have a replica of a 4 KiB block, by `volume show -o json`."""
    unit_blocks = 256  # of a stripe unit
    stripe, size = volume["stripe_count"], volume["object_size_bytes"] // 4096
    unit = block % (stripe * size) // unit_blocks
    index = block // (stripe * size) * stripe + unit % stripe
    return [r["group"] for r in volume["objects"][index]["replicas"]]


class Known:
    """A volume whose whole content is known: what was written through any node reads back right through every one."""
    CHUNK = 1 << 20

    def __init__(self, lab, volume, size, rng):
        self.lab, self.volume, self.rng = lab, volume, rng
        self.content = bytearray(size)
        self.case = "start"  # what a failure is told with

    def write(self, node, off, n):
        """Random bytes, n of them from off on."""
        data = self.rng.randbytes(n)
        with Nbd(self.lab.socket(node), self.volume) as d:
            for at in range(0, n, self.CHUNK):
                d.write(off + at, data[at:at + self.CHUNK])
        self.content[off:off + n] = data

    def verify(self, nodes, may_fail=False):
        """Reads all through each node. may_fail: EIO is an answer, a wrong block is not. The number of such answers."""
        failed = 0
        for node in nodes:
            with Nbd(self.lab.socket(node), self.volume) as d:
                for off in range(0, len(self.content), self.CHUNK):
                    try:
                        got = d.read(off, self.CHUNK)
                    except NbdError as e:
                        if not may_fail or e.errno != errno.EIO:
                            fail(f"{self.case}: read of {off} through node {node}: {e}")
                        failed += 1
                        continue
                    want = self.content[off:off + self.CHUNK]
                    if got != want:
                        bad = [off + b for b in range(0, self.CHUNK, 4096) if got[b:b + 4096] != want[b:b + 4096]]
                        fail(f"{self.case}: WRONG DATA through node {node} at {bad[:8]} ({len(bad)} blocks)")
        return failed


def flip_bit(path, at, rng):
    """One bit of the byte at `at`."""
    with open(path, "r+b") as f:
        f.seek(at)
        old = f.read(1)
        f.seek(at)
        f.write(bytes([old[0] ^ (1 << rng.randrange(8))]))
