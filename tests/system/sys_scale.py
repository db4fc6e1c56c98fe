#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cluster of many objects: every question is answered in full and soon, no node looks silent, a killed node's
objects are served again, and what is to be moved moves. Volumes are thin: objects without data cost what objects
cost. Long: as many as there may be. Prints what it took. SIZE_T: TiB of each volume, which has a good 256 objects for each."""
import re
from kit import *

SOON = 10  # s: of a question; an answer that grows with objects and is not bounded takes longer, or fails
VOLUMES = 3 if LONG else 1  # three copies
SIZE_T = int(os.environ.get("SIZE_T", 64 if LONG else 32))
SMALL = 32  # volumes of 33 objects each, two copies

lab = Lab("scale", "--nodes", "3", "--copies", "2", "--ram", "--shards", "1", "--size", "2G", "--cache", "512M")


def timed(what, *args, node=1, limit=SOON):
    begun = time.monotonic()
    answer = lab.json(*args, node=node)
    took = time.monotonic() - begun
    print(f"    {what:<28} {took * 1000:8.0f} ms")
    if took > limit:
        fail(f"{what} took {took:.1f} s")
    return answer


def all_served(names):
    """In volume show all replicas; who serves is counted by the nodes. A few at a time may be on their way home."""
    shown = [o for n in names for o in lab.json("volume", "show", n)["objects"]]
    return all(r["state"] == "in-sync" and r["reachable"] for o in shown for r in o["replicas"]) and \
        all(o["primary"] and not o["state"].startswith(("unknown", "starting")) for o in shown) and \
        sum(serving(n) for n in (1, 2, 3)) >= len(shown) - 64


def until(what, fn, limit):
    begun = time.monotonic()
    watch_for(what, fn, limit)
    print(f"    {what:<28} {time.monotonic() - begun:8.1f} s")


def serving(node):
    return int(re.search(r"ashlar_replication_serving\{.*\} (\d+)", lab.metrics(node)).group(1))


def idle(seconds=10):
    """CPU of all nodes together, in percent of one core."""
    pids = [int(p) for p in re.findall(r"NODE\d_PID=(\d+)", lab.do("env"))]
    ticks = lambda: sum(sum(int(x) for x in open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[11:13]) for p in pids)
    before = ticks()
    time.sleep(seconds)  # what is measured is a time
    print(f"    idle: {100 * (ticks() - before) / os.sysconf('SC_CLK_TCK') / seconds:.1f} % of a core, {len(pids)} nodes together")


def memory():
    nodes = lab.json("node", "list")["nodes"]
    print("    resident: " + ", ".join(f"{n['name']} {n.get('resident_bytes', 0) >> 20} MiB" for n in nodes))


def all_up():
    return all(n["up"] and n["facts"] == "live" for n in lab.json("node", "list")["nodes"])


def questions(names, total):
    status = timed("status", "status")
    if status["nodes"]["up"] != 3 or status["objects"]["total"] != total:
        fail(f"status: {status['nodes']} {status['objects']}")
    health = timed("health", "health")
    if [i["code"] for i in health["items"] if i["code"] in ("NODE_DOWN", "NET_PARTIAL_PARTITION", "DATA_UNAVAILABLE")]:
        fail(f"health: {health['items']}")
    if len(timed("volume list", "volume", "list")["volumes"]) != len(names):
        fail("volume list: not all")
    whole = timed("volume show", "volume", "show", names[0], limit=60)
    if [o["index"] for o in whole["objects"]] != list(range(whole["object_counts"]["total"])) or "objects_next" in whole:
        fail("volume show: not all objects, each once, in order")
    if timed("volume show --brief", "volume", "show", names[0], "--brief")["objects"]:
        fail("volume show --brief lists objects")
    if not timed("diskgroup show", "diskgroup", "show", "2")["stats"]["objects"]:
        fail("diskgroup show: no objects")
    timed("job list", "job", "list")
    begun = time.monotonic()
    lab.ashlar("can-stop", "node3")
    print(f"    {'can-stop':<28} {(time.monotonic() - begun) * 1000:8.0f} ms")
    timed("force, a report", "volume", "force", names[0], limit=60)
    timed("ops", "ops")
    until("all up, facts live", all_up, 10)


names = [f"large{i}" for i in range(VOLUMES)]
step(f"{VOLUMES} volumes of {SIZE_T} TiB, three copies")
memory()
for n in names:
    timed("volume create", "volume", "create", n, "--size", f"{SIZE_T}T", "--copies", "3", limit=60)
OBJECTS = lab.json("volume", "show", names[0], "--brief")["object_counts"]["total"]
total = OBJECTS * VOLUMES
if OBJECTS < 256 * SIZE_T:
    fail(f"a volume of {SIZE_T} TiB has {OBJECTS} objects")
until("all served, all in sync", lambda: all_served(names), 240)
memory()
questions(names, total)
until("scrub to be done", lambda: all(json.loads(lab.ashlar("diskgroup", "show", g, "-o", "json"))["scrub"]["finished_s"] for g in (1, 2, 3)), 120)
idle()

step("what is listed of a large volume is what something is wrong with")
text = lab.ashlar("volume", "show", names[0])
if f"{OBJECTS} of {OBJECTS} objects are served" not in text or len(text.splitlines()) > 60:
    fail("volume show lists objects that are well:\n" + text[:2000])

step("node 3 is killed: what it served is served by others")
lab.do("kill", "3")
until("all served by two", lambda: serving(1) + serving(2) == total, 120)
step("and comes back")
begun = time.monotonic()
lab.do("start", "3")
print(f"    {'start':<28} {time.monotonic() - begun:8.1f} s")
until("all served, all in sync", lambda: all_served(names), 240)
memory()

step("a clean stop, and a start")
begun = time.monotonic()
lab.do("stop", "2")
drained = re.findall(r"objects_left=(\d+) after_us=(\d+)", open(lab.path(2, "log"), errors="replace").read())[-1]
print(f"    {'clean stop':<28} {time.monotonic() - begun:8.1f} s, {drained[0]} objects left, drained in {int(drained[1]) / 1e6:.1f} s")
if drained[0] != "0" and not LONG:  # 49,158 primaries of one shard are more than 10 s of moves
    fail("not all went over: what was taken over there is not served before the node is gone")
lab.do("start", "2")
until("all served, all in sync", lambda: all_served(names), 240)
questions(names, total)

step("the volumes are deleted")
for n in names:
    lab.ashlar("volume", "delete", n, "--yes")
until("their replicas to go", lambda: all(lab.json("diskgroup", "show", g)["stats"]["objects"] == 0 for g in (1, 2, 3)), 240)

step(f"{SMALL} volumes of 33 small objects; node 3 is evacuated")
names = [f"small{i:02}" for i in range(SMALL)]
for n in names:
    lab.ashlar("volume", "create", n, "--size", "2G", "--copies", "2")
until("all served, all in sync", lambda: all_served(names), 120)
questions(names, 33 * SMALL)
there = lab.json("diskgroup", "show", "3")["stats"]["objects"]
begun = time.monotonic()
lab.ashlar("node", "evacuate", "node3", "--wait", timeout=600)
took = time.monotonic() - begun
print(f"    {there} empty replicas moved in {took:.1f} s, {there / took:.0f} a second")
if took > 240:
    fail("the evacuation takes too long")
lab.done()
