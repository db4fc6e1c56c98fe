#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One bit of one file of a stopped node is flipped, the node is started again, and everything is scrubbed:
no wrong byte is ever read; what was damaged is reported and repaired from another replica; all copies are
equal and sound at the end. In its other files (configuration, identity, keys, Raft's log) the node refuses
to start with a message that names the file, or does not care, and the cluster goes on.
  SEED=N or --seed N repeats a run; ROUNDS=n; KINDS=a,b only these kinds of files."""
import glob, mmap, os, random, shutil, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

MIB = 1 << 20
SIZE = 16 * MIB
if "--seed" in sys.argv:
    os.environ["SEED"] = sys.argv[sys.argv.index("--seed") + 1]
seed = int(os.environ.get("SEED", time.time_ns() % 1000000 if LONG else 1))
rng = random.Random(seed)
step(f"SEED={seed}")
lab = Lab("flip", "--nodes", "3", "--ram", "--size", "256M", "--cache", "64M")
lab.ashlar("cluster", "set", "rebuild_floor_mib_s", 200)  # else what is lost comes back at a crawl first
lab.volume("v", f"{SIZE // MIB}M")
known = Known(lab, "v", SIZE, rng)


# ---- places to flip ----
def used(path, lo=0, hi=None):
    """A random byte of a random 4 KiB block that holds something."""
    hi = hi or os.path.getsize(path)
    zero = bytes(4096)
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        blocks = [at for at in range(lo, hi, 4096) if m[at:min(at + 4096, hi)] != zero[:min(4096, hi - at)]]
    if not blocks:
        return None
    at = rng.choice(blocks)
    return at + rng.randrange(min(4096, hi - at))


def live(path):
    """A byte of a block that holds current data of the volume, and only once. What a replica that was here before
    has left is no such block."""
    volume = lab.json("volume", "show", "v", node=alive_node())
    group = {g["node"]: g["group"] for g in lab.json("diskgroup", "list", node=alive_node())["diskgroups"]}
    own = group[os.path.basename(os.path.dirname(path))]
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        for _ in range(600):
            b = rng.randrange(SIZE // 4096)
            if own not in groups_of(volume, b):
                continue
            at = m.find(known.content[b * 4096:b * 4096 + 64])
            if at >= 0 and at % 4096 == 0 and m.find(known.content[b * 4096:b * 4096 + 64], at + 1) < 0:
                return at + rng.randrange(4096)
    return None


def alive_node():
    return next(n for n in (1, 2, 3) if lab.alive(n))


def device(name, where):
    def pick(v):
        path = lab.path(v, name)
        at = where(path)
        return (path, at) if at is not None else None
    return pick


def superblock(path):
    return rng.choice([0, os.path.getsize(path) - 4096]) + rng.randrange(4096)


def files(*patterns):
    def pick(v):
        found = sorted(p for x in patterns for p in glob.glob(lab.path(v, x), recursive=True)
                       if os.path.isfile(p) and os.path.getsize(p))
        if not found:
            return None
        path = rng.choice(found)
        return path, rng.randrange(os.path.getsize(path))
    return pick


# name: (place, is it of the disk group?, must it be reported?)
KINDS = {
    "live data": (device("capacity", live), True, True),
    "capacity": (device("capacity", lambda p: used(p, 4096, os.path.getsize(p) - 4096)), True, False),
    "log": (device("cache", lambda p: used(p, 4096, os.path.getsize(p) - 4096)), True, False),
    "superblock": (lambda v: device(rng.choice(["capacity", "cache"]), superblock)(v), True, False),
    "sst": (files("meta/**/*.sst"), True, False),
    "MANIFEST": (files("meta/**/MANIFEST-*"), True, False),
    "WAL": (files("meta/**/*.log"), True, False),
    "CURRENT": (files("meta/**/CURRENT"), True, False),
    "OPTIONS": (files("meta/**/OPTIONS-*"), True, False),
    "configuration": (files("*.yaml", "state/*.yaml", "state/devices.json"), False, False),
    "identity": (files("state/identity.json"), False, False),
    "keys": (files("state/*.key", "state/*.crt", "state/*.pem"), False, False),
    "Raft": (files("state/raft/**/*.log", "state/raft/**/*.sst", "state/raft/**/MANIFEST-*",
                   "state/raft/**/CURRENT", "state/raft/*mark*"), False, False),
}


# ---- what is known of the cluster ----
def facts():
    return json.loads(lab.get("diskgroups"))["diskgroups"]


def scrubbed():
    """A pass over every group, begun now; and every page compared with its other copies."""
    before = {g["group"]: g["scrub"]["passes"] for g in lab.json("scrub", "status") if g.get("scrub")}
    audits = {n: audit(n) for n in (1, 2, 3)}
    # A group that lost its map begins anew first; until the others notice, it still counts as in sync.
    watch_for(f"{known.case}: all groups to take a scrub",
              lambda: lab.ashlar("scrub", "start", "--all", rc=None)[0] == 0, 60)
    watch_for(f"{known.case}: the passes to end", lambda: all(
        g.get("scrub") and g["scrub"]["passes"] != before.get(g["group"], 0) for g in facts()), 60)
    watch_for(f"{known.case}: nothing to be damaged any more", lambda: not any(damaged(n) for n in (1, 2, 3)), 60)
    watch_for(f"{known.case}: the copies to be compared", lambda: all(audit(n) > audits[n] for n in (1, 2, 3)), 60)
    for n in (1, 2, 3):
        if number(n, "diverged_pages"):
            fail(f"{known.case}: copies differ, says node {n}")


def number(node, name):
    """A counter of the node's replication, from itself."""
    return json.loads(lab.get("local", node))["replication"][name]


def damaged(node):
    return number(node, "damaged_blocks")


def audit(node):
    return number(node, "audits")


def alone(v):
    """Reads through v with each of the others away in turn: then its own copies have to be good."""
    for o in [n for n in (1, 2, 3) if n != v]:
        lab.do("kill", o)
        known.verify([v])
        lab.do("start", o)
        lab.in_sync(60)


def is_up(v):
    return any(n["name"] == f"node{v}" and n["up"] for n in lab.json("node", "list", node=v % 3 + 1)["nodes"])


def restart(v):
    rc, _, err = lab.do("start", v, rc=None, timeout=25)
    if rc == 0:
        return True, err
    return False, err


def one(r, name):
    place, of_group, must_report = KINDS[name]
    v = rng.randrange(1, 4)
    known.case = f"round {r + 1}, {name} of node {v}"
    if of_group and name != "log":
        lab.ashlar("diskgroup", "flush", "--all")
    lab.do("kill", v)
    where = place(v)
    if not where:
        print(f"  {known.case}: nothing to flip", flush=True)
        lab.do("start", v)
        lab.in_sync(60)
        return
    path, byte = where
    kept = path + ".kept"
    shutil.copy2(path, kept) if not of_group else None
    flip_bit(path, byte, rng)
    if rng.random() < 0.5:  # it missed something, or it is still a member when it returns
        known.write(v % 3 + 1, rng.randrange(SIZE // 4096 - 64) * 4096, 64 * 4096)
    at = os.path.getsize(lab.path(v, "log"))
    ok, err = restart(v)
    said = lab.log_since(v, at)
    verdict = "starts" if ok else "refuses"
    if not ok:
        if of_group:
            fail(f"{known.case}: {path} byte {byte}: the node does not start: {err}\n" + "\n".join(said[-8:]))
        names = [path, os.path.dirname(path), lab.path(v, "state", "raft")]
        text = "\n".join(said) + err
        # Another value in the configuration is named by what it does: a path, an address, a number. Or it is as
        # good: an admin socket where the lab does not look for it.
        if not any(n in text for n in names) and not (
                name == "configuration" and ("level=error" in text or is_up(v))):
            fail(f"{known.case}: no message names {path}\n{text}")
        known.verify([n for n in (1, 2, 3) if n != v])
        lab.do("kill", v, rc=None)
        shutil.copy2(kept, path)
        lab.do("start", v)
    elif name == "configuration":  # it may listen elsewhere now
        lab.do("kill", v)
        shutil.copy2(kept, path)
        lab.do("start", v)
    if os.path.exists(kept):
        os.unlink(kept)
    lab.in_sync(60)
    known.verify((1, 2, 3))
    scrubbed()
    said = lab.log_since(v, at)
    if must_report and not said:
        fail(f"{known.case}: {path} byte {byte}: live data was hit and nobody says so")
    lab.in_sync(60)
    known.verify((1, 2, 3))
    if r % 6 == 5:
        alone(v)
    first = next((m for m in said if "level=error" in m), said[0] if said else "")
    print(f"  {known.case}: {os.path.relpath(path, lab.path(v))} at {byte}: {verdict}; "
          f"{first.split(' ', 2)[-1][:150] if first else 'nothing to say'}", flush=True)


known.write(1, 0, SIZE)
known.verify((1, 2, 3))
names = os.environ["KINDS"].split(",") if "KINDS" in os.environ else list(KINDS)
order = []
rounds = int(os.environ.get("ROUNDS", 200 if LONG else len(names)))
for r in range(rounds):
    if not order:
        order = names[:]
        rng.shuffle(order)
    t = time.monotonic()
    one(r, order.pop())
    if os.environ.get("TIMES"):
        print(f"      {time.monotonic() - t:.1f} s", flush=True)
lab.done()
