#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of all nodes at once under load through all their gateways, start again in a shuffled order: every
acknowledged write reads back. 3 rounds; 20 in the long run."""
import random, sys, os, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

seed = int(os.environ.get("SEED", time.time_ns() % 1000000))
random.seed(seed)
step(f"SEED={seed}")
lab = Lab("killall", "--nodes", "3", "--ram", "--size", "2G", "--cache", "256M")
lab.volume("v", "256M")
for r in range(20 if LONG else 3):
    nodes = ["1", "2", "3"]
    history = History(lab, "v:shared", nodes, blocks=random.choice([64, 256, 1024]), seed=seed * 100 + r + 1)
    random.shuffle(nodes)
    load = random.uniform(1, 4)
    time.sleep(load)  # how long the load runs before the power goes: part of the random plan
    step(f"round {r}: kill all after {load:.1f} s, start {' '.join(nodes)}")
    lab.do("kill", *nodes)
    lab.do("start", *nodes)
    history.finish()
    lab.in_sync()
lab.done()
