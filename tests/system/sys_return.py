#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node is away while clients write, and comes back: what is sent for its return is at most half more than what was
written meanwhile to the objects it has replicas of, comparisons and headers included, and the clients keep at least
80 % of their throughput. ASHLAR_TEST_LONG=1: away for 60 s; without, the throughput is only reported."""
import os, sys, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *
from load import Load

AWAY, BEFORE, FILL = (60, 15, "2G") if LONG else (5, 3, "256M")

lab = Lab("return", "--nodes", "3", "--copies", "2", "--ram", "--size", "4G" if LONG else "1G",
          "--cache", "1G" if LONG else "512M")
lab.ashlar("cluster", "set", "rebuild_delay_s", 3600)
lab.volume("v", "2G" if LONG else "1G")
fio(lab.uri("1", "v"), "--rw=write", "--bs=256k", "--iodepth=8", f"--size={FILL}")

volume = lab.json("volume", "show", "v")
stripe, object_size = volume["stripe_count"], volume["object_size_bytes"]
there = {o["index"] for o in volume["objects"] if any(r["node"] == "node3" for r in o["replicas"])}


def on_node3(offset):
    group, rest = divmod(offset, stripe * object_size)
    return group * stripe + (rest >> 20) % stripe in there


def sent(nodes):
    facts = {n: json.loads(lab.ashlar("node", "show", f"node{n}", "-o", "json")) for n in nodes}
    return sum(f["replication"]["resync_sent_bytes"] for f in facts.values())


load = Load(lab.uri("1", "v"), "--rw=randwrite", "--iodepth=4", "--norandommap=0", "--randrepeat=0",
            "--rate_iops=2000", f"--size={FILL}")
load.mark("start")
time.sleep(1)  # counts for nothing: the load is still beginning
load.mark("undisturbed")
time.sleep(BEFORE)  # the length of the measurement
load.mark("dying")
lab.do("kill", "3")
watch_for("the replicas of node 3 to be dropped", lambda: lab.json("status")["objects"]["in_sync"] < len(volume["objects"]), 20)
before = sent("12")
load.mark("away")
time.sleep(AWAY)  # part of the plan
load.mark("return")
lab.do("start", "3")
lab.in_sync()
load.mark("after")
sent_bytes = sent("123") - before
phases = load.finish()
missed = sum(4096 for o in phases["away"].writes if on_node3(o))
written = sum(4096 for o in phases["away"].writes | phases["return"].writes if on_node3(o))
for name in ("undisturbed", "away", "return"):
    print(phases[name])
step(f"{written >> 10} KiB were written meanwhile, {sent_bytes >> 10} KiB were sent for the return: "
     f"{sent_bytes / written:.2f}, of what was written while it was down {sent_bytes / missed:.2f}")
if sent_bytes > 1.5 * (missed if LONG else written):
    fail("more than half more than what was written")
if sent_bytes < missed:
    fail("less was counted than must have been sent")
kept = phases["return"].iops / phases["undisturbed"].iops
step(f"throughput during the return: {kept:.0%}")
if kept < (0.8 if LONG else 0.3):
    fail("the clients were slowed")
lab.done()
