#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compressible data with duplicates on a volume larger than the log: the ledger's ratio is the data's, and the
contents are right after a restart of all nodes and after kill -9 during destage. The policy is switched on a
volume that is full of data, and its data is reduced, through a restart. Long: 1.5 GiB and 20 kills."""
import random, re
from kit import *

MIB, UNIT = 1 << 20, 256  # blocks of a stripe unit
SIZE, ROUNDS = (1536 * MIB, 20) if LONG else (128 * MIB, 1)
CACHE = "512M" if LONG else "64M"
rnd = random.Random(5)


class Content:
    """What is on the volume, as a number per block; a number is a block: half random, half zeroes."""
    def __init__(self, size, first):
        self.ids, self.first, self.next = [0] * (size // 4096), first, first

    def block(self, number):
        return random.Random(number).randbytes(2048) + bytes(2048) if number else bytes(4096)

    def fill(self, first, n):
        """A third are copies of what is somewhere already."""
        for i in range(first, first + n):
            if self.next > self.first and rnd.random() < 1 / 3:
                self.ids[i] = rnd.randrange(self.first, self.next)
            else:
                self.ids[i], self.next = self.next, self.next + 1

    def write(self, nbd, first, n):
        nbd.write(first * 4096, b"".join(self.block(x) for x in self.ids[first:first + n]))

    def check(self, lab, node, name):
        with Nbd(lab.socket(node), name) as nbd:
            for first in range(0, len(self.ids), UNIT):
                got = nbd.read(first * 4096, UNIT * 4096)
                for i in range(UNIT):
                    if got[i * 4096:(i + 1) * 4096] != self.block(self.ids[first + i]):
                        fail(f"block {first + i} is not what was written")

    def ratio(self, volume):
        """Duplicates are found within a disk group: each group's blocks are counted by themselves."""
        groups = {}
        for i, number in enumerate(self.ids):
            for g in groups_of(volume, i):
                groups.setdefault(g, []).append(number)
        return sum(map(len, groups.values())) / sum(len(set(g)) * 0.5 for g in groups.values())


def verify(lab):
    lab.ashlar("diskgroup", "flush", "--all")
    lab.ashlar("diskgroup", "verify", "--all")


lab = Lab("reduction", "--nodes", "3", "--ram", "--size", "3G" if LONG else "512M", "--cache", CACHE)
lab.volume("v", SIZE)
lab.ashlar("volume", "set", "v", "--compression", "lz4", "--dedup", "on")
for n in (1, 2, 3):  # what a node destages before it hears of it stays as it is
    watch_for(f"node {n} to know the policy", lambda: lab.json("volume", "show", "v", node=n)["dedup"], 10)
content = Content(SIZE, 1)
step(f"{SIZE // MIB} MiB, the log is {CACHE}")
with Nbd(lab.socket(1), "v") as nbd:
    for first in range(0, len(content.ids), UNIT):
        content.fill(first, UNIT)
        content.write(nbd, first, UNIT)
    nbd.flush()


def reduced_as_expected(when):
    lab.ashlar("diskgroup", "flush", "--all", "--reduce", timeout=1200)  # what was stored raw under load, too
    lab.ashlar("diskgroup", "verify", "--all")
    volume = lab.json("volume", "show", "v")
    space, expected = volume["space"], content.ratio(volume)
    ratio = space["logical_bytes"] / space["stored_bytes"]
    print(f"{when}: ratio of the ledger {ratio:.3f}, of the data {expected:.3f}", flush=True)
    if abs(ratio - expected) > 0.05 * expected:  # LZ4 adds some bytes to each half: 3 % of it
        fail("the ratio is too far off")


reduced_as_expected("written")
content.check(lab, 2, "v")

step("all nodes are killed and started")
for n in ("1", "2", "3"):
    lab.do("kill", n)
