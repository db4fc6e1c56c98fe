#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node is cut off, symmetrically and one way, in network namespaces: the minority serves nothing stale,
the rest goes on, and after healing everything is in-sync."""
import sys, os, subprocess, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

lab = Lab("partition", "--nodes", "3", "--ram", "--netns", "--size", "2G", "--cache", "256M")
lab.volume("v", "256M")
for a, others, extra in (("1", ("2", "3"), []), ("2", ("1", "3"), []), ("3", ("1", "2"), ["--one-way"])):
    # Through all gateways: that of the node that is cut off hangs, and must not answer with what is stale.
    history = History(lab, "v:shared", ["1", "2", "3"], clients=6)
    step(f"cut {a} from {others} {' '.join(extra)}")
    for o in others:
        lab.do("cut", a, o, *extra)
    time.sleep(8)  # the length of the partition: part of the plan
    lab.do("heal")
    lab.in_sync()
    history.finish()
step("a link that is cut is named by the nodes at its ends, not only by a third one")


def found(node):
    return {i["code"]: i for i in lab.json("health", node=node)["items"]}


for cls, kind in (("raft", "control"), ("data", "data")):
    lab.do("cut", "1", "2", "--class", cls)
    for a, b in (("1", "2"), ("2", "1")):
        watch_for(f"node {a} to name the {cls} link to {b}",
                  lambda: f"node{a}->node{b} {kind}" in found(a).get("NET_PARTIAL_PARTITION", {}).get("affected", []), 15)
        lost = found(a).get("RAFT_VOTER_LOST")
        if lost and not lost["command"].startswith("check the network between"):
            fail(f"node {a} says of a voter that runs: {lost}")
    lab.do("heal")
    lab.in_sync()
    watch_for("no link to be named", lambda: not any("NET_PARTIAL_PARTITION" in found(n) for n in "123"), 10)
step("a pause longer than every lease: the paused node wakes up fenced")
history = History(lab, "v:shared", ["1", "2", "3"], clients=6)
for n in ("1", "2", "3"):
    lab.do("pause", n)
    time.sleep(4)  # longer than lease, grace and election
    lab.do("resume", n)
    lab.in_sync()
history.finish()
step("beside a frozen node, and others who ask for facts of now all the time, a question is answered")
env = dict(os.environ, ASHLAR_ADMIN="unix:" + lab.path(1, "admin.sock"))


def ask(*words):
    return subprocess.Popen([os.path.join(BIN, "ashlar"), *words], env=env, stdout=subprocess.DEVNULL)


lab.do("pause", "3")
others, question, begun, answered = [], None, time.monotonic(), None
while time.monotonic() < begun + 10:
    others.append(ask("can-stop", "node2"))
    time.sleep(0.4)  # their rate: less than a gathering takes
    if len(others) == 3:
        question, begun = ask("status"), time.monotonic()
    if question and answered is None and question.poll() is not None:
        answered = time.monotonic() - begun
if question.wait() or answered is None or answered > 5:
    fail(f"status was answered after {answered} s, by exit code {question.returncode}")
for o in others:
    o.wait()
lab.do("resume", "3")
lab.done()
