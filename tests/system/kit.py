# SPDX-License-Identifier: Apache-2.0
"""What system tests share: a lab that goes away at the end, commands that must succeed or must fail, the
history load in the background. A test is a script; it prints what it does and exits 0, 1 or 77 (skipped)."""
import atexit, json, os, subprocess, sys, time

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
    r = subprocess.run([str(c) for c in cmd], capture_output=True, text=True, timeout=timeout,
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
        return sh(LAB, verb, *args, "--name", self.name, "--timeout", t, rc=rc, timeout=t + 60,
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
        print("passed", flush=True)

    def path(self, node, *more):
        return os.path.join(os.environ.get("ASHLAR_LAB_DIR", "/var/tmp/ashlar-lab"), self.name,
                            node if node == "client" else f"node{node}", *more)

    def ashlar(self, *args, node=1, rc=0):
        return sh(os.path.join(BIN, "ashlar"), *args, rc=rc,
                  env={"ASHLAR_ADMIN": "unix:" + self.path(node, "admin.sock")})

    def json(self, *args, node=1):
        return json.loads(self.ashlar(*args, "-o", "json", node=node))

    def uri(self, node, volume):
        return self.do("uri", node, volume).strip()

    def socket(self, node):
        return self.path(node, "nbd.sock")

    def volume(self, name, size, copies=2):
        self.ashlar("volume", "create", name, "--size", size, "--copies", copies)

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


def fio(uri, *args, **kw):
    return sh("fio", "--name=j", "--ioengine=nbd", "--verify_state_save=0", f"--uri={uri}", *args, **kw)


def watch_for(what, test, timeout):
    end = time.monotonic() + timeout
    while not test():
        if time.monotonic() > end:
            fail(f"timed out waiting for {what}")
        time.sleep(0.05)
