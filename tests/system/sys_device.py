#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Devices of disk groups are lost one after the other under a history load: a capacity device at run time, one
while its node is stopped, a cache device at run time. Clients see no error and nothing wrong; each is replaced by
one command; what is fetched again is bounded by what the device held, of a cache device by what was not on the
capacity devices yet."""
import os, random, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

MIB = 1 << 20
SIZE = 64 * MIB
faults = f"/tmp/ashlar-device-faults-{os.getpid()}"
os.mkdir(faults)
atexit.register(lambda: sh("rm", "-rf", faults))
os.environ["ASHLAR_TEST_DEVICE_FAULTS"] = faults
lab = Lab("device", "--nodes", "3", "--ram", "--size", "192M", "--cache", "96M", "--disks", "2")
rng = random.Random(7)
known = rng.randbytes(SIZE)
lab.volume("bulk", f"{SIZE // MIB}M")
lab.volume("h", "16M")


def fault(path, what):
    with open(os.path.join(faults, path.replace("/", "%")), "w") as f:
        f.write(what)


def verify(through):
    with Nbd(lab.socket(through), "bulk") as d:
        for off in range(0, SIZE, MIB):
            if d.read(off, MIB) != known[off:off + MIB]:
                fail(f"WRONG DATA at {off} through node {through}")


def group(node, ask=None):
    ask = ask or (1 if node != 1 else 2)
    return next(g for g in lab.json("diskgroup", "list", node=ask)["diskgroups"] if g["node"] == f"node{node}")


def device(node, name):
    return next((d for d in group(node).get("devices", []) if (d.get("path") or "").endswith("/" + name)), {})


def resynced():
    return sum(lab.json("node", "show", f"node{n}", node=n)["replication"]["resync_bytes"] for n in (1, 2, 3))


def codes(node=2):
    return {i["code"]: i for i in lab.json("health", node=node).get("items", [])}


def fresh(node, name, size):
    path = lab.path(node, name)
    with open(path, "wb") as f:
        f.truncate(size)
    return path


def replace(node, old, new, *more, rc=0):
    return lab.ashlar("diskgroup", "replace", group(node)["group"], "--old", old, "--new", new, *more,
                      node=1 if node != 1 else 2, rc=rc)


def lost_on(node):
    """Bytes that the node's store says stood on lost devices; by the time one asks they may be there again."""
    def last():
        with open(lab.path(node, "log"), errors="replace") as f:
            return [int(x.split("blocks=")[1].split()[0]) for x in f if "stands on lost devices" in x]
    watch_for("the store to say what is lost", last, 30)
    return last()[-1] * 4096


def destaged():
    return sum(group(n)["stats"]["data_used_bytes"] for n in (1, 2, 3)) > 1.9 * SIZE


step("fill, and wait until it stands on the capacity devices")
with Nbd(lab.socket(1), "bulk") as d:
    for off in range(0, SIZE, MIB):
        d.write(off, known[off:off + MIB])
watch_for("destage", destaged, 60)
history = History(lab, "h:shared", [1, 2, 3])

step("a capacity device of node 2 fails at run time")
before, used = resynced(), group(2)["stats"]["data_used_bytes"]
fault(lab.path(2, "capacity2"), "read write flush")
verify(2)  # reads meet it, and are answered from elsewhere
watch_for("the device to be failed", lambda: device(2, "capacity2").get("state") == "failed", 30)
lost = lost_on(2)
watch_for("DISK_FAILED", lambda: "DISK_FAILED" in codes(), 5)  # facts may be half a second old
item = codes()["DISK_FAILED"]
if "diskgroup replace" not in item["command"] or not group(2)["open"]:
    fail(f"{item}, {group(2)}")
lab.in_sync(60)
sent = resynced() - before
print(f"      {lost / MIB:.1f} MiB of {used / MIB:.1f} stood there; {sent / MIB:.1f} MiB fetched", flush=True)
if sent > used * 0.8 or sent > lost * 1.5 + 8 * MIB:
    fail(f"{sent} bytes were fetched, {lost} were lost")
