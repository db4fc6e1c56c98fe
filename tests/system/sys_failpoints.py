#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ASHLAR_FAILPOINT: a node that kills itself, under load, at each named place of log, destage, collection and
start in turn. After each it starts again and goes on; at the end the whole history must be linearizable, and the
devices inspect clean."""
import sys, os, random, re, signal, tempfile
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

ROUNDS = 4 if LONG else 1
NAMES = re.findall(r"^FAILPOINT\((\w+), (true|false)", open(f"{ROOT}/node/loop/failpoint.def").read(), re.M)
# What this node does not pass under this load: deletes and formatting have rounds of their own below, `ashlard recover`
# a test of its own (sys_recover).
LATER = {"delete_step", "format_superblock", "recover_noted", "recover_written"}
seed = int(os.environ.get("SEED", time.time_ns() % 1000000))
random.seed(seed)
step(f"SEED={seed}")


class Node:
    def __init__(self, d):
        self.dir, self.log, self.p = d, open(f"{d}/log", "wb"), None
        self.env = {"ASHLAR_ADMIN": f"unix:{d}/admin.sock"}

    def start(self, failpoint=None):
        env = dict(os.environ, **({"ASHLAR_FAILPOINT": failpoint} if failpoint else {}))
        self.p = subprocess.Popen([f"{BIN}/ashlard", "run", "--standalone", self.dir, "--size", "128M",
                                   "--cache", "128M"], stdout=self.log, stderr=self.log, env=env)

    def ended(self):
        return self.p.poll() is not None

    def serves(self):
        if self.ended():
            fail("ashlard ended:\n" + self.tail())
        rc, out, _ = self.ashlar("diskgroup", "list", "-o", "json", rc=None)
        return rc == 0 and any(g["state"] == "active" for g in json.loads(out)["diskgroups"])

    def answers(self):
        return self.ashlar("status", rc=None)[0] == 0

    def ashlar(self, *args, rc=0):
        return sh(f"{BIN}/ashlar", *args, rc=rc, env=self.env)

    def died(self, name, timeout=90):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.p.wait(timeout)
        if self.p.poll() != -signal.SIGKILL:
            fail(f"{name}: ashlard ended with {self.p.returncode}, not by the failpoint\n{self.tail()}")

    def tail(self):
        return open(f"{self.dir}/log", errors="replace").read()[-3000:]

    def kill(self):
        if self.p and not self.ended():
            self.p.kill()
        self.p.wait()


class Alone:  # what History asks of a lab
    def __init__(self, d):
        self.d = d

    def socket(self, node):
        return f"{self.d}/nbd.sock"


with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
    node = Node(d)
    try:
        step("killed while it formats, then again to the end")
        node.start("format_superblock=kill")
        node.died("format_superblock")
        node.start()
        watch_for("the node", node.serves, 60)
        node.ashlar("volume", "create", "v", "--size", "64M", "--copies", "1")
        node.ashlar("volume", "create", "fill", "--size", "80M", "--copies", "1")
        uri = f"nbd+unix:///fill?socket={d}/nbd.sock"
        history = History(Alone(d), "v", [1], blocks=400, clients=6, seed=seed)
        for r in range(ROUNDS):
            names = [n for n, _ in NAMES if n not in LATER]
            random.shuffle(names)
            for name in names:
                often = name in ("log_write", "log_durable", "destage_read", "units_written", "units_flushed",
                                 "map_committed", "shards_told")
                node.kill()
                node.start(f"{name}:{random.randint(1, 5) if often else 1}=kill")
                if name == "object_saved":  # an object of its own
                    watch_for("the node", lambda: node.ended() or node.serves(), 60)
                    node.ashlar("volume", "create", f"o{r}", "--size", "4M", "--copies", "1", rc=None)
                    sh("qemu-io", "-f", "raw", "-c", "write 0 4k", f"nbd+unix:///o{r}?socket={d}/nbd.sock", rc=None)
                if name in ("gc_moved", "log_next_segment", "log_released"):  # those need more than the history writes
                    watch_for("the node", lambda: node.ended() or node.serves(), 60)
                    for mib in range(0, 80, 16):  # cold data between the hot: segments that die whole need no collecting
                        sh("qemu-io", "-f", "raw", "-c", f"write -P 7 {mib}M 16M", uri, rc=None)
                    for n in range(1, 9):
                        if node.ended():
                            break
                        sh("fio", "--name=j", "--ioengine=nbd", f"--uri={uri}", "--rw=randwrite", "--bs=64k", "--iodepth=8",
                           "--size=80m", "--io_size=16m", f"--randseed={n}", "--randrepeat=0", rc=None)
                        node.ashlar("diskgroup", "flush", "--all", rc=None)
                node.died(name)
                step(f"killed at {name}")
        node.start()
        watch_for("the node", node.serves, 60)
        history.finish()

        step("killed in a delete")
        node.kill()
        node.start("delete_step=kill")
        watch_for("the node", node.serves, 60)
        # Attachments of before the kills run out first.
        watch_for("the kill in a delete",
                  lambda: node.ended() or (node.ashlar("volume", "delete", "fill", "--yes", rc=None), node.ended())[1], 90)
        node.died("delete_step")

        step("stopped at any moment after its start")
        for turn in range(12):
            node.start()
            watch_for("the node", node.serves if turn == 0 else node.answers, 60)
            time.sleep(random.random() * 0.06)  # the moment
            node.p.send_signal(signal.SIGTERM)
            if node.p.wait(timeout=20) != 0:
                fail(f"exit {node.p.returncode} after SIGTERM\n{node.tail()}")
        for f in ("capacity", "cache"):
            sh(f"{BIN}/ashlard", "inspect", f"{d}/{f}")
        rc, _, err = sh(f"{BIN}/ashlard", "run", "--standalone", d, rc=None, env={"ASHLAR_FAILPOINT": "nowhere=kill"})
        if rc != 2 or "units_flushed" not in err:
            fail(f"a wrong failpoint: exit {rc}: {err}")
    finally:
        node.kill()
print("passed")
