#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything at once, by chance from one seed: nodes are killed, stopped cleanly, paused, cut off (symmetrically, one
way, one class of traffic), taken into maintenance, healed and started again, up to two of them at a time, while four
clients write a history. At the end all must be in-sync and the history linearizable.

  sys_chaos.py [--seconds N] [--seed N]      (30 s; ASHLAR_TEST_LONG=1: 30 minutes in rounds of 5)"""
import argparse, os, random, sys, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

ROUND = 300  # one history's length at most: it is checked in memory

p = argparse.ArgumentParser()
p.add_argument("--seconds", type=float, default=1800 if LONG else 25)
p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
a = p.parse_args()
step(f"again: {sys.argv[0]} --seconds {a.seconds:.0f} --seed {a.seed}")
rng = random.Random(a.seed)
NODES = ("1", "2", "3")
lab = Lab("chaos", "--nodes", "3", "--copies", "2", "--ram", "--netns", "--size", "2G", "--cache", "256M")
lab.volume("v", "256M")
hurt = {}  # node: how, and what undoes it
cuts = 0


def kill(n):
    lab.do("kill", n)
    return "is dead", lambda: lab.do("start", n, rc=None, timeout=10)


def stop(n):
    lab.do("stop", n)
    return "is stopped", lambda: lab.do("start", n, rc=None, timeout=10)


def pause(n):
    lab.do("pause", n)
    return "is paused", lambda: lab.do("resume", n)


def cut(n):
    if rng.random() < 0.25:
        lab.do("isolate", n)
        return "is isolated", lambda: lab.do("heal")
    others = [o for o in NODES if o != n]
    if rng.random() < 0.4:
        others = [rng.choice(others)]
    how = (["--one-way"] if rng.random() < 0.3 else []) + (["--class", rng.choice(["raft", "data"])] if rng.random() < 0.4 else [])
    for o in others:
        lab.do("cut", *((n, o) if rng.random() < 0.5 or "--one-way" not in how else (o, n)), *how)
    return f"is cut off from {' '.join(others)} {' '.join(how)}", lambda: lab.do("heal")


def maintenance(n):
    """Asked of any node that may answer; a refusal (5, 6) is an answer too."""
    via = rng.choice([m for m in NODES if m not in hurt] or NODES)
    yes = ["--yes"] if rng.random() < 0.3 else []
    rc, _, _ = lab.ashlar("--timeout", "10s", "node", "maintenance", "start", f"node{n}", "--ttl", "5m", *yes, node=via, rc=None)
    return f"is in maintenance (exit {rc})", lambda: lab.ashlar("--timeout", "10s", "node", "maintenance", "end", f"node{n}", node=via, rc=None)


def undo(n):
    how, fn = hurt.pop(n)
    step(f"node {n} {how}: undone")
    fn()


def one_round(seconds):
    history = History(lab, "v:shared", list(NODES), clients=4, seconds=seconds + 200, seed=rng.randrange(1 << 31))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        well = [n for n in NODES if n not in hurt]
        if hurt and (len(hurt) == 2 or rng.random() < 0.5):
            undo(rng.choice(sorted(hurt)))
        elif well:
            n = rng.choice(well)
            hurt[n] = rng.choice([kill, kill, stop, stop, pause, cut, cut, maintenance])(n)
            step(f"node {n} {hurt[n][0]}")
        if history.p.poll() is not None:
            break
        time.sleep(rng.choice([0, 0.3, 1, 2, 4]))  # the plan: what goes on meanwhile is the test
    for n in sorted(hurt):
        undo(n)
    lab.do("heal")
    lab.in_sync()
    history.finish()


left = a.seconds
while left > 0:
    one_round(min(left, ROUND))
    left -= ROUND
lab.done()
