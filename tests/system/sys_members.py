#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who belongs to the cluster. A voter that stays away is replaced by a standby and is one when it is back; its
successor has the key of the CA. A node is removed under load, the leader at that: its data and its vote move, it
leaves, is told so, and its host joins again as a new node."""
import sys, os, shutil
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

lab = Lab("members", "--nodes", "4", "--copies", "2", "--ram", "--size", "1G", "--cache", "256M")


def voters(node=1):
    return sorted(lab.json("status", node=node)["raft"]["voters"])


def codes(node=1):
    return {i["code"]: i for i in lab.json("health", node=node)["items"]}


step("a voter that stays away is replaced")
watch_for("three voters", lambda: voters() == ["node1", "node2", "node3"], 10)
lab.ashlar("cluster", "set", "voter_replace_delay_s", "2")
begin = time.time()
lab.do("kill", "2")
watch_for("health to say who takes the vote", lambda: "node4" in codes().get("RAFT_VOTER_LOST", {}).get("summary", ""), 5)
watch_for("node4 to vote instead of node2", lambda: voters() == ["node1", "node3", "node4"], 15)
step(f"after {time.time() - begin:.1f} s")
watch_for("the CA key on the new voter", lambda: os.path.exists(lab.path(4, "state", "ca.key")), 15)
if os.stat(lab.path(4, "state", "ca.key")).st_mode & 0o777 != 0o600 or \
        open(lab.path(4, "state", "ca.key")).read() != open(lab.path(1, "state", "ca.key")).read():
    fail("the new voter's CA key is not the cluster's, or not private")
lab.do("start", "2")
watch_for("all to agree on the voters", lambda: all(voters(n) == ["node1", "node3", "node4"] for n in (1, 2, 3, 4)), 10)
if "RAFT_VOTER_LOST" in codes():
    fail(f"health still misses a voter: {codes()}")

step("a node is removed under load")
lab.volume("v", "512M")
leader = lab.json("status")["raft"]["leader"]
gone = int(leader[-1])
others = [n for n in (1, 2, 3, 4) if n != gone]
via = others[0]
load = History(lab, "v:shared", others)


def refused(rc, *args, says=""):
    code, out, err = lab.ashlar(*args, rc=None, node=via)
    if code != rc or says not in out + err:
        fail(f"{' '.join(args)}: exit {code}, expected {rc} and \"{says}\"\n{out}{err}")


refused(2, "node", "remove", f"node{via}", "--wait", says="cannot ask the node")
refused(3, "node", "remove", "nobody")
if not json.loads(lab.ashlar("node", "remove", leader, "--dry-run", "-o", "json", node=via))["ok"]:
    fail("the dry run refuses")
# Attached through the node itself: it waits, and can be taken back until the end.
held = Nbd(lab.socket(gone), "v:shared")
held.write(400 << 20, b"x" * 4096)
job = lab.json("node", "remove", leader, node=via)["id"]


def waits():
    return lab.json("job", "show", job, node=via).get("waits_for") or ""


watch_for("the job to wait for the gateway", lambda: "volume v is attached through it" in waits(), 60)
lab.ashlar("job", "cancel", job, node=via)
if lab.json("node", "show", leader, node=via)["state"] != "active":
    fail("a cancelled removal took the node out")
held.close()
begin = time.time()
job = lab.json("node", "remove", leader, node=via)["id"]
lab.ashlar("job", "wait", job, "--for", "60s", node=via)
step(f"{leader} left after {time.time() - begin:.1f} s")
load.finish()
lab.in_sync_via(via)
if leader in [n["name"] for n in lab.json("node", "list", node=via)["nodes"]]:
    fail("a removed node is listed")
watch_for("Raft to be without it", lambda: len(voters(via)) == 3 and leader not in voters(via) and
          lab.json("status", node=via)["raft"]["members"] == 3, 10)
refused(1, "job", "cancel", str(job), says="done")
watch_for("the removed node to be told and end", lambda: not lab.alive(gone), 15)
lab.do("start", gone)
st = lab.json("status", node=gone)
if st["state"] != "removed" or "empty" not in st["remedy"]:
    fail(f"the removed node says {st}")
code, out, err = lab.ashlar("volume", "list", node=gone, rc=None)
if code == 0 or "was removed" not in err:
    fail(f"the removed node answers: {out}{err}")
lab.do("stop", gone)
shutil.rmtree(lab.path(gone, "state"))
lab.start_unclaimed(gone)
token = lab.json("node", "invite", node=via)["token"]
lab.ashlar("node", "join", token, node=gone)
lab.ashlar("diskgroup", "add", "--capacity", lab.path(gone, "capacity"), "--cache", lab.path(gone, "cache"),
           "--metadata-dir", lab.path(gone, "meta", "group0"), "--wipe", node=gone)
if lab.json("node", "show", leader, node=via)["number"] != 5:
    fail("the host did not come back as a new node")
bad = [c for c in codes(via) if c not in ("CRASH_RECENT",)]
if bad:
    fail(f"health after the removal: {bad}")
lab.done()
