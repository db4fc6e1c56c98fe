#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may write: exclusive and shared attachments of several gateways, renewal, a dead gateway's volume is
free after its time to live, fencing, gateways that restart take their own again at once."""
import sys, os, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

TTL = 3000
lab = Lab("attach", "--nodes", "3", "--ram", "--mode", "two-layer", "--size", "2G", "--cache", "256M")
for v in ("v", "w", "x", "y", "s"):
    lab.volume(v, "128M")
data = b"\x5a" * 4096


def ttl(ms):
    lab.ashlar("cluster", "set", "attach_ttl_ms", ms)


def attached(volume):
    return lab.json("volume", "show", volume)["attachments"]


def refused(nbd, *words):
    try:
        nbd.write(0, data)
    except NbdError as e:
        for w in words:
            if w not in e.text:
                fail(f"the refusal does not say \"{w}\": {e}")
        return e
    fail(f"a write was not refused, expected one that says {words}")


def writes(nbd):
    try:
        nbd.write(0, data)
        return True
    except NbdError:
        return False


def codes():
    return [e["code"] for e in lab.json("events")["events"]]


def health(node=1):
    return {i["code"]: i for i in lab.json("health", node=node)["items"]}


ttl(TTL)
step("a second gateway is refused, by name, and as long as the first one lives")
a, b = Nbd(lab.socket(1), "v"), Nbd(lab.socket(2), "v")
a.write(0, data)
if b.read(0, 4096) != data:
    fail("the second gateway does not read what the first one wrote")
refused(b, "node1 (exclusive)", "free in", "ashlar volume detach v --fence")
first = attached("v")[0]
time.sleep(TTL / 1000 * 1.1)  # longer than the time to live: only renewal keeps it
refused(b, "node1")
now = attached("v")[0]
if now["id"] != first["id"] or now["expired"] or now["renewed_ms"] <= first["renewed_ms"]:
    fail(f"not renewed: {first} then {now}")
if "renewed" not in lab.ashlar("volume", "show", "v") or "node1, exclusive" not in lab.ashlar("volume", "list"):
    fail("show and list do not tell the holder")
if "LEASE_ORPHANED" in health():
    fail("a live gateway is called dead")

step("fence")
rc, _, err = lab.ashlar("volume", "detach", "v", rc=None)
if rc != 1 or "node1" not in err:
    fail(f"detach without --fence took a live one, or said nothing: {rc} {err}")
_, _, err = lab.ashlar("volume", "delete", "v", "--yes", rc=None)
if "attached by" not in err:
    fail(f"an attached volume was deleted: {err}")
j = lab.json("volume", "detach", "v", "--fence", node=3)
if j["detached"] != 1 or not j["complete"]:
    fail(f"fence: {j}")
e = refused(a)
if e.errno != 1:
    fail(f"a fenced write gets errno {e.errno}, not EPERM")
if a.read(0, 4096) != data:
    fail("a fenced gateway cannot read")
if "attachment was revoked" not in open(lab.path(1, "log"), errors="replace").read():
    fail("the fenced gateway's log does not say so")
watch_for("the second gateway to write", lambda: writes(b), 5)
if "ATTACH_FENCED" not in codes():
    fail(f"no event: {codes()}")
a.close()
with Nbd(lab.socket(1), "v") as again:
    refused(again, "node2 (exclusive)")
b.close()
watch_for("the last close to detach", lambda: not attached("v"), 5)

step("fencing waits for every primary, or says which one has not confirmed")
lab.volume("one", "192M", copies=1)
a = Nbd(lab.socket(1), "one")
for off in range(0, 192 << 20, 1 << 20):
    a.write(off, data)
if "node2" not in [o["primary"] for o in lab.json("volume", "show", "one")["objects"]]:
    fail("no object of the volume has its only copy on node 2")
lab.do("pause", "2")
rc, out, _ = lab.ashlar("volume", "detach", "one", "--fence", "-o", "json", rc=None)
j = json.loads(out)
if rc != 8 or j["complete"] or j["unconfirmed"] != ["node2"] or j["detached"] != 1 or "node2" not in j["note"]:
    fail(f"exit {rc}: {j}")
lab.do("resume", "2")
lab.in_sync()
refused(a)
a.close()

step("ashlar-client is killed for good: seen in health, and the volume is free")
c = Nbd(lab.socket("client"), "w")
c.write(0, data)
lab.do("kill", "client")
b = Nbd(lab.socket(2), "w")
refused(b, "client:lab")
watch_for("LEASE_ORPHANED", lambda: "LEASE_ORPHANED" in health(), TTL / 1000 + 5)
item = health()["LEASE_ORPHANED"]
if item["affected"] != ["w"] or "volume detach w" not in item["command"] or not item["root"]:
    fail(f"health: {item}")
lab.ashlar("volume", "detach", "w")
if attached("w") or "LEASE_ORPHANED" in health():
    fail("detach of a dead gateway's attachment")
watch_for("the second gateway to write", lambda: writes(b), 5)

step("a node is killed for good: whoever writes takes over after the time to live")
d = Nbd(lab.socket(3), "w")
refused(d, "node2")
killed = time.monotonic()
lab.do("kill", "2")
watch_for("the third gateway to write", lambda: writes(d), TTL / 1000 + 15)
took = time.monotonic() - killed
step(f"taken over {took:.1f} s after the kill")
if took < TTL / 1000 * 0.5:
    fail("taken over before its time")
if "ATTACH_EXPIRED" not in codes() or [x["holder"].split()[-1] for x in attached("w")] != ["node3"]:
    fail(f"{codes()} {attached('w')}")
lab.do("start", "2", "client")
with Nbd(lab.socket(2), "w") as again:
    refused(again, "node3 (exclusive)")
d.close()
lab.in_sync()

step("gateways that crash take their own again at once, under load")
ttl(600000)  # no time to live runs out in what follows
for gateway, volume in (("client", "x"), ("1", "y")):
    history = History(lab, volume, [gateway])
    for i in range(3 if LONG else 2):
        before = attached(volume)
        time.sleep(1)  # load between the crashes
        lab.do("kill", gateway)
        began = time.monotonic()
        lab.do("start", gateway)
        watch_for("a new attachment", lambda: [x["epoch"] for x in attached(volume)] > [x["epoch"] for x in before], 30)
        step(f"{gateway} holds {volume} again {time.monotonic() - began:.1f} s after its start began")
    if " 0 errors" not in history.finish():
        fail("a client saw an I/O error")
    lab.in_sync()

step("shared: several gateways write at once")
history = History(lab, "s:shared", ["1", "2", "client"], seconds=600, clients=6)
time.sleep(6 if LONG else 2)  # the length of the load: what matters is that it went on
if sorted(x["mode"] for x in attached("s")) != ["shared"] * 3:
    fail(f"expected three shared attachments: {attached('s')}")
with Nbd(lab.socket(3), "s") as other:
    refused(other, "(shared)")
with Nbd(lab.socket(1), "s") as other:  # both modes may be open, and read, on one gateway
    other.read(0, 4096)
    refused(other, "by this gateway in shared mode")
if ":shared" in sh("nbdinfo", "--list", lab.uri(1, "v")):
    fail("LIST shows more than plain names")
out = history.finish()
if " 0 errors" not in out:
    fail("a client saw an I/O error")
watch_for("the last close to detach", lambda: not attached("s"), 5)
lab.done()
