#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The disks of a node go back to what they once were (a restored snapshot of a virtual machine, a device that lied).
Where another replica in sync has what they lack, that one goes on. Where only an unfinished copy has it, that is said,
nothing is written over it, and an operator decides."""
import os, random, shutil, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

MIB = 1 << 20
SIZE = 256 * MIB
FIRST = SIZE // 8  # what is written last: the first part of each object, where a copy begins
lab = Lab("setback", "--nodes", "2", "--witness", "--copies", "2", "--ram", "--size", "1G", "--cache", "128M")
rng = random.Random(7)
lab.ashlar("cluster", "set", "rebuild_delay_s", 3600)
lab.volume("v", f"{SIZE // MIB}M")
content = bytearray(SIZE)


def write(size):
    with Nbd(lab.socket(1), "v") as d:
        for off in range(0, size, MIB):
            content[off:off + MIB] = rng.randbytes(MIB)
            d.write(off, bytes(content[off:off + MIB]))


def bad(node, end=SIZE):
    """Offsets of the blocks that read back otherwise than they were last written."""
    with Nbd(lab.socket(node), "v") as d:
        got = b"".join(d.read(off, MIB) for off in range(0, end, MIB))
    return [off for off in range(0, end, 4096) if got[off:off + 4096] != content[off:off + 4096]]


DISKS = ["capacity", "cache", "meta/group0"]


def copy(a, b):
    os.makedirs(os.path.dirname(b), exist_ok=True)
    sh("rm", "-rf", b)
    sh("cp", "-a", "--sparse=always", "-T", a, b)


def keep(node):
    """Of a node that does not run: what its disks are now."""
    for d in DISKS:
        copy(lab.path(node, d), lab.path(node, "kept", d))


def go_back(node):
    for d in DISKS:
        copy(lab.path(node, "kept", d), lab.path(node, d))


def objects():
    return lab.json("volume", "show", "v", node=3)["objects"]


def replica(o, node):
    return next(r for r in o["replicas"] if r["node"] == f"node{node}")


def codes():
    return {i["code"] for i in lab.json("health", node=3).get("items", [])}


def settled():
    """All are in sync, and their primaries know it: what starts may be found to lack something."""
    return all(o["state"] == "serving" and all(r["state"] == "in-sync" for r in o["replicas"]) for o in objects())


def force(*args):
    return json.loads(lab.ashlar("volume", "force", "v", *args, "-o", "json", node=3, rc=None)[1])


def undecided():
    """Objects that nobody serves before somebody decides."""
    return {o["index"] for o in force()["objects"]} if "DATA_UNDECIDED" in codes() else set()


def quarantined():
    return {o["index"] for o in objects() if replica(o, 2)["state"] == "quarantined"}


step("both in sync; all stop, node 1's disks go back behind acknowledged writes: node 2 has them")
write(SIZE)
watch_for("all in sync", settled, 60)
lab.do("kill", "1", "2")
keep(1)
lab.do("start", "1", "2")
watch_for("all in sync", settled, 60)
write(FIRST)
lab.do("kill", "1", "2")
go_back(1)
lab.do("start", "1", "2")
watch_for("all in sync, or a question to the operator", lambda: settled() or undecided(), 60)
if undecided():  # node 1 was the first to propose itself, which put node 2 out
    step("node 2 was put out: the operator is asked")
    report = force("--accept-loss")
    if not report["done"] or any(o["node"] != "node2" for o in report["objects"]):
        fail(f"not what has more is proposed: {report}")
    lab.ashlar("quarantine", "discard", "v", "--yes", node=3)
    watch_for("all in sync", settled, 60)
for node in (1, 2):
    if bad(node):
        fail(f"node {node}: {len(bad(node))} blocks are WRONG")

step("node 1 is alone in sync, and is filling node 2; all stop, node 1's disks go back")
lab.do("kill", "2")
watch_for("node 2's replicas to be dropped", lambda: all(replica(o, 2)["state"] != "in-sync" for o in objects()), 20)
write(SIZE)
lab.do("kill", "1")
keep(1)
lab.do("start", "1")
write(FIRST)
lab.ashlar("cluster", "set", "rebuild_floor_mib_s", 1)
lab.ashlar("cluster", "set", "rebuild_limit_mib_s", 2)
lab.do("start", "2")


def copied():
    """Pages of node 2's copies."""
    left = [replica(o, 1).get("pages_to_copy", 0) for o in objects()]
    return SIZE // (64 * 4096) - sum(left) if all(left) else 0


watch_for("the first pages of node 2's copies", lambda: copied() >= 24, 60)
lab.do("kill", "1", "2")
go_back(1)
lab.do("start", "1", "2")
watch_for("health to tell", lambda: codes() & {"DATA_QUARANTINED", "DATA_UNDECIDED"}, 60)
lab.ashlar("cluster", "set", "rebuild_limit_mib_s", 0)
watch_for("all else to be filled", lambda: all(
    o["index"] in undecided() | quarantined() or replica(o, 2)["state"] == "in-sync" for o in objects()), 60)
told = {e["code"] for e in lab.json("events", node=3)["events"]}
if not told & {"REPLICA_LOST_DATA", "DATA_NEWER", "DATA_DIVERGED"}:
    fail(f"nobody was told: {told}")

waiting = undecided()
if waiting:
    step(f"{len(waiting)} objects wait for the operator, also when node 1 is started again")
    lab.do("kill", "1")
    lab.do("start", "1")
    watch_for("those that waited to wait", lambda: waiting <= undecided(), 60)
    watch_for("status to count them", lambda: lab.json("status", node=3)["objects"]["undecided"] >= len(waiting), 30)

step("the operator takes the unfinished copies: what they had is still there")
groups = {replica(o, 2)["group"] for o in objects()}
group = str(groups.pop())
# Node 1 was just started: until its process is known to the cluster, and its replicas are found, it is refused.
watch_for("the force to be taken", lambda: force("--group", group, "--accept-loss")["done"] >= 1, 30)
lab.ashlar("quarantine", "discard", "v", "--yes", node=3)
watch_for("all in sync", settled, 60)
there = FIRST // 4096 - len(bad(2, FIRST))
step(f"{there} blocks of the unfinished copies read back")
if there < 16 * 64:
    fail(f"of 24 pages that were copied only {there} blocks are there")
if bad(1) != bad(2):
    fail("the copies differ")
lab.done()
