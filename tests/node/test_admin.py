#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The admin interface of real daemons, through the real command: birth, rights, disk groups, volumes,
health with a dead node, and malformed requests.   test_admin.py ASHLARD ASHLAR"""
import atexit, json, os, shutil, signal, socket, ssl, subprocess, sys, tempfile, time

ASHLARD, ASHLAR = sys.argv[1:3]
DIR = tempfile.mkdtemp(prefix="ashlar-admin.")
ENV = dict(os.environ, ASAN_OPTIONS="detect_leaks=0", NO_COLOR="1")
checks = 0


def check(condition, what):
    global checks
    checks += 1
    if not condition:
        print("FAILED:", what)
        for n in nodes:
            print(f"--- log of {n.name}\n" + "".join(open(n.path("log"), errors="replace").readlines()[-15:]))
        sys.exit(1)


def wait_for(what, fn, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = fn()
        if value:
            return value
        time.sleep(0.05)
    check(False, f"{what} within {seconds} s")


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Node:
    def __init__(self, number):
        self.name, self.dir, self.process = f"n{number}", os.path.join(DIR, f"n{number}"), None
        os.mkdir(self.dir)
        self.port, self.admin_port = free_ports(2)
        with open(self.path("c.yaml"), "w") as f:
            f.write(f"name: {self.name}\nstate_dir: {self.path('state')}\nrun_dir: {self.dir}\nshards: 1\n"
                    f"listen: 127.0.0.1:{self.port}\nadmin_listen: 127.0.0.1:{self.admin_port}\n")
        with open(self.path("disk"), "wb") as f:
            f.truncate(2 << 30)

    def path(self, name):
        return os.path.join(self.dir, name)

    def start(self):
        self.process = subprocess.Popen([ASHLARD, "run", "--config", self.path("c.yaml")], env=ENV,
                                        stdout=open(self.path("log"), "ab"), stderr=subprocess.STDOUT)
        wait_for(f"{self.name} answers", lambda: self.process.poll() is None and self.run("status").returncode == 0)

    def end(self, sig):
        self.process.send_signal(sig)
        return self.process.wait(timeout=30)

    def run(self, *args, stdin="", env=None):
        e = dict(ENV, ASHLAR_ADMIN="unix:" + self.path("admin.sock"))
        return subprocess.run([ASHLAR, *args], env=dict(e, **(env or {})), input=stdin, capture_output=True, text=True,
                              timeout=120)

    def expect(self, code, *args, says="", **more):
        r = self.run(*args, **more)
        check(r.returncode == code and says in r.stdout + r.stderr,
              f"{self.name} {args}: exit {r.returncode}, expected {code} and {says!r}: {r.stdout}{r.stderr}")
        return r.stdout

    def json(self, *args):
        j = json.loads(self.expect(0, *args, "-o", "json"))
        check(j["schema"] == 1, "every answer carries its schema")
        return j

    def raw(self, data, read=True):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(10)
        s.connect(self.path("admin.sock"))
        out = b""
        try:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused before it was read
        try:
            while read and (part := s.recv(65536)):
                out += part
        except OSError:
            pass
        s.close()
        return out.decode(errors="replace")

    def http(self, method, path, body=""):
        return self.raw(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                        f"{body}".encode())


nodes = []
BEGIN_MS = time.time() * 1000


def clean():
    for n in nodes:
        if n.process and n.process.poll() is None:
            n.process.kill()
            n.process.wait()
    shutil.rmtree(DIR, ignore_errors=True)


atexit.register(clean)


def unclaimed(n):
    check(n.json("status")["state"] == "unclaimed", "a new node is unclaimed")
    n.expect(1, "volume", "list", says="belongs to no cluster")
    n.expect(1, "node", "invite", says="belongs to no cluster")
    n.expect(3, "health", "--nagios", says="UNKNOWN")
    since = n.json("health")["items"][0]["since_ms"]
    check(BEGIN_MS <= since <= time.time() * 1000, f"it is unclaimed since it started, not since {since} ms")
    n.expect(1, "node", "join", "rubbish", says="not an invitation")
    n.expect(1, "cluster", "init", "--name", "a b", says="name")
    check(os.stat(n.path("admin.sock")).st_mode & 0o777 == 0o600, "the socket is private")
    check("anonymous" not in n.http("GET", "/v1/status"), "root's socket needs no certificate")


def birth(a, b, c):
    check(a.json("cluster", "init", "--name", "test")["number"] == 1, "init makes node 1")
    a.expect(4, "cluster", "init", says="already")
    check(a.json("status")["state"] == "serving", "node 1 serves")
    token = a.json("node", "invite")["token"]
    b.expect(0, "node", "join", "-", stdin=token + "\n", says="node 2")
    b.expect(4, "node", "join", token, says="already")
    c.expect(1, "node", "join", token, says="was used")
    short = a.json("node", "invite", "--ttl", "1s")
    wait_for("the invitation to run out", lambda: time.time() * 1000 > short["expires_ms"])
    c.expect(1, "node", "join", short["token"], says="ran out")
    check(c.json("status")["state"] == "unclaimed", "a failed join leaves the node unclaimed")
    state = b.path("state")
    check(oct(os.stat(f"{state}/node.key").st_mode)[-3:] == "600", "the key is private")
    wait_for("both to know each other", lambda: all(
        [x["up"] for x in n.json("node", "list")["nodes"]] == [True, True] for n in (a, b)))
    check(b.json("node", "show", "n1")["facts"] == "live", "facts of the other node are live")
    b.expect(3, "node", "show", "n9", says="no node")


def groups(a, b):
    a.expect(1, "diskgroup", "add", "--capacity", "relative", says="absolute")
    a.expect(3, "diskgroup", "add", "--capacity", "/nonexistent/x", says="/nonexistent/x")
    a.expect(1, "diskgroup", "add", "--capacity", "/dev/null", says="neither a block device nor a file")
    a.expect(1, "diskgroup", "add", "--capacity", a.path("disk") + "," + a.path("disk"), says="twice")
    a.expect(3, "diskgroup", "add", "--capacity", a.path("disk"), "--node", "n9", says="no node")
    check(a.json("diskgroup", "add", "--capacity", a.path("disk"))["group"] == 1, "group 1")
    check(a.json("diskgroup", "add", "--capacity", a.path("disk"))["group"] == 1, "a re-run finds it")
    # Asked through the other node.
    check(a.json("diskgroup", "add", "--capacity", b.path("disk"), "--node", "n2")["node"] == "n2", "forwarded")
    with open(a.path("foreign"), "wb") as f, open(b.path("disk"), "rb") as g:
        f.write(g.read(1 << 20))
        f.truncate(2 << 30)
    a.expect(5, "diskgroup", "add", "--capacity", a.path("foreign"), says="--wipe")
    wait_for("both groups active", lambda: [g["state"] for g in a.json("diskgroup", "list")["diskgroups"]] == ["active"] * 2)
    # What another node says of itself may be half a second old.
    wait_for("facts of n2's group", lambda: b.path("disk") in str(a.json("diskgroup", "show", "2")))
    a.expect(0, "diskgroup", "show", "2", says=b.path("disk"))
    a.expect(3, "diskgroup", "show", "7", says="no disk group")


def volumes(a, b):
    a.expect(1, "volume", "create", "v", "--size", "64M", "--copies", "3", says="fault sets")
    a.expect(0, "volume", "create", "v", "--size", "256M")
    a.expect(4, "volume", "create", "v", "--size", "256M", says="exists")
    a.expect(3, "volume", "show", "w", says="no volume")
    wait_for("b to know v", lambda: b.run("volume", "show", "v").returncode == 0)
    wait_for("all objects to be served", lambda: all(
        o["state"] == "serving" and [r["state"] for r in o["replicas"]] == ["in-sync"] * 2
        for o in b.json("volume", "show", "v")["objects"]))
    a.expect(0, "volume", "resize", "v", "512M")
    a.expect(0, "volume", "set", "v", "--compression", "on")
    wait_for("the changes to reach b", lambda: [(v["size_bytes"], v["compression"]) for v in b.json("volume", "list")["volumes"]]
             == [(512 << 20, True)])
    b.expect(0, "volume", "create", "x", "--size", "64M", "--copies", "1")
    a.expect(0, "volume", "delete", "x", "--yes")
    a.expect(0, "volume", "detach", "v", "--fence", says="was not attached")
    a.expect(3, "volume", "detach", "w", says="no volume")
    check("unknown member" in a.http("POST", "/v1/volumes/v/detach", '{"force":true}'), "a misspelt member is refused")
    a.expect(3, "cluster", "set", "attach_ttl", "5000", says="no setting")
    a.expect(1, "cluster", "set", "attach_ttl_ms", "5", says="1000 to 3600000")
    a.expect(0, "cluster", "set", "attach_ttl_ms", "5000")
    wait_for("the setting to reach b", lambda: b.json("cluster", "settings")["settings"][0]["value"] == "5000")
    for slip, says in (("{}", 'member \\"value\\"'), ('{"value":5000}', 'member \\"value\\"'),
                       ('{"valeu":"5000"}', "unknown member"), ("5", ""), ("", "")):
        answer = a.http("PUT", "/v1/settings/attach_ttl_ms", slip)
        check(" 400 " in answer and says in answer, f"{slip} is no value: {answer}")
    check(a.json("cluster", "settings")["settings"][0]["value"] == "5000", "and resets nothing")
    a.expect(0, "cluster", "set", "attach_ttl_ms", "default")
    check(a.json("cluster", "settings")["settings"][0]["value"] != "5000", "a null does")
    check("hello" not in a.http("POST", "/v1/volumes", '{"name":"y","size":1}'), "no echo")
    check("unknown member" in a.http("POST", "/v1/volumes", '{"name":"y","size":1}'), "a misspelt member is refused")
    check(b.json("ops")["ops"] == [], "nothing is in flight")
    codes = [e["code"] for e in b.json("events")["events"]]
    check({"VOLUME_CREATED", "NODE_ADDED", "NODE_STARTED"} <= set(codes), f"events: {codes}")


def jobs(a, b):
    """Two nodes and two copies: nowhere to go, which is said, and nothing is begun unless it is meant; a job can be
    paused, resumed and cancelled."""
    check(a.json("job", "list")["jobs"] == [], "no jobs yet")
    a.json("volume", "create", "j", "--size", "64M", "--copies", "2")
    a.expect(5, "node", "evacuate", b.name, says="node n2: too few fault sets")
    a.expect(5, "diskgroup", "evacuate", "2", says="disk group 2: too few fault sets")
    a.expect(5, "node", "remove", b.name)
    check(a.json("job", "list")["jobs"] == [], "nothing was begun")
    id = a.json("node", "evacuate", b.name, "--yes")["id"]
    check(a.json("node", "evacuate", b.name, "--yes")["id"] == id, "the same wish is the same job")
    job = wait_for("why it waits", lambda: (lambda j: j["waits_for"] and j)(b.json("job", "show", str(id))))
    check("is being emptied" in job["waits_for"] and job["replicas_blocked"] == job["replicas_left"] > 0, "why, of each group")
    check(job["percent"] == 0 and job["node"] == b.name and job["actor"] == "root", "who, what, how far")
    a.expect(8, "job", "wait", str(id), "--for", "1s", says="still goes on")
    a.expect(0, "job", "pause", str(id))
    check(a.json("job", "show", str(id))["state"] == "paused", "paused")
    a.expect(0, "job", "resume", str(id))
    a.expect(0, "job", "cancel", str(id))
    a.expect(1, "job", "wait", str(id), says="is cancelled")
    a.expect(1, "job", "pause", str(id), says="is cancelled and cannot be paused")
    a.expect(3, "job", "show", "999", says="ashlar job list")
    a.expect(3, "node", "evacuate", "nobody", says="no node is named")
    a.expect(3, "diskgroup", "evacuate", "999", says="there is no disk group 999")
    a.expect(1, "cluster", "set", "rebuild_delay_s", "0", says="not a number from 1 to")
    a.json("volume", "delete", "j", "--yes")


def frozen(a, b):
    """What is in reach is judged anew by whoever shows it, though nobody asks for the status."""
    b.process.send_signal(signal.SIGSTOP)
    wait_for("a to find b silent", lambda: a.json("status")["nodes"]["up"] == 1)
    b.process.send_signal(signal.SIGCONT)
    wait_for("the volume to be whole again", lambda: a.json("volume", "show", "v")["health"] == "ok", 15)


def rights(a, b):
    for kind, name in (("operator", "op"), ("client", "cl")):
        a.expect(0, "cert", "issue", kind, name, "--dir", DIR)

    def remote(name):
        return {"ASHLAR_ADMIN": f"https://127.0.0.1:{b.admin_port}", "ASHLAR_CA": f"{DIR}/ca.pem",
                "ASHLAR_CERT": f"{DIR}/{name}.pem", "ASHLAR_KEY": f"{DIR}/{name}.key"}
    a.expect(0, "status", says="test", env=remote("op"))
    a.expect(0, "volume", "create", "z", "--size", "64M", env=remote("op"))
    a.expect(1, "cluster", "init", says="only root", env=remote("op"))
    a.expect(0, "volume", "list", says="v", env=remote("cl"))
    a.expect(1, "volume", "delete", "z", "--yes", says="may not", env=remote("cl"))
    a.expect(1, "volume", "detach", "z", "--fence", says="may not", env=remote("cl"))
    a.expect(1, "cluster", "set", "attach_ttl_ms", "5000", says="may not", env=remote("cl"))
    a.expect(1, "node", "invite", says="may not", env=remote("cl"))
    a.expect(1, "cert", "issue", "operator", "me", "--dir", DIR, says="may not", env=remote("cl"))
    a.expect(0, "volume", "delete", "z", "--yes", env=remote("op"))
    context = ssl.create_default_context(cafile=f"{DIR}/ca.pem")
    context.check_hostname = False

    def anonymous(method, path, body=""):
        with socket.create_connection(("127.0.0.1", b.admin_port)) as s, context.wrap_socket(s) as t:
            t.sendall(f"{method} {path} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            out = b""
            while part := t.recv(65536):
                out += part
            return out.decode()
    for path in ("/v1/status", "/v1/volumes", "/v1/metrics", "/v1/local"):
        check(" 403 " in anonymous("GET", path), f"{path} is not for everybody")
    check("BEGIN CERTIFICATE" in anonymous("GET", "/v1/ca"), "the CA certificate is")
    check(" 400 " in anonymous("POST", "/v1/node/join-request", "{}"), "an empty join request")
    body = json.dumps({"secret": "0" * 64, "csr": "x", "uuid": "6f1f7a5e-54cc-4a7f-8a52-0a4f2d6e3b11", "name": "n7",
                       "fault_set": "n7", "address": "127.0.0.1:1", "admin": ""})
    check(" 401 " in anonymous("POST", "/v1/node/join-request", body), "a wrong secret")
    check(len(a.json("node", "list")["nodes"]) == 2, "and nobody joined")
    # A crowd of idle connections costs others nothing.
    crowd = [socket.create_connection(("127.0.0.1", b.admin_port)) for _ in range(300)]
    b.expect(0, "status", says="test")
    for s in crowd:
        s.close()
    wait_for("TLS to be served again", lambda: "BEGIN" in anonymous("GET", "/v1/ca"))


def malformed(a):
    check(" 400 " in a.http("POST", "/v1/volumes", "{"), "half a JSON text")
    check(" 400 " in a.http("POST", "/v1/volumes", ""), "no body")
    check(" 400 " in a.http("DELETE", "/v1/status"), "wrong method")
    check(" 404 " in a.http("GET", "/v1/nothing"), "unknown path")
    check(" 404 " in a.http("GET", "/v1/volumes/../../etc/passwd"), "odd path")
    check(" 200 " not in a.http("POST", "/v1/volumes", "x" * (2 << 20))[:64], "a body beyond the limit")
    check(" 400 " in a.http("POST", "/v1/volumes", "[" * 100000), "deep nesting")
    a.raw(b"\x00\xff" * 1000)
    a.raw(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100000 + b"\r\n\r\n")
    a.raw(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n", read=False)  # leaves before the answer
    for _ in range(20):
        a.raw(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n", read=False)
    check(a.process.poll() is None, "the daemon lives")
    a.expect(0, "status", says="test")
    metrics = a.http("GET", "/v1/metrics")
    check('ashlar_health_objects{state="in_sync"}' in metrics and "ashlar_group_data_bytes{" in metrics, "metrics")


def well(a):
    """But for what two nodes cannot be: a majority without one of them."""
    codes = {i["code"]: i["severity"] for i in a.json("health")["items"]}
    return codes.pop("RAFT_TWO_VOTERS", None) == "warning" and set(codes.values()) <= {"info"}


def safety(a, b):
    """Two nodes, two voters: neither may go, and whoever insists is obeyed."""
    r = a.run("can-stop", "n2", "-o", "json")
    j = json.loads(r.stdout)
    check(r.returncode == 6 and j["raft"] == {"voters": 2, "left": 1, "needed": 2}, f"can-stop without quorum: {r.stdout}")
    a.expect(6, "node", "maintenance", "start", "n2", says="--yes")
    a.expect(3, "can-stop", "nobody", says="node list")
    a.expect(5, "can-lose", "n1", "n2", says="lost")
    j = a.json("node", "maintenance", "start", "n2", "--ttl", "1h", "--reason", "new fan", "--yes")
    check(j["primaries_left"] == 0 and j["in_maintenance"], f"primaries have moved: {j}")
    check(b.json("node", "show", "n2")["maintenance"]["reason"] == "new fan", "every node knows")
    items = {i["code"]: i for i in b.json("health")["items"]}
    check(items["NODE_MAINTENANCE"]["severity"] == "info" and "new fan" in items["NODE_MAINTENANCE"]["summary"], items)
    a.expect(0, "node", "list", says="active, maintenance")
    a.expect(0, "node", "maintenance", "extend", "n2", "--ttl", "1s")
    wait_for("it to run out", lambda: "NODE_MAINT_EXPIRED" in [i["code"] for i in a.json("health")["items"]])
    a.expect(0, "node", "show", "n2", says="RAN OUT")
    a.expect(0, "node", "maintenance", "end", "n2", says="any more")
    a.expect(3, "node", "maintenance", "extend", "n2", says="not in maintenance")
    b.end(signal.SIGTERM)
    b.start()
    wait_for("b to serve", lambda: b.json("status")["state"] == "serving", 60)
    wait_for("all to be well again", lambda: well(a), 60)
    check("CRASH_RECENT" not in [i["code"] for i in a.json("health")["items"]], "a clean stop is no crash")


def death(a, b):
    b.end(signal.SIGKILL)
    wait_for("a to notice", lambda: "NODE_DOWN" in [i["code"] for i in a.json("health")["items"]])
    began = time.monotonic()
    health = a.json("health")
    check(time.monotonic() - began < 2, "answers within 2 s with a dead node")
    items = {i["code"]: i for i in health["items"]}
    check(health["items"][0]["code"] == "NODE_DOWN" and items["NODE_DOWN"]["root"], "the root comes first")
    check(items["RAFT_MINORITY"]["caused_by"] == "NODE_DOWN", "the minority is a consequence")
    check(items["DATA_SINGLE_COPY"]["caused_by"] == "NODE_DOWN", "so are single copies")
    a.expect(2, "health", "--nagios", says="STORAGE CRITICAL")
    a.expect(0, "node", "list", says="old")
    wait_for("a to see that it leads nobody", lambda: a.json("status")["raft"]["leader"] is None)
    check(a.json("status")["source"]["map_age_ms"] > 0, "facts have an age")
    group = next(g["group"] for g in a.json("diskgroup", "list")["diskgroups"] if g["node"] == "n2")
    a.expect(6, "diskgroup", "flush", str(group), says="node n2, which must do this, cannot be reached")
    a.end(signal.SIGKILL)
    a.start()  # alone it cannot tell what there is
    for args in (("show", "v"), ("show", "never-made"), ("force", "never-made"), ("delete", "never-made", "--yes")):
        code = a.run("volume", *args).returncode
        check(code == 6 or (code == 0 and args[1] == "v"), f"volume {args} of a node that starts alone: exit {code}")
    b.start()
    wait_for("b to serve", lambda: b.json("status")["state"] == "serving", 60)
    wait_for("a to serve", lambda: a.json("status")["state"] == "serving", 60)
    a.expect(3, "volume", "show", "never-made")
    a.expect(0, "diskgroup", "flush", str(group))  # though a's connection to it may not be back yet
    wait_for("all to be well again", lambda: well(a), 60)
    check("CRASH_RECENT" in [i["code"] for i in a.json("health")["items"]], "it is said that it crashed")
    check(b.json("node", "show", "n2")["incarnation"] == 3, "the incarnation was raised")


def interrupted_join(a, c):
    """The cluster accepted the node, but the answer never arrived: a new invitation gives the same number."""
    token = a.json("node", "invite")["token"]
    prepared = json.loads(c.http("POST", "/v1/node/join-prepare", json.dumps({"token": token})).split("\r\n\r\n")[1])
    request = json.dumps(prepared["request"])
    answer = a.http("POST", "/v1/node/join-request", request)
    check(" 200 " in answer and '"number":3' in answer and "ca_key" in answer, "accepted as node 3")
    # Until this node has applied the join, the same one again is the same join.
    wait_for("the secret to be good for one join", lambda: " 401 " in a.http("POST", "/v1/node/join-request", request))
    second = a.json("node", "invite")["token"]
    check(c.json("node", "join", second)["number"] == 3, "the same number again")
    check(" 401 " in a.http("POST", "/v1/node/join-request", request), "the first secret stays used")
    again = json.loads(c.http("POST", "/v1/node/join-prepare", json.dumps({"token": second})).split("\r\n\r\n")[1])
    check(again["error"] == "CLAIMED", "and the node is claimed")
    wait_for("three voters", lambda: len(a.json("status")["raft"]["voters"]) == 3)
    wait_for("all to be well", lambda: a.run("health", "--nagios").returncode == 0, 60)


def main():
    nodes.extend(Node(i) for i in (1, 2, 3))
    a, b, c = nodes
    for n in nodes:
        n.start()
    unclaimed(c)
    birth(a, b, c)
    groups(a, b)
    volumes(a, b)
    jobs(a, b)
    frozen(a, b)
    rights(a, b)
    malformed(a)
    safety(a, b)
    death(a, b)
    interrupted_join(a, c)
    for n in nodes:
        code = n.end(signal.SIGTERM)
        check(code == 0, f"{n.name} ends with {code} at SIGTERM")
        check(not os.path.exists(n.path("admin.sock")), "and takes its socket away")
    print(f"{checks} checks passed")


main()
