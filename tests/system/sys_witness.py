#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two storage nodes and a witness: kill -9 of either storage node under load from a compute host stalls it for no more
than 1 s, with no error and nothing lost; a lost witness stalls nothing. The witness holds no data and takes none."""
import sys, os, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

lab = Lab("witness", "--nodes", "2", "--witness", "--copies", "2", "--ram", "--mode", "two-layer", "--size", "1G", "--cache", "256M")


def codes(node):
    return {i["code"]: i for i in lab.json("health", node=node)["items"]}


watch_for("three voters", lambda: len(lab.json("status")["raft"]["voters"]) == 3, 10)
w = lab.json("node", "show", "node3")
if not w["witness"] or not w["voter"] or w["roles"] != ["voter"] or w["diskgroups"]:
    fail(f"node3 is no witness: {w}")
if lab.json("status")["nodes"]["witnesses"] != 1 or codes(1):
    fail(f"a whole cluster with a witness is not well: {codes(1)}")
disk = lab.path(3, "disk")
with open(disk, "wb") as f:
    f.truncate(256 << 20)
rc, out, err = lab.ashlar("diskgroup", "add", "--capacity", disk, "--metadata-dir", lab.path(3, "meta", "g"), node=3, rc=None)
if rc != 1 or "no storage role" not in err:
    fail(f"the witness takes a disk group: {rc} {out}{err}")
lab.volume("g", "256M")
lab.volume("h", "256M")
gauge = Load(lab.uri("client", "g"), "256m", iops=500)
history = History(lab, "h", ["client"])
for node in ("1", "2", "1") if LONG else ("1", "2"):
    other = 3 - int(node)
    lab.ashlar("can-stop", f"node{node}", node=other)
    step(f"kill node {node}")
    with gauge.during(f"kill {node}", limit_ms=1000):
        lab.do("kill", node)
        time.sleep(2)  # a stall would be over 1 s by then
    down = codes(other)
    if "RAFT_VOTER_LOST" not in down or "RAFT_MINORITY" in down or "DATA_UNAVAILABLE" in down:
        fail(f"health without node {node}: {sorted(down)}")
    lab.do("start", node)
    lab.in_sync()
step("kill the witness")
with gauge.during("kill 3", limit_ms=1000):
    lab.do("kill", "3")
    time.sleep(2)  # likewise
rc, out, err = lab.ashlar("can-stop", "node2", rc=None)
if rc != 6:
    fail(f"can-stop of a storage node without the witness: exit {rc}, expected 6\n{out}{err}")
gauge.finish()
out = history.finish()
if " 0 errors" not in out:
    fail("a client saw an I/O error")
lab.done()
