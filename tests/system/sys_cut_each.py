#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node is cut off from everybody, the compute host included, without a word: writes at queue depth 16 from the
compute host meet no error and stall for 4 s at most. The Raft leader's node; with ASHLAR_TEST_LONG=1 each in turn."""
import sys, os, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

lab = Lab("cuteach", "--nodes", "3", "--copies", "2", "--ram", "--netns", "--mode", "two-layer", "--size", "2G",
          "--cache", "512M")
lab.volume("v", "512M")
load = Load(lab.uri("client", "v"), "512m", iops=1000)
time.sleep(1)
marks = []
leader = str(lab.json("status")["raft"]["leader_number"])
for node in ("1", "2", "3") if LONG else (leader,):
    begin = time.time()
    step(f"cut {node} off")
    lab.do("isolate", node)
    time.sleep(6)  # the length of the partition: part of the plan
    marks.append((node, begin, time.time()))
    lab.do("heal")
    lab.in_sync()
load.finish()
for node, begin, end in marks:
    gap, lat = load.worst(begin, end)
    step(f"node {node} cut off: longest gap {gap:.0f} ms, longest latency {lat:.0f} ms")
    if max(gap, lat) > 4000:
        fail("more than 4 s")
lab.done()
