#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node is cut off from everybody, the compute host included, without a word: writes at queue depth 16 from the
compute host meet no error and stall for 4 s at most. The Raft leader's node; with ASHLAR_TEST_LONG=1 each in turn.
Where only the compute host cannot reach a node, its requests are forwarded."""
import sys, os, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

lab = Lab("cuteach", "--nodes", "3", "--copies", "2", "--ram", "--netns", "--mode", "two-layer", "--size", "2G",
          "--cache", "512M")
lab.volume("v", "512M")
load = Load(lab.uri("client", "v"), "512m", iops=1000)
watch_for("the load to write", lambda: lab.json("volume", "show", "v")["attachments"], 30)
leader = str(lab.json("status")["raft"]["leader_number"])
for node in ("1", "2", "3") if LONG else (leader,):
    step(f"cut {node} off")
    with load.during(f"node {node} cut off", limit_ms=4000):
        lab.do("isolate", node)
        time.sleep(6)  # the length of the partition: part of the plan
    lab.do("heal")
    lab.in_sync()
# The compute host alone loses a node, which goes on as a primary: its requests take a hop through another.
step("cut the compute host from node 2")
with load.during("node 2 cut off from the compute host", limit_ms=2000):
    lab.do("cut", "client", "2")
    time.sleep(4)  # the length of the cut: part of the plan
hops = "its requests go through another one" in open(lab.path("client", "log")).read()
lab.do("heal")
load.finish()
if not hops:
    fail("no request was forwarded: the cut did not do what it should")
lab.done()
