#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is planned stalls nobody: writes at queue depth 16 from a compute host go on while nodes are taken into
maintenance (their primaries move) and stopped cleanly. can-stop and can-lose answer meanwhile. The bound is 200 ms in the
long form, and in the short one, which may share its host with anything, still less than a takeover after a crash takes;
a host that is slower than that under the same load without a move is measured by itself."""
import sys, os, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

lab = Lab("moves", "--nodes", "3", "--copies", "2", "--ram", "--mode", "two-layer", "--size", "2G", "--cache", "512M")
lab.volume("v", "512M")


def primaries(node):
    return lab.json("node", "show", f"node{node}")["replication"]["primaries"]


def answer(*args, rc):
    code, out, err = lab.ashlar(*args, "-o", "json", rc=None)
    if code != rc:
        fail(f"{' '.join(args)}: exit {code}, expected {rc}\n{out}{err}")
    return json.loads(out) if out.strip().startswith("{") else err


load = Load(lab.uri("client", "v"), "512m")


def timed(what, fn):
    """What fn does, and the second after it, in which a stall that it caused would show."""
    with load.during(what):
        begin = time.time()
        fn()
        took = time.time() - begin
        time.sleep(1)  # the length of the measurement
    step(f"{what}: {took * 1000:.0f} ms")


watch_for("the load to write", lambda: lab.json("volume", "show", "v")["attachments"], 30)
for _ in range(3):
    timed("nothing", lambda: None)
for node in ("1", "2", "3") if LONG else ("2", "1"):
    name = f"node{node}"
    j = answer("can-stop", name, rc=0)
    if j["objects"]["single_copy"] != j["objects"]["affected"] or not j["objects"]["affected"]:
        fail(f"can-stop counts wrongly: {j}")
    had = primaries(node)
    timed(f"planned move of {had} primaries", lambda: lab.ashlar("node", "maintenance", "start", name, "--ttl", "10m", "--reason", "test"))
    if primaries(node):
        fail(f"{name} is in maintenance and is still primary of {primaries(node)} objects")
    other = f"node{int(node) % 3 + 1}"
    j = answer("can-stop", other, rc=5)  # one is stopped already, as far as anybody can rely on it
    if not j["objects"]["unavailable"] or j["volumes"] != ["v"]:
        fail(f"can-stop of a second node: {j}")
    answer("node", "maintenance", "start", other, rc=5)  # and so it is refused
    via = int(other[-1])
    timed("clean stop in maintenance", lambda: lab.do("stop", node))
    items = {i["code"]: i for i in lab.json("health", node=via)["items"]}
    if items.get("NODE_DOWN", {}).get("severity") != "info" or "NODE_MAINTENANCE" not in items:
        fail(f"health does not call it planned: {items}")
    lab.do("start", node)
    lab.in_sync()
    lab.ashlar("node", "maintenance", "extend", name, "--ttl", "1s")
    watch_for("the lease to run out", lambda: "NODE_MAINT_EXPIRED" in [i["code"] for i in lab.json("health")["items"]], 10)
    lab.ashlar("node", "maintenance", "end", name)
    timed("clean stop", lambda: lab.do("stop", node))
    lab.do("start", node)
    lab.in_sync()
if any("CRASH_RECENT" == i["code"] for i in lab.json("health")["items"]):
    fail("a clean stop is called a crash")
j = answer("can-lose", "node1", rc=0)
if j["again"]["rate"] != "estimated" or not j["again"]["space_enough"]:
    fail(f"can-lose: {j}")
answer("can-lose", "node1", "node2", rc=5)
answer("can-lose", "nobody", rc=3)
if LONG:
    step("primaries return")
    watch_for("primaries at all nodes", lambda: all(primaries(n) for n in "123"), 60)
load.finish()
normal = [load.worst(b, e) for w, b, e, _ in load.marks if w == "nothing"]
bound = max([200 if LONG else 600] + [2 * max(gap, lat) for gap, lat in normal])
step(f"without any move: gap and latency at most {[tuple(round(x) for x in n) for n in normal]} ms; bound {bound:.0f} ms")
for what, begin, end, _ in load.marks:
    gap, lat = load.worst(begin, end)
    if max(gap, lat) > bound:
        fail(f"{what}: the load stalled for {max(gap, lat):.0f} ms")
lab.done()
