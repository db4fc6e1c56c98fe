#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The only in-sync replicas of some objects are on a disk group that lost its cache device, older ones are on another
node. Nobody takes those for the data until an operator says so; what that goes past comes back into quarantine, is not
touched, and can be gone back to; what is discarded is filled again. A primary that may be alive is not gone past."""
import os, random, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

MIB = 1 << 20
SIZE = 64 * MIB
lab = Lab("force", "--nodes", "3", "--copies", "2", "--ram", "--size", "512M", "--cache", "128M")
rng = random.Random(5)
old, new = rng.randbytes(SIZE), rng.randbytes(SIZE)
lab.ashlar("cluster", "set", "rebuild_delay_s", 3600)
lab.volume("v", f"{SIZE // MIB}M")
lab.ashlar("volume", "create", "w", "--size", "256M")
out = lab.ashlar("volume", "force", "w", rc=None)[1]
if "not open" in out:
    fail(f"what is being made is taken for lost: {out}")
lab.ashlar("volume", "delete", "w", "--yes")


def write(data):
    with Nbd(lab.socket(1), "v") as d:
        for off in range(0, SIZE, MIB):
            d.write(off, data[off:off + MIB])


def show():
    return lab.json("volume", "show", "v")


def object_of(offset):
    v = show.cached
    group, rest = divmod(offset, v["stripe_count"] * v["object_size_bytes"])
    return group * v["stripe_count"] + (rest >> 20) % v["stripe_count"]


def verify(stale):
    """New data everywhere, but for the objects in stale."""
    with Nbd(lab.socket(1), "v") as d:
        for off in range(0, SIZE, MIB):
            want = old if object_of(off) in stale else new
            if d.read(off, MIB) != want[off:off + MIB]:
                fail(f"WRONG DATA at {off}, object {object_of(off)}, which is {'' if want is old else 'not '}stale")


def replica(o, node):
    return next((r for r in o["replicas"] if r["node"] == f"node{node}"), None)


def code(name):
    return next((i for i in lab.json("health").get("items", []) if i["code"] == name), None)


def objects(state, node):
    return {o["index"] for o in show()["objects"] if (replica(o, node) or {}).get("state") == state}


def forced(*args, rc=0):
    """What `volume force` answers; nothing at all when it could not be asked."""
    got, out, err = lab.ashlar("volume", "force", "v", *args, "-o", "json", rc=None)
    if got != rc:
        fail(f"volume force {args}: exit {got}, expected {rc}: {out[-500:]} {err[-500:]}")
    return json.loads(out)


step("node 3 is away while all is written anew; then node 2 stops, and its cache device is gone")
write(old)
show.cached = show()
only2 = {o["index"] for o in show()["objects"] if replica(o, 2) and replica(o, 3)}
if not only2 or len(only2) == len(show()["objects"]):
    fail("the placement is not what this test needs")
lab.do("kill", "3")
watch_for("node 3's replicas to be dropped", lambda: not objects("in-sync", 3), 20)
write(new)
lab.do("stop", "2")
cache = lab.path(2, "cache")
os.rename(cache, cache + ".away")
lab.do("start", "3")
lab.do("start", "2")
watch_for("the older replicas to be in reach", lambda: all(
    "last_seq" in replica(o, 3) for o in show()["objects"] if replica(o, 3)), 30)
watch_for("health to tell", lambda: code("DATA_UNAVAILABLE"), 30)

step("what there is, is shown; nothing is done")
epochs = {o["index"]: o["epoch"] for o in show()["objects"]}
report = forced(rc=5)
if {o["index"] for o in report["objects"]} != only2 or report["done"]:
    fail(f"{report}")
for o in report["objects"]:
    if o["node"] != "node3" or "not open" not in o["why"] or "not in sync" not in o["may_lose"]:
        fail(f"{o}")
if {o["index"]: o["epoch"] for o in show()["objects"] if o["index"] in only2} != {i: epochs[i] for i in only2}:
    fail("a report changed something")

step("the operator accepts the loss: the old data is served, and may be written")
if forced("--accept-loss")["done"] != len(only2):
    fail("not all were forced")
verify(stale=only2)
at = next(off for off in range(0, SIZE, MIB) if object_of(off) in only2)
with Nbd(lab.socket(1), "v") as d:
    d.write(at, old[at:at + 4096])
event = next(e for e in lab.json("events")["events"] if e["code"] == "DATA_FORCED")
if not event["actor"] or "volume v" not in event["text"]:
    fail(f"{event}")
forced()  # nothing more to force

step("the device comes back: what it has is kept in quarantine, and nobody uses or fills it")
lab.do("stop", "2")
os.rename(cache + ".away", cache)
lab.do("start", "2")
watch_for("the quarantine", lambda: all("last_seq" in replica(o, 2) for o in show()["objects"] if o["index"] in only2), 30)
if objects("quarantined", 2) != only2:
    fail(f"{show()['objects']}")
item = code("DATA_QUARANTINED") or fail("health does not tell of the quarantine")
if "quarantine discard v" not in item["command"]:
    fail(f"{item}")
rows = lab.json("quarantine", "list")["quarantine"]
if [(r["volume"], r["node"], r["replicas"]) for r in rows] != [("v", "node2", len(only2))]:
    fail(f"{rows}")
rc, out, err = lab.ashlar("node", "remove", "node2", "--dry-run", rc=None)
if rc != 5 or "quarantine" not in out + err:
    fail(f"nothing moves what is in quarantine, and a removal does not say so: exit {rc}: {out}{err}")
watch_for("the other objects to be whole", lambda: all(
    r["state"] == "in-sync" for o in show()["objects"] if o["index"] not in only2 for r in o["replicas"]), 60)
verify(stale=only2)
ends = {o["index"]: replica(o, 2)["last_seq"] for o in show()["objects"] if o["index"] in only2}

step("they go back to it, while the other one serves")
report = forced("--group", str(rows[0]["group"]), "--accept-loss")
if report["done"] != len(only2) or report["affected"] != len(only2):
    fail(f"{report}")
verify(stale=set())
if objects("quarantined", 3) != only2:
    fail("the other side is not in quarantine now")
if any(replica(o, 2)["last_seq"] < ends[o["index"]] for o in show()["objects"] if o["index"] in only2):
    fail("what was in quarantine lost something")

step("the rest is discarded, and filled again")
lab.ashlar("quarantine", "discard", "v", "--yes")
lab.in_sync(60)
watch_for("health to be silent", lambda: not code("DATA_QUARANTINED"), 20)
verify(stale=set())

step("a primary that may be alive is not gone past")
lab.do("kill", "2")
watch_for("node 2's replicas to be dropped", lambda: not objects("in-sync", 2), 20)
lab.do("kill", "3")
lab.do("start", "2")
watch_for("node 2", lambda: all("last_seq" in replica(o, 2) for o in show()["objects"] if o["index"] in only2), 30)
refused = forced("--accept-loss", rc=1)
if refused["done"] or not all("node remove node3 --dead" in r["why"] for r in refused["refused"]):
    fail(f"{refused}")
lab.do("start", "3")
lab.in_sync(60)
verify(stale=set())
lab.done()
