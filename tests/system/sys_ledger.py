#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The capacity ledger adds up, exactly: every number that status, diskgroup show, volume show and the metrics
print, at a quiet point, after each of several loads; and is what was written. Long: more of them."""
import random, re
from kit import *

MIB = 1 << 20
LOGICAL = ["zero_bytes", "dedup_saved_bytes", "compression_saved_bytes", "damaged_bytes"]
RAW = ["data_used_bytes", "padding_bytes", "summary_bytes", "dead_bytes", "free_bytes", "reserve_bytes", "log_bytes", "layout_bytes"]
ROW = ["logical_bytes", "stored_bytes"] + LOGICAL


def same(what, a, b):
    if a != b:
        fail(f"{what}: {a} is not {b}")


def adds_up(what, row, stored):
    same(what + ": logical", row["logical_bytes"], sum(row[k] for k in LOGICAL) + row[stored])


def look(lab, names):
    """Everything twice: what moved in between was not a quiet point."""
    def once():
        groups = [lab.json("diskgroup", "show", g["group"]) for g in lab.json("diskgroup", "list")["diskgroups"]]
        volumes = [lab.json("volume", "show", n, node=i % 3 + 1) for i, n in enumerate(names)]
        return lab.json("status")["capacity"], groups, volumes

    def key(x):
        return x[0], [(g["stats"], g["volumes"]) for g in x[1]], [v["space"] for v in x[2]]

    def strip(x):  # counters of look-ups and traffic may move; space may not
        return json.loads(json.dumps(key(x), sort_keys=True), object_hook=lambda o: {
            k: v for k, v in o.items() if k.endswith("_bytes") and k not in ("device_read_bytes", "granted_bytes", "data_free_bytes",
                                                                             "device_written_bytes") or isinstance(v, (dict, list))})
    end = time.monotonic() + 30
    a = once()
    while True:
        b = once()
        if strip(a) == strip(b):
            return b
        if time.monotonic() > end:
            fail("no quiet point within 30 s")
        a = b


def check(lab, names):
    lab.ashlar("diskgroup", "flush", "--all")
    status, groups, volumes = look(lab, names)
    for g in groups:
        what, s = f"group {g['group']}", g["stats"]
        adds_up(what, s, "data_used_bytes")
        same(what + ": raw", s["raw_bytes"], sum(s[k] for k in RAW))
        same(what + ": raw, in front", g["raw_bytes"], s["raw_bytes"])
        same(what + ": in the log", s["log_unreduced_bytes"], 0)
        for k in ROW:
            same(f"{what}: {k} of its volumes", sum(v[k] for v in g["volumes"]),
                 s["data_used_bytes" if k == "stored_bytes" else k])
        for v in g["volumes"]:
            adds_up(f"{what}, volume {v.get('name')}", v, "stored_bytes")
    for k in RAW + LOGICAL + ["raw_bytes", "logical_bytes", "data_bytes", "metadata_used_bytes"]:
        same(f"status: {k}", status[k], sum(g["stats"][k] for g in groups))
    adds_up("status", status, "data_used_bytes")
    for v in volumes:
        what = f"volume {v['name']}"
        adds_up(what, v["space"], "stored_bytes")
        for k in ROW + ["frees_if_deleted_bytes"]:
            same(f"{what}: {k}", v["space"][k], sum(r[k] for r in v["space"]["by_group"]))
            same(f"{what}: {k} as its groups say", v["space"][k],
                 sum(r[k] for g in groups for r in g["volumes"] if r.get("name") == v["name"]))
    metrics = {}
    for node in (1, 2, 3):
        for line in lab.metrics(node).splitlines():
            m = re.match(r'ashlar_(group|volume)_(\w+_bytes)\{([^}]*)\} (-?\d+)$', line)
            if m:
                metrics[(m[1], m[2], m[3])] = int(m[4])
    for g in groups:
        label = f'node="{g["node"]}",group="{g["group"]}"'
        for k in RAW + LOGICAL + ["logical_bytes", "raw_bytes"]:
            same(f"metrics: {k} of group {g['group']}", metrics[("group", k, label)], g["stats"][k])
        for r in g["volumes"]:
            if r.get("name"):
                same(f"metrics: stored of {r['name']}", metrics[("volume", "stored_bytes", f'{label},volume="{r["name"]}"')], r["stored_bytes"])
    lab.ashlar("diskgroup", "verify", "--all")
    return groups, {v["name"]: v["space"] for v in volumes}


lab = Lab("ledger", "--nodes", "3", "--ram", "--size", "1G", "--cache", "256M")
rnd = random.Random(11)
block = [rnd.randbytes(2048) + bytes(2048) for _ in range(200)]
lab.volume("a", "256M")
lab.ashlar("volume", "set", "a", "--compression", "lz4", "--dedup", "on")
lab.volume("b", "256M")
lab.ashlar("volume", "set", "b", "--dedup", "on")
lab.volume("c", "64M", copies=3)
names = ["a", "b", "c"]
step("an empty cluster")
check(lab, names)
same("frees of an empty volume", check(lab, names)[1]["a"]["frees_if_deleted_bytes"], 0)

step("half compressible data, zeroes, duplicates within and across volumes")
with Nbd(lab.socket(1), "a") as n:
    for i in range(8):
        n.write(i * MIB, b"".join(rnd.choice(block) for _ in range(256)))
    n.write(8 * MIB, bytes(2 * MIB))
    n.write(10 * MIB, rnd.randbytes(2 * MIB))
    n.flush()
with Nbd(lab.socket(2), "b") as n:
    for i in range(4):
        n.write(i * MIB, b"".join(rnd.choice(block) for _ in range(256)))
    n.flush()
with Nbd(lab.socket(3), "c") as n:
    n.write(0, rnd.randbytes(4 * MIB))
    n.flush()
groups, space = check(lab, names)
same("logical of a, two copies", space["a"]["logical_bytes"], 2 * 12 * MIB)
same("zeroes of a", space["a"]["zero_bytes"], 2 * 2 * MIB)
same("logical of c, three copies", space["c"]["logical_bytes"], 3 * 4 * MIB)
same("stored of c", space["c"]["stored_bytes"], 3 * 4 * MIB)
same("frees of c", (space["c"]["frees_if_deleted_bytes"], space["c"]["frees_exact"]), (3 * 4 * MIB, True))

step("overwrites, trims, and a volume that owns what others share is deleted")
with Nbd(lab.socket(2), "a") as n:
    n.trim(2 * MIB, 3 * MIB)
    n.write(4096 * 7, rnd.randbytes(64 * 4096))
    n.flush()
_, before = check(lab, names)
used = lab.json("status")["capacity"]["data_used_bytes"]
frees = before["a"]["frees_if_deleted_bytes"]
lab.ashlar("volume", "delete", "a", "--yes")
names.remove("a")
watch_for("the space of a to come back", lambda: lab.json("status")["capacity"]["data_used_bytes"] <= used - frees, 30)
watch_for("all rows of a to go", lambda: not any(r.get("volume") and not r.get("name") for g in lab.json("diskgroup", "list")["diskgroups"]
          for r in lab.json("diskgroup", "show", g["group"])["volumes"]), 30)
groups, space = check(lab, names)
same("logical of b", space["b"]["logical_bytes"], 2 * 4 * MIB)
unowned = [r for g in groups for r in g["volumes"] if not r.get("volume")]
print(f"a was to free {frees} bytes at least and freed {used - lab.json('status')['capacity']['data_used_bytes']}; "
      f"{sum(r['stored_bytes'] for r in unowned)} bytes are shared and of no volume now")

for turn in range(6 if LONG else 1):
    step("a node is killed and comes back under load; the numbers add up again")
    load = History(lab, "b", [1], blocks=2048)
    lab.do("kill", "3")
    step("its group, offline: every block is read")
    offline = [os.path.join(BIN, "ashlard"), "inspect", "--verify", "--data", "--config"]
    out = sh(*offline, lab.path(3, "ashlard.yaml"))
    if "differences=0" not in out or " blocks=0 " in out:
        fail(out)
    if sh(*offline, lab.path(1, "ashlard.yaml"), rc=None)[0] != 3:
        fail("a group in use was verified offline")
    lab.do("start", "3")
    lab.in_sync()
    load.finish()
    check(lab, names)
lab.done()
