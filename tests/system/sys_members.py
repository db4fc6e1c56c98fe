#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who belongs to the cluster. A voter that stays away is replaced by a standby and is one when it is back; its
successor has the key of the CA. A node is removed under load, the leader at that: its data and its vote move, it
leaves, is told so, and its host joins again as a new node. A dead node is removed without it: not while it is up, not
with data that only it has unless that is said; when it comes back nobody lets it in."""
import sys, os, shutil, base64, http.client, ssl, uuid
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


def asked_with_its_certificate():
    ctx = ssl.create_default_context(cafile=lab.path(gone, "state", "ca.pem"))
    ctx.check_hostname = False
    ctx.load_cert_chain(lab.path(gone, "state", "node.pem"), lab.path(gone, "state", "node.key"))
    c = http.client.HTTPSConnection(lab.json("node", "show", f"node{via}", node=via)["admin"], context=ctx, timeout=10)
    c.request("GET", "/v1/volumes")
    return c.getresponse().status


if asked_with_its_certificate() != 200:
    fail("a node's certificate does not open the admin interface")
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
if asked_with_its_certificate() != 403:
    fail("the certificate of a removed node still opens the admin interface")
watch_for("the removed node to be told and end", lambda: not lab.alive(gone), 15)
if os.path.exists(lab.path(gone, "state", "ca.key")):
    fail("the removed voter kept the key of the cluster's CA")
lab.do("start", gone)
st = lab.json("status", node=gone)
if st["state"] != "removed" or "empty" not in st["remedy"]:
    fail(f"the removed node says {st}")
code, out, err = lab.ashlar("volume", "list", node=gone, rc=None)
if code == 0 or "was removed" not in err:
    fail(f"the removed node answers: {out}{err}")


def join_anew():
    lab.do("stop", gone)
    shutil.rmtree(lab.path(gone, "state"))
    lab.start_unclaimed(gone)
    token = lab.json("node", "invite", node=via)["token"]
    lab.ashlar("node", "join", token, node=gone)
    lab.ashlar("diskgroup", "add", "--capacity", lab.path(gone, "capacity"), "--cache", lab.path(gone, "cache"),
               "--metadata-dir", lab.path(gone, "meta", "group0"), "--wipe", node=gone)


join_anew()
if lab.json("node", "show", leader, node=via)["number"] != 5:
    fail("the host did not come back as a new node")


def healthy():
    return not [c for c in codes(via) if c not in ("CRASH_RECENT",)]


watch_for("health to be well after the removal", healthy, 10)

step("a dead node is removed")
# The host that joined last has the highest number: it dials nobody.
lab.volume("alone", "512M", copies=1)
lab.volume("safe", "512M", copies=2)
with Nbd(lab.socket(via), "alone:shared") as a, Nbd(lab.socket(via), "safe:shared") as b:
    for off in range(0, 512 << 20, 1 << 20):
        a.write(off, b"a" * 4096)
        b.write(off, b"b" * 4096)
dead, cmd = leader, ("node", "remove", leader, "--dead", "--yes")
refused(1, *cmd, says="is up")
refused(2, "node", "remove", dead, "--accept-loss")
refused(2, "node", "remove", dead, "--dead")  # not confirmed
lab.do("kill", gone)
watch_for("nobody to hear it any more",
          lambda: lab.ashlar("node", "remove", dead, "--dead", "--dry-run", node=via, rc=None)[0] == 5, 10)
refused(5, *cmd, says="of alone")
refused(6, "node", "remove", dead, says="--dead")
begin = time.time()
lost = lab.json(*cmd, "--accept-loss", node=via)["objects_lost"]
step(f"removed after {time.time() - begin:.1f} s, {lost} objects given up")
watch_for("health to say what was given up", lambda: lost and codes(via).get("DATA_GIVEN_UP", {}).get("count") == lost, 5)
events = [e["code"] for e in lab.json("events", node=via)["events"]]
if "DATA_GIVEN_UP" not in events or "NODE_REMOVED" not in events:
    fail(f"no trace of it in the events: {events}")
with Nbd(lab.socket(via), "safe:shared") as b:
    for off in range(0, 512 << 20, 1 << 20):
        if b.read(off, 4096) != b"b" * 4096:
            fail(f"a volume with two copies reads wrongly at {off}")
lab.ashlar("volume", "delete", "alone", "--yes", node=via)
watch_for("what was lost to be made again", healthy, 30)
lab.start_unclaimed(gone)
watch_for("the dead node to be told when it is back", lambda: not lab.alive(gone), 20)
log = open(lab.path(gone, "log"), errors="replace").read()
if log.count("this node was removed from the cluster and ends here") != 2:
    fail("the log of the dead node does not say why it ends")
lab.start_unclaimed(gone)
if lab.json("status", node=gone)["state"] != "removed":
    fail("the dead node starts its part again")

if LONG:
    step("node numbers beyond 64")

    def join_and_forget(i):
        """A join that nobody finishes, and its removal."""
        token = lab.json("node", "invite", node=via)["token"]
        t = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        u = str(uuid.uuid4())
        key = sh("openssl", "genpkey", "-algorithm", "ed25519")
        csr = subprocess.run(["openssl", "req", "-new", "-key", "/dev/stdin", "-subj", f"/CN=node:{u}"], input=key,
                             capture_output=True, text=True, check=True).stdout
        body = json.dumps({"secret": t["secret"], "csr": csr, "uuid": u, "name": f"x{i}", "fault_set": f"x{i}",
                           "address": f"10.9.{i}.1:7400", "admin": "", "shards": 1, "roles": 1})
        ctx = ssl.create_default_context()
        ctx.check_hostname, ctx.verify_mode = False, ssl.CERT_NONE
        c = http.client.HTTPSConnection(t["admin"], context=ctx, timeout=10)
        c.request("POST", "/v1/node/join-request", body)
        r = c.getresponse()
        if r.status != 200:
            fail(f"join request: {r.status} {r.read()}")
        lab.ashlar("node", "remove", f"x{i}", "--dead", "--yes", node=via)

    for i in range(61):
        join_and_forget(i)
    join_anew()
    number = lab.json("node", "show", dead, node=via)["number"]
    if number <= 64:
        fail(f"the number is {number}")
    lab.volume("far", "512M", copies=3)
    lab.in_sync_via(via)
    with Nbd(lab.socket(gone), "far:shared") as f:
        f.write(0, b"f" * 4096)
    watch_for("health to be well with it", healthy, 15)

    def takes_part():
        n = lab.json("node", "show", dead, node=via)
        return n["facts"] == "live" and n["replication"]["objects"] and n["replication"]["acks"]
    watch_for(f"node {number} to take part", takes_part, 10)
lab.done()
