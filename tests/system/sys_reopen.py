#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Disk groups that fail while they serve come back by themselves, under a history load, while their node goes on
and its other group does not notice: a write log whose device fails for a moment, a damaged table of the map that
a compaction meets, a device that is lost with a part of the log (a group without cache device). Nothing is started
again and nothing asked for. ASHLAR_TEST_LONG: one that fails again and again stays closed, and says so."""
import errno, os, random, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

MIB = 1 << 20
SIZE, VOLUMES = 64 * MIB, 6
FILL = 16 * MIB
faults = f"/tmp/ashlar-device-faults-{os.getpid()}"
os.mkdir(faults)
atexit.register(lambda: sh("rm", "-rf", faults))
os.environ["ASHLAR_TEST_DEVICE_FAULTS"] = faults
lab = Lab("reopen", "--nodes", "3", "--ram", "--size", "320M", "--cache", "64M")
rng = random.Random(int(os.environ.get("SEED", 11)))
TROUBLE = {"GROUP_REOPENING", "GROUP_STAYS_CLOSED", "CACHE_DEVICE_LOST", "DISK_FAILED", "DISK_MISSING", "DATA_DEGRADED",
           "DATA_SINGLE_COPY", "DATA_UNAVAILABLE"}
V = 2  # the node whose groups fail


def fault(path, what):
    with open(os.path.join(faults, path.replace("/", "%")), "w") as f:
        f.write(what)


def groups():
    return {g["group"]: g for g in lab.json("diskgroup", "list", node=1)["diskgroups"]}


def codes():
    return {i["code"]: i for i in lab.json("health", node=1).get("items", [])}


def events(code, since):
    return [e for e in lab.json("events", node=1)["events"] if e["code"] == code and e["index"] > since]


def newest_event():
    return max(e["index"] for e in lab.json("events", node=1)["events"])


def incarnation():
    return next(n for n in lab.json("node", "list", node=1)["nodes"] if n["name"] == f"node{V}")["incarnation"]


def log_from(at):
    with open(lab.path(V, "log"), errors="replace") as f:
        f.seek(at)
        return f.read()


def log_size():
    return os.path.getsize(lab.path(V, "log"))


# ---- the known content ----
known = {}


def scribble():
    """Scattered blocks of every replicated volume, through another node than the one that suffers."""
    for name in [x for x in known if x.startswith("v")]:
        with Nbd(lab.socket(1), name) as d:
            for _ in range(40):
                off = rng.randrange(FILL // 4096) * 4096
                data = rng.randbytes(4096)
                d.write(off, data)
                known[name][off:off + 4096] = data


def verify():
    for node in (1, 2, 3):
        for name in known:
            with Nbd(lab.socket(node), name) as d:
                for off in range(0, FILL, MIB):
                    if d.read(off, MIB) != known[name][off:off + MIB]:
                        fail(f"WRONG DATA in {name} at {off} through node {node}")


def came_back(group, other, at, process, since, anew, left=()):
    """The group is open and in sync, by itself, in the same process; its neighbour was left alone."""
    watch_for(f"group {group} to be opened again", lambda: events("GROUP_REOPENED", since), 40)
    lab.in_sync(60)
    watch_for(f"health to have nothing to say, but for {left}", lambda: not set(codes()) & TROUBLE - set(left), 20)
    if incarnation() != process:
        fail("the process was started again")
    if bool(events("GROUP_BEGINS_ANEW", since)) != anew:
        fail(f"begins anew: expected {anew}\n" + lab.ashlar("events"))
    text = log_from(at)
    text = text[text.index("failed while serving"):]
    if any(f"group={other} " in x + " " for x in text.splitlines() if "mod=group" in x or "level=error" in x):
        fail(f"group {other} was not left alone\n" + text[-3000:])
    verify()


step("a second group on node 2, without a cache device; volumes on both")
first = next(g for g in groups().values() if g["node"] == f"node{V}")["group"]
singles = [lab.path(V, "single1"), lab.path(V, "single2")]
os.mkdir(lab.path(V, "meta", "group1"))
for path in singles:
    with open(path, "wb") as f:
        f.truncate(288 * MIB)
lab.ashlar("diskgroup", "add", "--capacity", ",".join(singles), "--metadata-dir", lab.path(V, "meta", "group1"), node=V)
second = next(g for g in groups().values() if g["node"] == f"node{V}" and g["group"] != first)["group"]
for i in range(VOLUMES):
    known[f"v{i}"] = bytearray(rng.randbytes(FILL))
    lab.volume(f"v{i}", f"{SIZE // MIB}M")
    with Nbd(lab.socket(1), f"v{i}") as d:
        for off in range(0, FILL, MIB):
            d.write(off, known[f"v{i}"][off:off + MIB])
lab.ashlar("diskgroup", "flush", "--all")
for g in (first, second):
    if groups()[g]["stats"]["objects"] < 1:
        fail(f"nothing was placed on group {g}")
lab.volume("h", "16M")
history = History(lab, "h:shared", [1, 3])
process = incarnation()

step("a write of the cache device fails")
since, at = newest_event(), log_size()
fault(lab.path(V, "cache"), "once write flush")
scribble()
watch_for("the failure to be told", lambda: events("GROUP_FAILED", since), 20)
scribble()
came_back(first, second, at, process, since, anew=False)


# ---- a damaged map ----
def tables_of(group, family):
    """The tables of a column family, which say so among their properties."""
    found = glob.glob(lab.path(V, "meta", group, "**", "*.sst"), recursive=True)
    return [p for p in found if bytes([len(family)]) + b"name" + family in open(p, "rb").read()[-4096:]]


def spoil(path):
    with open(path, "r+b") as f:
        for at in range(1024, os.path.getsize(path) * 9 // 10, 2048):  # behind it are index and filter
            f.seek(at)
            c = f.read(1)
            f.seek(at)
            f.write(bytes([c[0] ^ 1 << rng.randrange(8)]))


def only_copy():
    """Volumes of one copy until one lies on the first group, which it fills with its content."""
    for i in range(20):
        lab.volume(f"one{i}", f"{SIZE // MIB}M", copies=1)
        objects = lab.json("volume", "show", f"one{i}", node=1)["objects"]
        if any(r["group"] == first for o in objects for r in o["replicas"]):
            known[f"one{i}"] = bytearray(rng.randbytes(FILL))
            with Nbd(lab.socket(1), f"one{i}") as d:
                for off in range(0, FILL, MIB):
                    d.write(off, known[f"one{i}"][off:off + MIB])
            return f"one{i}"
        lab.ashlar("volume", "delete", f"one{i}", "--yes", node=1)
    fail("no volume of one copy was placed on the first group")


def verify_only(name):
    """Where the map cannot be read any more the answer is EIO; nothing else is wrong."""
    bad = 0
    with Nbd(lab.socket(1), name) as d:
        for off in range(0, FILL, 65536):
            try:
                if d.read(off, 65536) != known[name][off:off + 65536]:
                    fail(f"WRONG DATA in {name} at {off}")
            except NbdError as e:
                if e.errno != errno.EIO:
                    fail(f"{name} at {off}: {e}")
                bad += 1
    print(f"      {bad} of {FILL // 65536} reads of the only copy answered EIO", flush=True)
    return bad


def damaged_map(single):
    """Tables of the map are damaged while it is in use; each flush makes another table, a few make a compaction, and
    that meets the damage."""
    def table():
        lab.ashlar("diskgroup", "flush", first, "--reduce", node=V, rc=None)

    table()
    tables = [p for p in tables_of("group0", b"map") if os.path.getsize(p) > 8192]
    if not tables:
        fail("the map has no table of some size")
    for path in tables:
        spoil(path)
    since, at = newest_event(), log_size()
    for _ in range(16):
        scribble()
        table()
        if events("GROUP_FAILED", since):
            break
    else:
        fail("no compaction met the damage\n" + log_from(at)[-3000:])
    if single:
        watch_for("MAP_DAMAGED", lambda: "MAP_DAMAGED" in codes(), 40)
        if not verify_only(single):
            step("the damaged tables had nothing of the only copy this time")
        del known[single]
        lab.ashlar("volume", "delete", single, "--yes", node=1)
        watch_for("it to begin anew", lambda: events("GROUP_BEGINS_ANEW", since), 60)
    came_back(first, second, at, process, since, anew=True)


step("a compaction meets a damaged table of the map, which has the only copy of a volume")
damaged_map(only_copy())
if LONG:
    step("a compaction meets a damaged table of the map")
    lab.do("kill", V)  # or it would be too much for an hour
    lab.do("start", V)
    lab.in_sync(60)
    process = incarnation()
    damaged_map(None)

step("a device of the group without cache device is lost at work, with its part of the log")
since, at = newest_event(), log_size()
fault(singles[0], "read write flush")
os.truncate(singles[0], 0)
scribble()
watch_for("the failure to be told", lambda: events("GROUP_FAILED", since), 20)
came_back(second, first, at, process, since, anew=True, left=["DISK_FAILED"])
if groups()[second]["stats"]["data_used_bytes"] == 0:
    fail("the group kept nothing")
new = lab.path(V, "single3")
with open(new, "wb") as f:
    f.truncate(288 * MIB)
lab.ashlar("diskgroup", "replace", second, "--old", singles[0], "--new", new, node=V)
watch_for("DISK_FAILED to go", lambda: "DISK_FAILED" not in codes(), 10)
lab.in_sync(60)

if LONG:
    step("a cache device that fails for good: three tries, then the group stays closed")
    since = newest_event()
    fault(lab.path(V, "cache"), "write flush")
    scribble()
    watch_for("GROUP_REOPENING or CACHE_DEVICE_LOST", lambda: set(codes()) & {"GROUP_REOPENING", "CACHE_DEVICE_LOST"}, 20)
    watch_for("CACHE_DEVICE_LOST", lambda: "CACHE_DEVICE_LOST" in codes(), 40)
    watch_for("it to be given up", lambda: events("GROUP_STAYS_CLOSED", since), 120)
    tries = sum("opening a group that failed" in x for x in log_from(at).splitlines())
    if "stays closed" not in lab.ashlar("diskgroup", "show", first, node=1):
        fail("diskgroup show does not say that it stays closed")
    time.sleep(60)  # longer than between any two of its tries: that it is not tried again shows in nothing else
    if sum("opening a group that failed" in x for x in log_from(at).splitlines()) != tries:
        fail("it was tried again")
    fault(lab.path(V, "cache"), "")
    lab.ashlar("diskgroup", "add", "--capacity", lab.path(V, "capacity"), "--cache", lab.path(V, "cache"),
               "--metadata-dir", lab.path(V, "meta", "group0"), node=V)
    lab.in_sync(90)
    verify()

history.finish()
verify()
lab.done()