for n in (1, 2, 3):
    verify(n)

step("refusals, then another device takes its place")
rc, out, err = replace(2, lab.path(2, "capacity2"), lab.path(2, "capacity"), rc=None)
if rc != 1 or "in use" not in err:
    fail(f"a device in use: {rc} {err}")
rc, out, err = replace(2, "/dev/none", lab.path(2, "new"), rc=None)
if rc != 3:
    fail(f"a device that is no member: {rc} {err}")
new = fresh(2, "new", 256 * MIB)
with open(new, "r+b") as f:
    f.write(b"something")
rc, out, err = replace(2, lab.path(2, "capacity2"), new, rc=None)
if rc != 5 or "--wipe" not in err:
    fail(f"a device that carries something: {rc} {err}")
replace(2, lab.path(2, "capacity2"), new, "--wipe")
replace(2, lab.path(2, "capacity2"), new)  # again: nothing to do
watch_for("the new one to be there", lambda: device(2, "new").get("state") == "ok" and "DISK_FAILED" not in codes(), 5)
lab.in_sync(60)

step("a capacity device of node 3 is gone when it starts")
lab.do("kill", 3)
os.truncate(lab.path(3, "capacity"), 0)
lab.do("start", 3)
watch_for("the group to open without it", lambda: device(3, "capacity").get("state") == "missing", 40)
lab.in_sync(60)
watch_for("DISK_MISSING", lambda: "DISK_MISSING" in codes(), 5)
verify(3)
replace(3, lab.path(3, "capacity"), fresh(3, "new", 128 * MIB))
lab.in_sync(60)

step("the cache device of node 1 fails at run time")
lab.ashlar("diskgroup", "flush", group(1)["group"])
before, used = resynced(), group(1)["stats"]["data_used_bytes"]
fault(lab.path(1, "cache"), "write flush")
with Nbd(lab.socket(2), "bulk") as d:  # a write that meets it, if the load does not
    for off in range(0, SIZE, MIB):
        d.write(off, known[off:off + 4096])
watch_for("CACHE_DEVICE_LOST", lambda: "CACHE_DEVICE_LOST" in codes(), 30)
replace(1, lab.path(1, "cache"), fresh(1, "newcache", 96 * MIB))
lab.in_sync(90)
sent = resynced() - before
print(f"      the group held {used / MIB:.1f} MiB; {sent / MIB:.1f} MiB fetched", flush=True)
if sent > used * 0.75:  # it is next to nothing, unless a replica was rebuilt on another node meanwhile
    fail(f"{sent} bytes were fetched of a group of {used}")
watch_for("the new one to be there", lambda: device(1, "newcache").get("state") == "ok" and not set(codes()) &
          {"CACHE_DEVICE_LOST", "DISK_FAILED", "DATA_DEGRADED"}, 5)
for n in (1, 2, 3):
    verify(n)

step("all of it survives a restart of each node")
for n in (1, 2, 3):
    lab.do("kill", n)
    lab.do("start", n)
    lab.in_sync(60)
history.finish()
verify(1)

step("a device that works is replaced, slowly: until all of it is fetched again no other node may go")
owner = {g["group"]: int(g["node"][4:]) for g in lab.json("diskgroup", "list")["diskgroups"]}
here, other = (owner[g] for g in groups_of(lab.json("volume", "show", "bulk"), 0))
third = 6 - here - other


def lacks():
    stats = group(here, third)["stats"]
    return stats["damaged_bytes"] + stats["lost_live_bytes"]


def asked(*words):
    return lab.ashlar(*words, node=third, rc=None)[0]


