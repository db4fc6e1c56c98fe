#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Full never traps: written until ENOSPC, deletes and trims work, their space comes back, writes go on, nothing
is restarted, and health says what to do. A replica that comes back to a full group gets in. Long: larger, again."""
import random
from kit import *

MIB = 1 << 20
SIZE = 1024 if LONG else 192  # MiB of each node's capacity file
rnd = random.Random(3)
lab = Lab("full", "--nodes", "3", "--ram", "--size", f"{SIZE}M", "--cache", "64M")
written = {}  # (volume, MiB) → seed of what was acknowledged; None: of what got an error, which may be there


def data(seed):
    return random.Random(seed).randbytes(MIB)


def fill(nbd, name, places):
    """Writes until there is no space. Returns how many MiB were acknowledged."""
    n = 0
    for at in places:
        seed = rnd.random()
        try:
            nbd.write(at * MIB, data(seed))
        except NbdError as e:
            if e.errno != 28:
                fail(f"errno {e.errno}, not ENOSPC")
            written[(name, at)] = None
            return n
        written[(name, at)] = seed
        n += 1
    fail("it never got full")


def check(node, name):
    with Nbd(lab.socket(node), name) as nbd:
        for (v, at), seed in written.items():
            if v == name and seed is not None and nbd.read(at * MIB, MIB) != data(seed):
                fail(f"{name}, MiB {at} is not what was acknowledged")


def incarnations():
    return {n["name"]: n["incarnation"] for n in lab.json("node", "list")["nodes"]}


lives = incarnations()
for turn in range(3 if LONG else 1):
    for name in ("a", "b"):
        lab.volume(name, f"{SIZE * 2}M", copies=3)
    step("half is filled with b, then a until ENOSPC")
    half = SIZE * 2 // 5
    with Nbd(lab.socket(2), "b") as nbd:
        for at in range(half):
            written[("b", at)] = rnd.random()
            nbd.write(at * MIB, data(written[("b", at)]))
    with Nbd(lab.socket(1), "a") as a:
        got = fill(a, "a", range(SIZE * 2))
        print(f"{half} + {got} MiB of three copies on 3 × {SIZE} MiB", flush=True)
        if half + got < 0.7 * SIZE:
            fail("full too early")
        watch_for("health to say so", lambda: "SPACE_FULL_HOLD" in [i["code"] for i in lab.json("health")["items"]], 20)
        item = [i for i in lab.json("health")["items"] if i["code"] == "SPACE_FULL_HOLD"][0]
        if "frees" not in item["command"]:
            fail(f"what to delete is not named: {item['command']}")
        step("b is deleted; writes wait for its space and go on at once")
        lab.ashlar("volume", "delete", "b", "--yes")
        for key in [k for k in written if k[0] == "b"]:
            del written[key]
        more = fill(a, "a", range(got, SIZE * 2))
        print(f"{more} MiB more after {half} MiB were deleted", flush=True)
        if more < 0.7 * half:
            fail("the space did not come back to the writer")
        step("a quarter of a is trimmed at full; writes go on at once")
        trimmed = list(range(0, (got + more) // 4))
        for at in trimmed:
            a.trim(at * MIB, MIB)
            del written[("a", at)]
        again = fill(a, "a", range(got + more + 1, SIZE * 2))
        print(f"{again} MiB more after {len(trimmed)} MiB were trimmed", flush=True)
        if again < 0.7 * len(trimmed):
            fail("trimmed space did not come back to the writer")
    if incarnations() != lives:
        fail("a node was restarted")
    for node in (1, 3):
        check(node, "a")

    step("a node is killed at full, what is left goes on, and its replicas come back in")
    with Nbd(lab.socket(1), "a") as a:
        lab.do("kill", 3)
        lives.clear()
        for at in range(got, got + 6):
            a.trim(at * MIB, MIB)
            written.pop(("a", at), None)
        for at in range(0, 3):
            seed = rnd.random()
            a.write(at * MIB, data(seed))
            written[("a", at)] = seed
    lab.do("start", 3)
    lab.in_sync()
    lives = incarnations()
    check(3, "a")
    lab.ashlar("volume", "delete", "a", "--yes")
    written.clear()
    watch_for("all space to come back", lambda: lab.json("status")["capacity"]["data_used_bytes"] == 0, 60)
    lab.ashlar("diskgroup", "verify", "--all")
lab.done()