lab.do("start", "1", "2", "3")
lab.in_sync()
content.check(lab, 3, "v")
for turn in range(ROUNDS):
    node = turn % 3 + 1
    step(f"kill -9 of node {node} during destage")
    with Nbd(lab.socket(node % 3 + 1), "v") as nbd:
        for _ in range(max(4, SIZE // MIB // 16)):
            first = rnd.randrange(len(content.ids) // UNIT) * UNIT
            content.fill(first, UNIT)
            content.write(nbd, first, UNIT)
        nbd.flush()
    def destaged():
        return int(re.search(r"ashlar_group_destaged_blocks\{[^}]*\} (\d+)", lab.metrics(node))[1])
    before = destaged()
    flush = subprocess.Popen([os.path.join(BIN, "ashlar"), "diskgroup", "flush", str(node)], stderr=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, env=dict(os.environ, ASHLAR_ADMIN="unix:" + lab.path(node, "admin.sock")))
    watch_for("destage to begin", lambda: destaged() > before or flush.poll() is not None, 30)
    lab.do("kill", node)
    flush.wait()
    lab.do("start", node)
    lab.in_sync()
    content.check(lab, turn % 3 + 1, "v")
step("a node starts again below a volume in use, of which nothing changes that would tell it the policy anew")
with Nbd(lab.socket(1), "v") as nbd:
    content.write(nbd, 0, UNIT)
    lab.do("kill", 2)
    lab.do("start", 2)
    lab.in_sync()
    for first in range(0, len(content.ids) // 4, UNIT):
        content.fill(first, UNIT)
        content.write(nbd, first, UNIT)
    nbd.flush()
reduced_as_expected("after restarts")

step("policy: data that is there is left, or reduced, through a kill")
size = (256 if LONG else 24) * MIB
lab.volume("p", size)
plain = Content(size, 1 << 32)
with Nbd(lab.socket(1), "p") as nbd:
    for first in range(0, len(plain.ids), UNIT):
        plain.fill(first, UNIT)
        plain.write(nbd, first, UNIT)
    nbd.flush()
verify(lab)
stored = lab.json("volume", "show", "p")["space"]["stored_bytes"]
if stored != 2 * size:
    fail(f"stored {stored}, with nothing to reduce it")
lab.ashlar("volume", "set", "p", "--compression", "lz4", "--dedup", "on", "--existing", "leave")
verify(lab)
if lab.json("volume", "show", "p")["space"]["stored_bytes"] != stored:
    fail("existing data was not left alone")
lab.ashlar("volume", "set", "p", "--existing", "reduce")
lab.do("kill", 2)
lab.do("start", 2)
lab.in_sync()
expected = plain.ratio(lab.json("volume", "show", "p"))
ratio = 0


def reduced():
    """All of it: to_reduce_bytes alone may be 0 while a node that has just started has not opened all objects."""
    global ratio
    s = lab.json("volume", "show", "p")["space"]
    ratio = s["logical_bytes"] / max(1, s["stored_bytes"])
    # LZ4 adds some bytes to each half: 3 % of it
    return s["groups_known"] == 3 and s["to_reduce_bytes"] == 0 and abs(ratio - expected) <= 0.05 * expected


try:
    watch_for("the data of p to be reduced on all nodes", reduced, 120)
finally:
    print(f"p: ratio of the ledger {ratio:.3f}, of the data {expected:.3f}", flush=True)
plain.check(lab, 3, "p")
verify(lab)
lab.do("stop", 1)
if not os.path.exists(lab.path(1, "meta", "group0", "HINTS")):
    fail("a clean stop did not save the dedup hints")
lab.do("start", 1)
watch_for("node 1 to take its dedup hints over",
          lambda: "that the last stop saved" in open(lab.path(1, "log"), errors="replace").read(), 20)
lab.in_sync()
lab.ashlar("volume", "set", "p", "--compression", "off", "--dedup", "off")
if "nothing to reduce" not in lab.ashlar("volume", "set", "p", "--existing", "reduce", rc=None)[2]:
    fail("a request to reduce by nothing was taken")
lab.done()