lab.ashlar("diskgroup", "flush", group(here)["group"], node=third)
watch_for("nothing to be damaged", lambda: not lacks() and asked("can-stop", f"node{other}") == 0, 90)
lab.ashlar("cluster", "set", "rebuild_limit_mib_s", "2")
used = max((d for d in group(here)["devices"] if d["role"] == "capacity" and d["state"] == "ok"),
           key=lambda d: d.get("path", "").endswith("/capacity"))
replace(here, used["path"], fresh(here, "last", 256 * MIB))
refusals = {"can-stop": ("can-stop", f"node{other}"), "can-lose": ("can-lose", f"node{other}"),
            "node remove": ("node", "remove", f"node{other}", "--dry-run"),
            "node evacuate": ("node", "evacuate", f"node{other}")}
for what, words in refusals.items():
    if asked(*words) != 5 or not lacks():
        fail(f"{what} of node {other}, with {lacks()} bytes damaged in the group of node {here}")
watch_for("DATA_REPAIRING", lambda: "DATA_REPAIRING" in codes(third), 5)
for what, counts in (("status", lab.json("status", node=third)["objects"]),
                     ("volume show", lab.json("volume", "show", "bulk", node=third)["object_counts"])):
    if counts["in_sync"] == counts["total"] and not counts["unrepaired"] and lacks():
        fail(f"{what} says that all is well: {counts}")
item = codes(third)["DATA_REPAIRING"]
if item["severity"] != "warning" or f"node{here}" not in item["affected"][0]:
    fail(f"{item}")
lab.do("kill", other)
dead = ("node", "remove", f"node{other}", "--dead", "--dry-run")
watch_for("it to be missed", lambda: asked(*dead) != 1, 30)
if asked(*dead) != 5 or not lacks():
    fail(f"node {other} could be removed, with {lacks()} bytes damaged in the group of node {here}")
lab.do("start", other)
while lacks():
    answer = asked("can-stop", f"node{other}")
    if answer != 5 and lacks():
        fail(f"can-stop answers {answer} with {lacks()} bytes damaged")
lab.in_sync(60)
watch_for("can-stop to say yes", lambda: asked("can-stop", f"node{other}") == 0, 30)
watch_for("DATA_REPAIRING to go", lambda: "DATA_REPAIRING" not in codes(third), 5)
if lab.json("status", node=third)["objects"]["unrepaired"]:
    fail("objects are still said to lack something")
lab.do("kill", other)
watch_for("a removal to be fine", lambda: asked(*dead) == 0, 30)
lab.do("start", other)
lab.in_sync(60)

step("damage that is met while a node is emptied is said to be dangerous, until that is paused")
lab.ashlar("cluster", "set", "rebuild_limit_mib_s", "1")
lab.ashlar("node", "evacuate", f"node{other}", node=third)
job = next(j["id"] for j in lab.json("job", "list", node=third)["jobs"] if j["kind"] == "evacuate" and j["state"] == "running")
used = max((d for d in group(here)["devices"] if d["role"] == "capacity" and d["state"] == "ok"), key=lambda d: d["size_bytes"])
replace(here, used["path"], fresh(here, "again", 256 * MIB))
watch_for("it to be an error", lambda: codes(third).get("DATA_REPAIRING", {}).get("severity") == "error", 10)
if f"job pause {job}" not in codes(third)["DATA_REPAIRING"]["command"] or \
        f"disk group {group(here)['group']} has damage" not in (lab.json("job", "show", job, node=third)["danger"] or ""):
    fail(f"{codes(third)} {lab.json('job', 'show', job, node=third)}")
lab.ashlar("job", "pause", job, node=third)
watch_for("it to be a warning", lambda: codes(third)["DATA_REPAIRING"]["severity"] == "warning", 10)
lab.ashlar("job", "cancel", job, node=third)
lab.ashlar("cluster", "set", "rebuild_limit_mib_s", "100")
watch_for("DATA_REPAIRING to go", lambda: "DATA_REPAIRING" not in codes(third), 90)
for n in (1, 2, 3):
    verify(n)
lab.done()
