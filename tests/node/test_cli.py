#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The `ashlar` command against an admin interface that this test plays: exit codes, what is sent, what
is printed, and who is trusted during a join.   test_cli.py PATH-TO-ASHLAR"""
import hashlib, http.server, json, os, shutil, socketserver, ssl, subprocess, sys, tempfile, threading

ASHLAR = sys.argv[1]
DIR = tempfile.mkdtemp(prefix="ashlar-cli.")
SOCKET = os.path.join(DIR, "admin.sock")
answers, seen = {}, []


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        where = "tls" if self.server.tls else "unix"
        seen.append((where, self.command, self.path, json.loads(body) if body else None))
        answer = answers.get((self.command, self.path), (404, {"error": "NOT_FOUND", "message": "no such thing"}))
        status, out = answer.pop(0) if isinstance(answer, list) else answer  # a list: one after the other
        data = out.encode() if isinstance(out, str) else json.dumps(dict(out, schema=1)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer

    def log_message(self, *args):
        pass

    def address_string(self):
        return "client"


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    tls = False

    def get_request(self):
        request, _ = super().get_request()
        return request, ("local", 0)


class TcpServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    tls = True

    def handle_error(self, request, client_address):
        pass


def ashlar(*args, env=None, stdin=""):
    seen.clear()
    e = dict(os.environ, ASHLAR_ADMIN="unix:" + SOCKET, NO_COLOR="1", ASAN_OPTIONS="detect_leaks=0")
    e.update(env or {})
    r = subprocess.run([ASHLAR, *args], env=e, input=stdin, capture_output=True, text=True, timeout=60)
    assert "Sanitizer" not in r.stderr and "runtime error" not in r.stderr, r.stderr
    return r


checks = 0


def expect(r, code, out="", err=""):
    global checks
    checks += 1
    if r.returncode != code or out not in r.stdout or err not in r.stderr:
        print(f"FAILED: {r.args}\n  exit {r.returncode}, expected {code}\n  stdout {r.stdout!r} (wanted {out!r})"
              f"\n  stderr {r.stderr!r} (wanted {err!r})")
        sys.exit(1)


def check(condition, what):
    global checks
    checks += 1
    if not condition:
        print("FAILED:", what, "\n  seen:", seen)
        sys.exit(1)


def usage():
    expect(ashlar(), 2, err="usage")
    expect(ashlar("--help"), 0, out="volume create")
    for line in ashlar("--help").stdout.split("\n\n")[1].splitlines():
        check(line.endswith("."), f"the overview has whole sentences: {line}")
    expect(ashlar("--version"), 0, out="ashlar ")
    expect(ashlar("frobnicate"), 2, err="no command")
    expect(ashlar("volume"), 2, err="ashlar volume create")
    expect(ashlar("volume", "shrink"), 2, err="volume has no")
    for command in (["cluster", "init"], ["node", "join"], ["diskgroup", "add"], ["volume", "create"], ["health"],
                    ["bench"], ["completion"], ["cert", "issue"], ["status"], ["ops"], ["events"], ["node", "invite"]):
        expect(ashlar(*command, "--help"), 0, out="Example")
    expect(ashlar("volume", "create", "v"), 2, err="--size")
    expect(ashlar("volume", "create", "v", "--size"), 2, err="needs a value")
    expect(ashlar("volume", "create", "v", "--copys", "2", "--size", "1G"), 2, err="unknown option --copys")
    expect(ashlar("volume", "create", "v", "w", "--size", "1G"), 2, err="too many")
    for size in ("", "10X", "-1", "1.G", "G", "10GB", "0", "5000", "99999999999999999999", "16777216P", "1e3"):
        expect(ashlar("volume", "create", "v", "--size", size), 2)
    check(not seen, "nothing is sent when the command line is wrong")
    expect(ashlar("status", "-o", "xml"), 2, err="json or table")
    expect(ashlar("status", env={"ASHLAR_ADMIN": "ftp://x"}), 2, err="unix:PATH")
    expect(ashlar("status", env={"ASHLAR_ADMIN": "https://10.0.0.1:1", "ASHLAR_CA": ""}), 2, err="ASHLAR_C")
    expect(ashlar("--timeout", "soon", "status"), 2, err="--timeout")


def volumes():
    answers[("POST", "/v1/volumes")] = (200, {"name": "v1", "id": 4, "done": "created"})
    expect(ashlar("volume", "create", "v1", "--size", "1.5G", "--copies", "3", "--compression", "on"), 0, out="v1 created")
    check(seen[0][3] == {"name": "v1", "size_bytes": 3 << 29, "copies": 3, "compression": True}, "create body")
    expect(ashlar("volume", "create", "v1", "--size=64MiB"), 0)
    check(seen[0][3] == {"name": "v1", "size_bytes": 64 << 20}, "defaults are the daemon's")
    expect(ashlar("volume", "create", "v1", "--size", "1G", "--dedup", "yes"), 2, err="on or off")
    answers[("POST", "/v1/volumes/a%2Fb/resize")] = (200, {"name": "a/b", "done": "resized"})
    expect(ashlar("volume", "resize", "a/b", "20G"), 0, out="resized")
    answers[("DELETE", "/v1/volumes/v1")] = (200, {"name": "v1", "done": "deleted"})
    expect(ashlar("volume", "delete", "v1"), 3, err="no such thing")  # before anybody is asked
    answers[("GET", "/v1/volumes/v1")] = (200, {"name": "v1"})
    expect(ashlar("volume", "delete", "v1"), 2, err="not confirmed")
    check([s[1] for s in seen] == ["GET"], "an unconfirmed delete deletes nothing")
    expect(ashlar("volume", "delete", "v1", stdin="v2\n"), 2)
    expect(ashlar("volume", "delete", "v1", stdin="v1\n"), 0, out="deleted")
    expect(ashlar("volume", "delete", "v1", "--yes"), 0, out="deleted")
    answers[("PATCH", "/v1/volumes/v1")] = (200, {"name": "v1", "done": "changed"})
    expect(ashlar("volume", "set", "v1"), 2, err="nothing to change")
    expect(ashlar("volume", "set", "v1", "--dedup", "off"), 0, out="changed")
    check(seen[0][3] == {"dedup": False}, "only what was asked for is changed")
    volume = {"name": "v1", "size_bytes": 1 << 30, "copies": 2, "health": "ok", "compression": False, "dedup": False,
              "object_counts": {"total": 1, "in_sync": 1}, "attachments": [{"holder": "node:x", "mode": "exclusive", "renewed_ago_ms": 4000,
                                                                          "ttl_ms": 30000, "expired": False}]}
    answers[("GET", "/v1/volumes")] = (200, {"volumes": [volume], "source": {"node": "n1"}})
    expect(ashlar("volume", "list"), 0, out="1.0 GiB")
    expect(ashlar("volume", "list"), 0, out="node:x")
    check("known" not in ashlar("volume", "list").stdout, "all disk groups are in what is stored")
    answers[("GET", "/v1/volumes")][1].update(groups=3, groups_known=2)
    expect(ashlar("volume", "list"), 0, out="what is stored: (2 of 3 disk groups known now)")
    r = ashlar("volume", "list", "-o", "json")
    expect(r, 0)
    check(json.loads(r.stdout)["volumes"][0]["size_bytes"] == 1 << 30, "json is the daemon's answer")
    answers[("GET", "/v1/volumes/v1")] = (200, dict(volume, object_counts={"total": 5, "in_sync": 5, "unrepaired": 3}))
    expect(ashlar("volume", "show", "v1"), 0, out="up to 3 of them lack blocks in a copy")
    replicas = [{"node": "n1", "group": 1, "state": "in-sync", "reachable": True},
                {"node": "n2", "group": 2, "state": "syncing", "reachable": False, "pages_to_copy": 7}]
    answers[("GET", "/v1/volumes/v1")] = (200, dict(volume, objects=[{"index": 0, "epoch": 3, "primary": "n1",
                                                                       "state": "serving", "replicas": replicas}]))
    expect(ashlar("volume", "show", "v1"), 0, out="group 2 on n2 syncing (7 pages left) UNREACHABLE")
    expect(ashlar("volume", "show", "nope"), 3, err="no such thing")
    # The objects of a large volume come in pages, and are one list again; people see those that something is wrong with.
    well = [{"node": "n1", "group": 1, "state": "in-sync", "reachable": True}]
    row = lambda i: {"index": i, "epoch": 1, "primary": "n1", "state": "serving", "replicas": replicas if i == 299 else well}
    whole = answers[("GET", "/v1/volumes/v1")]
    answers[("GET", "/v1/volumes/v1")] = (200, dict(volume, objects=[row(i) for i in range(200)], objects_next=200))
    answers[("GET", "/v1/volumes/v1?from=200")] = (200, dict(volume, objects=[row(i) for i in range(200, 400)], objects_next=400))
    answers[("GET", "/v1/volumes/v1?from=400")] = (200, dict(volume, objects=[row(400)]))
    r = ashlar("volume", "show", "v1", "-o", "json")
    expect(r, 0)
    j = json.loads(r.stdout)
    check([o["index"] for o in j["objects"]] == list(range(401)) and "objects_next" not in j, "all pages as one")
    r = ashlar("volume", "show", "v1")
    expect(r, 0, out="400 of 401 objects are served with all replicas in sync and in reach")
    check("7 pages left" in r.stdout and len(r.stdout.splitlines()) < 30, "only what something is wrong with")
    check(len(ashlar("volume", "show", "v1", "--all").stdout.splitlines()) > 401, "--all: all")
    del answers[("GET", "/v1/volumes/v1?from=400")]
    expect(ashlar("volume", "show", "v1"), 3, err="no such thing")
    answers[("GET", "/v1/volumes/v1?count=0")] = (200, dict(volume, objects=[]))
    expect(ashlar("volume", "show", "v1", "--brief"), 0, out="volume      v1")
    answers[("GET", "/v1/volumes/v1")] = whole
    expect(ashlar("volume", "show", "v1"), 0, out="exclusive by node:x; renewed 4 s ago, for 30 s\n")
    shared = [{"holder": h, "mode": "shared", "renewed_ago_ms": 40000, "ttl_ms": 30000, "expired": h == "b"} for h in "ab"]
    answers[("GET", "/v1/volumes")] = (200, {"volumes": [dict(volume, attachments=shared)], "source": {"node": "n1"}})
    expect(ashlar("volume", "list"), 0, out="a and 1 more, shared, NOT RENEWED")
    answers[("GET", "/v1/volumes/v1")] = (200, dict(volume, attachments=shared, objects=[]))
    expect(ashlar("volume", "show", "v1"), 0, out="shared by b; renewed 40 s ago, for 30 s: RAN OUT")
    answers[("GET", "/v1/volumes/v1")] = (200, dict(volume, objects=[]))
    detach = ("POST", "/v1/volumes/v1/detach")
    answers[detach] = (409, {"error": "HELD", "message": "volume v1 is attached by node:x (exclusive): free in 12 s"})
    expect(ashlar("volume", "detach", "v1"), 1, err="free in 12 s")
    check(seen[-1][3] == {"fence": False}, f"detach without --fence: {seen[-1]}")
    answers[detach] = (200, {"name": "v1", "done": "detached", "detached": 1, "complete": True})
    expect(ashlar("volume", "detach", "v1", "--fence", "--holder", "node:x"), 0, out="volume v1 detached")
    check(seen[-1][3] == {"fence": True, "holder": "node:x"}, f"detach --fence: {seen[-1]}")
    answers[detach] = (200, {"name": "v1", "done": "detached", "detached": 1, "complete": False, "note": "not confirmed by n2"})
    expect(ashlar("volume", "detach", "v1", "--fence"), 8, out="detached", err="not confirmed by n2")
    answers[("GET", "/v1/settings")] = (200, {"settings": [{"key": "attach_ttl_ms", "value": "5000", "default": "30000",
                                                           "what": "how long"}]})
    expect(ashlar("cluster", "settings"), 0, out="attach_ttl_ms  5000   30000    how long")
    answers[("PUT", "/v1/settings/attach_ttl_ms")] = (200, {"key": "attach_ttl_ms", "value": None})
    expect(ashlar("cluster", "set", "attach_ttl_ms", "default"), 0, out="attach_ttl_ms = default")
    check(seen[-1][3] == {"value": None}, f"default: {seen[-1]}")
    expect(ashlar("cluster", "set", "attach_ttl_ms"), 2)


def safety():
    answer = {"ok": True, "exit_code": 0, "why": "all objects go on", "raft": {"voters": 3, "left": 2, "needed": 2},
              "objects": {"affected": 7, "single_copy": 7}, "volumes": []}
    answers["GET", "/v1/can-stop/n1,n2"] = 200, answer
    expect(ashlar("can-stop", "n1", "n2"), 0, out="yes: all objects go on")
    expect(ashlar("can-stop", "n1", "n2"), 0, out="7 would have a single copy")
    expect(ashlar("can-stop"), 2)
    expect(ashlar("can-stop", "n9"), 3, err="no such thing")
    answer.update(ok=False, exit_code=6, why="no quorum")
    expect(ashlar("can-stop", "n1", "n2"), 6, out="NO: no quorum")
    expect(ashlar("can-stop", "n1", "n2", "-o", "json"), 6, out='"exit_code"')
    answers["GET", "/v1/can-lose/rack1"] = 200, dict(
        answer, exit_code=5, volumes=["v"], volumes_at_risk=2, again={
            "copy_bytes": 3 << 30, "copy_s": 120, "rate_bytes_per_s": 100 << 20, "rate": "estimated",
            "space_enough": False, "fault_sets_enough": False, "known": True})
    r = ashlar("can-lose", "rack1")
    expect(r, 5, out="3.0 GiB in about 2 min (at 100.0 MiB/s, estimated), and there is NO SPACE")
    expect(r, 5, out="TOO FEW FAULT SETS")
    path = "/v1/nodes/n1/maintenance"
    answers["POST", path] = 200, {"node": "n1", "in_maintenance": True, "until_ms": 0, "primaries_left": 0, "took_ms": 90}
    expect(ashlar("node", "maintenance", "start", "n1", "--ttl", "2h", "--reason", "fan"), 0, out="elsewhere (90 ms)")
    check(seen[0][1:] == ("POST", path, {"op": "start", "ttl_s": 7200, "reason": "fan"}), seen)
    expect(ashlar("node", "maintenance", "extend", "n1", "--ttl", "soon"), 2, err="--ttl")
    expect(ashlar("node", "maintenance", "begin", "n1"), 2, err="start, extend or end")
    expect(ashlar("node", "maintenance", "start"), 2)
    answers["POST", path] = 409, {"error": "INCOMPLETE", "message": "their I/O would stop"}
    expect(ashlar("node", "maintenance", "start", "n1"), 5, err="would stop")
    answers["POST", path] = 200, {"node": "n1", "in_maintenance": False}
    expect(ashlar("node", "maintenance", "end", "n1"), 0, out="not in maintenance any more")


def exit_codes():
    for name, status, code in (("NOT_FOUND", 404, 3), ("EXISTS", 409, 4), ("CLAIMED", 409, 4), ("BUSY", 409, 1),
                               ("INVALID", 400, 1), ("FULL", 507, 7), ("NO_LEADER", 503, 6), ("UNCLAIMED", 503, 1),
                               ("ETIMEDOUT", 504, 8), ("TOO_FEW", 507, 1), ("REFUSED", 403, 1), ("EIO", 500, 1)):
        answers[("POST", "/v1/cluster/init")] = (status, {"error": name, "message": "because " + name})
        expect(ashlar("cluster", "init"), code, err="because " + name)
        r = ashlar("cluster", "init", "-o", "json")
        expect(r, code)
        check(json.loads(r.stderr) == {"schema": 1, "error": name, "message": "because " + name, "exit": code}, "json error")
    answers[("POST", "/v1/cluster/init")] = (200, "<html>")
    expect(ashlar("cluster", "init"), 1, err="not JSON")
    expect(ashlar("status", env={"ASHLAR_ADMIN": "unix:/nonexistent/x.sock"}), 6, err="/nonexistent/x.sock")
    r = subprocess.run(f"ASHLAR_ADMIN=unix:{SOCKET} {ASHLAR} --help > /dev/full", shell=True, capture_output=True, text=True)
    expect(r, 1, err="could not be written")


def health():
    item = {"code": "NODE_DOWN", "severity": "warning", "count": 1, "summary": "1 node cannot be reached", "since_ms": 0,
            "affected": ["n2"], "risk": "much", "command": "systemctl start ashlard", "caused_by": None}
    child = dict(item, code="DATA_SINGLE_COPY", severity="error", count=12, caused_by="NODE_DOWN")
    well = {"state": "serving", "overall": "ok", "items": [], "objects": {"total": 3}}
    answers[("GET", "/v1/health")] = (200, well)
    expect(ashlar("health"), 0, out="ok")
    expect(ashlar("health", "--nagios"), 0, out="STORAGE OK - all well | objects=3")
    answers[("GET", "/v1/health")] = (200, dict(well, overall="warning", items=[item]))
    expect(ashlar("health", "--nagios"), 1, out="STORAGE WARNING - NODE_DOWN(1)")
    answers[("GET", "/v1/health")] = (200, dict(well, overall="error", items=[child, item]))
    expect(ashlar("health", "--nagios"), 2, out="STORAGE CRITICAL - DATA_SINGLE_COPY(12) NODE_DOWN(1)")
    expect(ashlar("health"), 0, out="consequence of NODE_DOWN")
    expect(ashlar("health"), 0, out="do:   systemctl start ashlard")
    expect(ashlar("health", "--nagios", env={"ASHLAR_ADMIN": "unix:/nonexistent"}), 3, out="STORAGE UNKNOWN")
    answers[("GET", "/v1/health")] = (200, {"state": "unclaimed", "overall": "ok", "items": []})
    expect(ashlar("health", "--nagios"), 3, out="UNKNOWN")


def others():
    answers[("GET", "/v1/status")] = (200, {"state": "unclaimed", "remedy": "ashlar cluster init"})
    expect(ashlar("status"), 0, out="unclaimed")
    answers[("GET", "/v1/status")] = (200, {
        "state": "serving", "cluster": {"name": "lab", "uuid": "u"}, "health": {"overall": "ok", "codes": []},
        "raft": {"leader": "n1", "voters": ["n1", "n2"]}, "nodes": {"active": 2, "up": 2}, "volumes": 1,
        "objects": {"total": 4, "in_sync": 4}, "capacity": {"raw_bytes": 1 << 40, "free_bytes": (1 << 40) - (1 << 30), "data_used_bytes": 1 << 30,
                                                        "logical_bytes": 3 << 30, "zero_bytes": 1 << 30, "dedup_saved_bytes": 1 << 30,
                                                        "groups": 2, "groups_known": 1}})
    expect(ashlar("status"), 0, out="3.0 GiB in all copies − 1.0 GiB zeroes − 1.0 GiB duplicates = 1.0 GiB stored (3.00 : 1)")
    expect(ashlar("status"), 0, out="1.0 GiB stored + 1023.0 GiB free = 1.0 TiB")
    check("lack blocks" not in ashlar("status").stdout, "nothing is said of damage where there is none")
    check("serve nothing" not in ashlar("status").stdout, "nothing is said of a decision where none is due")
    answers[("GET", "/v1/status")][1]["objects"].update(unrepaired=2, undecided=1)
    expect(ashlar("status"), 0, out="up to 2 of them lack blocks in a copy")
    expect(ashlar("status"), 0, out="1 of them serves nothing until an operator decides")
    expect(ashlar("status"), 0, out="1 of 2 disk groups known")
    answers[("GET", "/v1/nodes")] = (200, {"nodes": [{"name": "n1", "number": 1, "up": False, "roles": ["storage", "voter"],
                                                       "facts": "cached", "facts_age_ms": 65000}]})
    expect(ashlar("node", "list"), 0, out="65 s old")
    group = {"group": 3, "node": "n1", "stats": {"objects": 1}}
    answers[("GET", "/v1/diskgroups/3")] = (200, group)
    expect(ashlar("diskgroup", "show", "3"), 0, out="what they take there is not known now")
    answers[("GET", "/v1/diskgroups/3")] = (200, dict(group, volumes=[{"volume": 1, "name": "v1"}]))
    expect(ashlar("diskgroup", "show", "3"), 0, out="v1")
    answers[("POST", "/v1/diskgroups")] = (200, {"group": 3, "node": "n1"})
    expect(ashlar("diskgroup", "add"), 2, err="--capacity")
    expect(ashlar("diskgroup", "add", "--cache", "/c", "--capacity", "/a,/b", "--node", "n1", "--wipe"), 0, out="group 3")
    check(seen[0][3] == {"capacity": ["/a", "/b"], "cache": "/c", "node": "n1", "wipe": True}, "diskgroup body")
    answers[("GET", "/v1/diskgroups")] = (200, {"diskgroups": [{"group": 1, "node": "n1", "state": "active", "reachable": True,
        "raw_bytes": 1 << 30, "stats": {"data_bytes": 1000, "data_used_bytes": 250, "log_fill_permyriad": 150}}]})
    expect(ashlar("diskgroup", "list"), 0, out="25.0 %")
    answers[("POST", "/v1/diskgroups/1/flush")] = (200, {"group": 1, "node": "n1", "took_ms": 1500})
    expect(ashlar("diskgroup", "flush"), 2, err="--all")
    expect(ashlar("diskgroup", "flush", "--all"), 0, out="capacity devices (1.5 s)")
    check(seen[-1][3] is None, "flush body")
    answers[("POST", "/v1/diskgroups/1/flush")] = (200, {"group": 1, "node": "n1", "took_ms": 1500, "reduced": True})
    expect(ashlar("diskgroup", "flush", "1", "--reduce"), 0, out="nothing is left to be reduced or collected (1.5 s)")
    check(seen[0][3] == {"reduce": True}, "flush --reduce body")
    more = (200, {"group": 1, "node": "n1", "took_ms": 10000, "reduced": False})
    answers[("POST", "/v1/diskgroups/1/flush")] = [more, more, (200, {"group": 1, "node": "n1", "took_ms": 500, "reduced": True})]
    expect(ashlar("diskgroup", "flush", "1", "--reduce", "--for", "30s"), 0, out="reduced or collected (20.5 s)")
    check(len(seen) == 3, "it is asked for until it is done")
    answers[("POST", "/v1/diskgroups/1/flush")] = more
    expect(ashlar("diskgroup", "flush", "1", "--reduce", "--for", "1s"), 8, err="group 1 on n1: not all is reduced after 1 s")
    expect(ashlar("diskgroup", "flush", "1", "--for", "1s"), 2, err="--reduce")
    expect(ashlar("diskgroup", "verify", "1", "--reduce"), 2, err="--reduce")
    answers[("POST", "/v1/diskgroups/1/verify")] = (200, {"group": 1, "node": "n1", "pages": 7})
    expect(ashlar("diskgroup", "verify", "n1/1"), 0, out="counters and references are right")
    answers[("POST", "/v1/diskgroups/1/verify")] = (200, {"group": 1, "node": "n1", "differences": 2})
    expect(ashlar("diskgroup", "verify", "1"), 1, out="2 DIFFERENCES")
    answers[("POST", "/v1/diskgroups/1/verify")] = (503, {"error": "UNAVAILABLE", "message": "node n1 cannot be reached"})
    expect(ashlar("diskgroup", "verify", "--all"), 6, err="cannot be reached")
    # One that was removed meanwhile is left out, and the rest goes on.
    group = lambda i: {"group": i, "node": f"n{i}", "state": "active", "reachable": True}
    answers[("GET", "/v1/diskgroups")] = [(200, {"diskgroups": [group(1), group(2)]}), (200, {"diskgroups": [group(1), group(2)]}),
                                          (200, {"diskgroups": [group(2)]})]
    answers[("POST", "/v1/diskgroups/1/flush")] = (503, {"error": "UNAVAILABLE", "message": "node n1 cannot be reached"})
    answers[("POST", "/v1/diskgroups/2/flush")] = (200, {"group": 2, "node": "n2", "took_ms": 1500})
    r = ashlar("diskgroup", "flush", "--all")
    expect(r, 0, out="disk group 2 on n2")
    check("disk group 1 was removed meanwhile" in r.stderr, r.stderr)
    answers[("GET", "/v1/diskgroups")] = (200, {"diskgroups": [group(1), group(2)]})
    expect(ashlar("diskgroup", "flush", "--all"), 6, out="disk group 2 on n2")
    answers[("GET", "/v1/ops")] = (200, {"ops": [{"age_us": 1500, "node": "n1", "kind": "write", "waits_for": "replica 2"}]})
    expect(ashlar("ops"), 0, out="replica 2")
    answers[("GET", "/v1/events")] = (200, {"events": [{"time_ms": 0, "code": "X", "severity": "info", "text": "hello"}]})
    expect(ashlar("events"), 0, out="1970-01-01T00:00:00Z")
    answers[("POST", "/v1/node/invite")] = (200, {"token": "abc"})
    expect(ashlar("node", "invite", "--ttl", "10m"), 0, out="abc")
    check(seen[0][3] == {"ttl_s": 600}, "invite body")
    r = ashlar("completion", "bash")
    expect(r, 0, out="complete -F _ashlar ashlar")
    expect(subprocess.run(["bash", "-n"], input=r.stdout, text=True, capture_output=True), 0)
    expect(ashlar("bench", "--volume", "v1"), 2, err="--yes")
    expect(ashlar("bench", "--volume", "v1", "--yes", "--profile", "x"), 2)
    expect(ashlar("bench", "--volume", "v1", "--yes"), 1, err="attached by node:x")


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=DIR)


def make_certs():
    for ca in ("ca", "otherca"):
        openssl("req", "-x509", "-newkey", "ed25519", "-nodes", "-keyout", ca + ".key", "-out", ca + ".pem", "-days", "2",
                "-subj", "/CN=ashlar CA", "-addext", "keyUsage=critical,keyCertSign")
    for name, ca, san in (("node", "ca", "DNS:node.ashlar"), ("client", "ca", None), ("foreign", "otherca", "DNS:node.ashlar")):
        openssl("req", "-newkey", "ed25519", "-nodes", "-keyout", name + ".key", "-out", name + ".csr", "-subj", "/CN=" + name)
        with open(os.path.join(DIR, "ext"), "w") as f:
            f.write("subjectAltName=" + san + "\n" if san else "basicConstraints=CA:FALSE\n")
        openssl("x509", "-req", "-in", name + ".csr", "-CA", ca + ".pem", "-CAkey", ca + ".key", "-days", "2", "-set_serial", "1",
                "-out", name + ".pem", "-extfile", "ext")


def tls_server(name):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(DIR, name + ".pem"), os.path.join(DIR, name + ".key"))
    server = TcpServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def join():
    """The secret goes to a node of the invited cluster, and to nobody else."""
    make_certs()
    ca = open(os.path.join(DIR, "ca.pem")).read()
    fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(ca)).hexdigest()
    answers[("GET", "/v1/ca")] = (200, ca)
    answers[("POST", "/v1/node/join-request")] = (200, {"number": 2, "cluster": "lab", "certificate": "C"})
    answers[("POST", "/v1/node/join-finish")] = (200, {"number": 2, "cluster": "lab", "node": "n2"})

    def prepared(server, sha):
        answers[("POST", "/v1/node/join-prepare")] = (200, {
            "admin": f"127.0.0.1:{server.server_address[1]}", "ca_sha256": sha, "request": {"secret": "s", "csr": "R"}})

    def leaked():
        return any(path.endswith("join-request") for _, _, path, _ in seen)

    node = tls_server("node")
    prepared(node, fingerprint)
    expect(ashlar("node", "join", "T"), 0, out="joined cluster lab as node 2")
    check([(w, p) for w, _, p, _ in seen] == [("unix", "/v1/node/join-prepare"), ("tls", "/v1/ca"),
                                             ("tls", "/v1/node/join-request"), ("unix", "/v1/node/join-finish")], "order")
    check(seen[0][3] == {"token": "T"} and seen[2][3] == {"secret": "s", "csr": "R"}, "bodies")
    check(seen[3][3]["certificate"] == "C", "the answer is handed on")
    expect(ashlar("node", "join", "-", stdin="TOK\n"), 0)
    check(seen[0][3] == {"token": "TOK"}, "token from standard input")
    prepared(node, "0" * 64)
    expect(ashlar("node", "join", "T"), 1, err="not the one of the invitation")
    check(not leaked(), "wrong CA: nothing is sent")
    for impostor in ("client", "foreign"):
        server = tls_server(impostor)
        prepared(server, fingerprint)
        expect(ashlar("node", "join", "T"), 6, err="cannot reach")
        check(not leaked(), impostor + " certificate: nothing is sent")
        server.shutdown()
    node.shutdown()


def remote():
    node = tls_server("node")
    env = {"ASHLAR_ADMIN": f"https://127.0.0.1:{node.server_address[1]}", "ASHLAR_CA": os.path.join(DIR, "ca.pem"),
           "ASHLAR_CERT": os.path.join(DIR, "client.pem"), "ASHLAR_KEY": os.path.join(DIR, "client.key")}
    expect(ashlar("status", env=env), 0, out="lab")
    check(seen[0][0] == "tls", "went over TLS")
    expect(ashlar("status", env=dict(env, ASHLAR_CA=os.path.join(DIR, "otherca.pem"))), 6)
    node.shutdown()


def certs():
    answers[("POST", "/v1/certs")] = (200, {"certificate": "CERT", "ca": "CA"})
    expect(ashlar("cert", "issue", "client", "hv1", "--dir", DIR), 0, out="hv1.pem")
    check(seen[0][3]["cn"] == "client:hv1" and "CERTIFICATE REQUEST" in seen[0][3]["csr"], "only a request travels")
    check("PRIVATE" not in json.dumps(seen[0][3]), "the key does not travel")
    check(os.stat(os.path.join(DIR, "hv1.key")).st_mode & 0o777 == 0o600, "the key is private")
    expect(ashlar("cert", "issue", "client", "hv1", "--dir", DIR), 4, err="is there already")
    expect(ashlar("cert", "issue", "king", "x"), 2)
    answers[("POST", "/v1/certs")] = (403, {"error": "REFUSED", "message": "no"})
    expect(ashlar("cert", "issue", "client", "hv2", "--dir", DIR), 1)
    check(not os.path.exists(os.path.join(DIR, "hv2.key")), "no key is left behind")


def jobs():
    job = {"id": 3, "kind": "evacuate", "node": "n3", "state": "running", "percent": 40, "replicas_total": 10,
           "replicas_done": 4, "replicas_left": 6, "replicas_filling": 2, "bytes_left_estimate": 6 << 30,
           "bytes_total_estimate": 10 << 30, "bytes_per_s": 64 << 20, "seconds_left_estimate": 96, "actor": "root",
           "waits_for": None, "age_s": 7}
    answers[("GET", "/v1/jobs")] = (200, {"jobs": [job, dict(job, id=2, state="done", percent=100)]})
    expect(ashlar("job", "list"), 0, out="evacuate  n3")
    check("64.0 MiB/s" in ashlar("job", "list").stdout and "96 s" in ashlar("job", "list").stdout, "rate and end")
    check("done" not in ashlar("job", "list").stdout and "done" in ashlar("job", "list", "--all").stdout, "--all")
    answers[("GET", "/v1/jobs")] = (200, {"jobs": [dict(job, state="done", percent=100, holds_empty=True)]})
    expect(ashlar("job", "list"), 0, out="done, holds")
    expect(ashlar("job", "list"), 0, out="ashlar job cancel ID")
    answers[("GET", "/v1/jobs/3")] = (200, dict(job, state="done", percent=100, holds_empty=True))
    expect(ashlar("job", "show", "3"), 0, out="ashlar job cancel 3")
    full = dict(job, state="done", percent=100, holds_empty=True, quarantined_replicas=2)
    answers[("GET", "/v1/jobs/3")], answers[("GET", "/v1/jobs")] = (200, full), (200, {"jobs": [full]})
    for words in (["show", "3"], ["list"]):
        expect(ashlar("job", *words), 0, out="NOT EMPTY: the target of job 3 has 2 replicas in quarantine")
    answers[("GET", "/v1/jobs/3")] = (200, dict(job, waits_for="volume v: group 1: full"))
    expect(ashlar("job", "show", "3"), 0, out="waits for volume v: group 1: full")
    expect(ashlar("job", "wait", "3", "--for", "1s"), 8, err="still goes on")
    answers[("GET", "/v1/jobs/3")] = (200, dict(job, danger="disk group 2 has damage"))
    answers[("GET", "/v1/jobs")] = (200, {"jobs": [job, dict(job, id=5, danger="disk group 2 has damage")]})
    expect(ashlar("job", "show", "3"), 0, out="DANGER    disk group 2 has damage")
    expect(ashlar("job", "list"), 0, out="DANGER: job 5: disk group 2 has damage")
    answers[("GET", "/v1/jobs/3")] = (200, dict(job, state="done"))
    expect(ashlar("job", "wait", "3"), 0, out="done")
    answers[("GET", "/v1/jobs/3")] = (200, dict(job, state="cancelled"))
    expect(ashlar("job", "wait", "3"), 1, err="is cancelled")
    expect(ashlar("job", "wait", "4"), 3)
    expect(ashlar("job", "wait", "x"), 2, err="not the number of a job")
    for step in ("pause", "resume", "cancel"):
        answers[("POST", f"/v1/jobs/3/{step}")] = (200, {"id": 3})
        expect(ashlar("job", step, "3"), 0)
        check(seen == [("unix", "POST", f"/v1/jobs/3/{step}", None)], step)
    answers[("POST", "/v1/jobs/3/cancel")] = (403, {"error": "REFUSED", "message": "job 3 is done"})
    expect(ashlar("job", "cancel", "3"), 1, err="job 3 is done")
    answers[("POST", "/v1/jobs")] = (200, {"id": 3})
    expect(ashlar("node", "evacuate", "n3"), 0, out="job 3")
    check(seen[0][3] == {"kind": "evacuate", "node": "n3"}, "evacuate a node")
    expect(ashlar("diskgroup", "evacuate", "7"), 0, out="ashlar job wait 3")
    check(seen[0][3] == {"kind": "evacuate", "group": 7}, "evacuate a group")
    expect(ashlar("diskgroup", "evacuate", "n3"), 2)
    expect(ashlar("job", "start", "rebalance"), 0, out="job 3")
    expect(ashlar("job", "start", "rebuild"), 2, err="starts by itself")
    answers[("GET", "/v1/jobs/3")] = (200, dict(job, state="done"))
    expect(ashlar("job", "start", "rebalance", "--wait"), 0, out="done")


try:
    threading.Thread(target=UnixServer(SOCKET, Handler).serve_forever, daemon=True).start()
    usage()
    volumes()
    safety()
    exit_codes()
    health()
    others()
    join()
    remote()
    certs()
    jobs()
    print(f"{checks} checks passed")
finally:
    shutil.rmtree(DIR, ignore_errors=True)
