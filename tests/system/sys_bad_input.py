#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input, from people, programs and wires: each gets a typed exit code or errno and a sentence that names
the thing and the remedy; the nodes live, and what was stored stays. Prints each answer for a person to judge."""
import base64, errno, random, sys, os
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

seed = int(os.environ.get("SEED", time.time_ns() % 1000000))
rng = random.Random(seed)
step(f"SEED={seed}")
MIB = 1 << 20
lab = Lab("badin", "--nodes", "3", "--ram", "--size", "512M", "--cache", "64M")
other = Lab("badin2", "--nodes", "1", "--ram", "--size", "256M", "--cache", "64M")


def told(out):
    """The sentence; with -o json on the error stream it is JSON, by default text."""
    return out.strip().replace("ashlar: ", "", 1)


def refused(what, rc, words, *cmd, node=1, where=lab, env=None):
    """The command must end with rc and say all the words."""
    r, out, err = sh(os.path.join(BIN, "ashlar"), *cmd, rc=None,
                     env=env or {"ASHLAR_ADMIN": "unix:" + where.path(node, "admin.sock")})
    print(f"  {what}: exit {r}: {told(err)[:300]}", flush=True)
    missing = [w for w in words if w not in err]
    if r != rc or missing:
        fail(f"{what}: `ashlar {' '.join(map(str, cmd))}`: exit {r}, expected {rc}; not said: {missing}\n{out}{err}")


def pids(where, nodes=(1, 2, 3)):
    env = where.do("env")
    return [int(x.split("=")[1]) for x in env.splitlines() if x.startswith("NODE")]


def resident(pid):
    return int(open(f"/proc/{pid}/statm").read().split()[1]) * 4096


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


# ---- something to lose ----
lab.volume("precious", "64M")
precious = rng.randbytes(8 * MIB)
with Nbd(lab.socket(1), "precious") as d:
    for at in range(0, len(precious), MIB):
        d.write(at, precious[at:at + MIB])
born = pids(lab)


def nothing_lost(when, nodes=(1, 2, 3)):
    if pids(lab) != born:
        fail(f"{when}: a node has died")
    for n in nodes:
        with Nbd(lab.socket(n), "precious") as d:
            for at in range(0, len(precious), MIB):
                if d.read(at, MIB) != precious[at:at + MIB]:
                    fail(f"{when}: data differs through node {n} at {at}")


def volumes():
    step("volumes that cannot be")
    none = ["nope", "ashlar volume list"]
    refused("unknown volume, show", 3, none, "volume", "show", "nope")
    refused("unknown volume, delete", 3, none, "volume", "delete", "nope", "--yes")
    refused("unknown volume, resize", 3, none, "volume", "resize", "nope", "1G")
    refused("size 0", 2, ["\"0\"", "e.g."], "volume", "create", "x", "--size", "0")
    refused("no multiple of 4096", 2, ["5000", "multiple of 4096"], "volume", "create", "x", "--size", "5000")
    refused("beyond the limit", 1, ["size_bytes", "65.0 TiB", "at most 64 TiB: make several"], "volume", "create", "x", "--size", "65T")
    refused("beyond 64 bits", 2, ["16384P", "not a size"], "volume", "create", "x", "--size", "16384P")
    refused("four copies", 1, ["copies", "1 to 3"], "volume", "create", "x", "--size", "1G", "--copies", "4")
    refused("too few nodes", 1, ["2 copies", "there are 1", "add nodes"], "volume", "create", "x", "--size", "1G",
            "--copies", "2", where=other)
    refused("duplicate name", 4, ["precious", "exists"], "volume", "create", "precious", "--size", "64M")
    refused("impossible name", 1, ["a/b", "letter or digit"], "volume", "create", "a/b", "--size", "1G")
    refused("shrink", 1, ["precious", "cannot shrink"], "volume", "resize", "precious", "1M")
    refused("unknown option", 2, ["--sizes", "--help"], "volume", "create", "x", "--sizes", "1G")
    refused("no such node", 3, ["\"nope\"", "ashlar node list"], "node", "show", "nope")
    refused("no such group", 3, ["\"77\"", "ashlar diskgroup list"], "diskgroup", "show", "77")
    refused("nobody listens", 6, ["/nonexistent/admin.sock", "is it running"], "status",
            env={"ASHLAR_ADMIN": "unix:/nonexistent/admin.sock"})
    rc, _, err = sh("qemu-io", "-f", "raw", "-c", "read 0 4k", lab.uri(1, "nope"), rc=None)
    print("  unknown export: " + " / ".join(err.strip().splitlines()[-2:])[-160:], flush=True)
    if rc == 0 or "no volume of this name" not in err:
        fail("an unknown export is not refused by name: " + err)


# ---- joining ----
def token_edit(token, **changes):
    j = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    j.update(changes)
    return base64.urlsafe_b64encode(json.dumps(j, separators=(",", ":")).encode()).decode().rstrip("=")


def token_get(token, key):
    return json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))[key]


class Stranger:
    """A daemon that belongs to no cluster."""

    def __init__(self, name):
        self.dir = os.path.join(lab.path(1), "..", "stranger-" + name)
        self.dir = os.path.normpath(self.dir)
        os.makedirs(self.dir)
        ports = []
        for _ in range(2):
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                ports.append(s.getsockname()[1])
        with open(f"{self.dir}/c.yaml", "w") as f:
            f.write(f"name: {name}\nstate_dir: {self.dir}/state\nrun_dir: {self.dir}\n"
                    f"listen: 127.0.0.1:{ports[0]}\nadmin_listen: 127.0.0.1:{ports[1]}\n")
        self.env = {"ASHLAR_ADMIN": f"unix:{self.dir}/admin.sock"}
        self.p = subprocess.Popen([f"{BIN}/ashlard", "run", "--config", f"{self.dir}/c.yaml"],
                                  stdout=open(f"{self.dir}/log", "wb"), stderr=subprocess.STDOUT)
        atexit.register(lambda: self.p.poll() is None and self.p.kill())
        watch_for("the stranger", lambda: sh(f"{BIN}/ashlar", "status", rc=None, env=self.env)[0] == 0, 20)

    def stop(self):
        self.p.terminate()
        if self.p.wait(timeout=20):
            fail("an unclaimed daemon does not end cleanly")


def joining():
    step("joining")
    s = Stranger("stranger")
    good = lab.ashlar("node", "invite").strip()
    foreign = other.ashlar("node", "invite").strip()
    again = "ashlar node invite"
    refused("not a token", 1, ["invitation token", again], "node", "join", "garbage", env=s.env)
    refused("half a token", 1, ["invitation token", again], "node", "join", good[:100], env=s.env)
    refused("wrong secret", 1, ["unknown", again], "node", "join", token_edit(good, secret="0" * 64), env=s.env)
    refused("another cluster's address", 1, ["not the one of the invitation"], "node", "join",
            token_edit(good, admin=token_get(foreign, "admin")), env=s.env)
    refused("nobody at the address", 6, ["127.0.0.1:1"], "node", "join", token_edit(good, admin="127.0.0.1:1"),
            env=s.env)
    short = lab.ashlar("node", "invite", "--ttl", "1s").strip()
    watch_for("the token to run out", lambda: time.time() * 1000 > token_get(short, "expires"), 5)
    refused("expired token", 1, ["ran out", again], "node", "join", short, env=s.env)
    refused("expired, with the time changed in it", 1, ["ran out", again], "node", "join",
            token_edit(short, expires=int(time.time() * 1000) + 600000), env=s.env)
    refused("no cluster yet", 1, ["no cluster", "ashlar cluster init"], "volume", "list", env=s.env)
    s.stop()
    refused("a node that belongs elsewhere", 4, ["node 1", other.name, "empty"], "node", "join", good, where=other)
    refused("init of a member", 4, ["node 1", lab.name], "cluster", "init")
    twin = Stranger("node2")
    refused("a name that is taken", 4, ["node2", "choose another name"], "node", "join", good, env=twin.env)
    twin.stop()


# ---- devices ----
def file_of(name, size):
    path = os.path.join(lab.path(1), name)
    with open(path, "wb") as f:
        f.truncate(size)
    return path


def devices():
    step("devices")
    add = ("diskgroup", "add", "--capacity")
    groups = lab.json("diskgroup", "list")["diskgroups"]
    hints = open(lab.path(1, "state", "devices.json")).read()
    other.do("kill", 1)
    refused("another cluster's device", 5, [other.path(1, "capacity"), "another cluster", "--wipe"], *add,
            other.path(1, "capacity"))
    other.do("start", 1)
    refused("a device in use by another daemon", 1, [lab.path(2, "capacity"), "in use", "ashlard"], *add,
            lab.path(2, "capacity"))
    refused("the same with --wipe", 1, [lab.path(2, "capacity"), "in use"], *add, lab.path(2, "capacity"), "--wipe")
    image = file_of("image", 128 * MIB)
    sh("mkfs.ext4", "-q", image)
    refused("a file system", 5, [image, "file system", "--wipe"], *add, image)
    blank, blank2 = file_of("blank", 128 * MIB), file_of("blank2", 128 * MIB)
    refused("a file system as the cache", 5, [image, "--wipe"], *add, blank, "--cache", image)
    refused("named twice", 1, [blank, "twice"], *add, f"{blank},{blank}")
    os.symlink(blank, blank + ".link")
    refused("two names of one device", 1, [blank, "one device"], *add, f"{blank},{blank}.link")
    refused("too small", 1, ["small", "needs at least"], *add, file_of("small", MIB))
    refused("no such file", 3, ["/nonexistent"], *add, "/nonexistent")
    refused("no device", 1, ["/dev/null", "neither"], *add, "/dev/null")
    refused("a relative path", 1, ["\"blank\"", "absolute"], *add, "blank")
    refused("on a node that is not there", 3, ["\"nope\"", "ashlar node list"], *add, blank, "--node", "nope")
    lab.ashlar(*add, lab.path(1, "capacity"), "--cache", lab.path(1, "cache"))
    print("  the same devices again: exit 0, no change", flush=True)
    refused("again, with --wipe", 1, [lab.path(1, "capacity"), "in use", "not wiped"], *add,
            lab.path(1, "capacity"), "--cache", lab.path(1, "cache"), "--wipe")
    refused("a part of a group", 1, [lab.path(1, "cache"), "in use", "disk group"], *add, lab.path(1, "cache"))
    refused("a group's device beside a new one", 1, [lab.path(1, "cache"), "in use"], *add, blank, "--cache",
            lab.path(1, "cache"))
    if open(lab.path(1, "state", "devices.json")).read() != hints:
        fail("a refused command changed devices.json")
    if any(os.scandir(lab.path(1, "state", "groups"))):
        fail("refused commands left metadata directories behind")
    if [g["group"] for g in lab.json("diskgroup", "list")["diskgroups"]] != [g["group"] for g in groups]:
        fail("a refused command made a disk group")
    for path in (image, blank, blank2, blank + ".link"):
        os.unlink(path)


# ---- a second writer ----
def writers():
    step("a second writer")
    lab.volume("held", "64M")
    first = Nbd(lab.socket(1), "held")
    first.write(0, b"1" * 4096)
    at = os.path.getsize(lab.path(2, "log"))
    with Nbd(lab.socket(2), "held") as second:
        if second.read(0, 4096) != b"1" * 4096:
            fail("a reader beside a writer does not see its data")
        try:
            second.write(0, b"2" * 4096)
            fail("two writers at once")
        except NbdError as e:
            print(f"  second writer: {errno.errorcode.get(e.errno)}: {e.text}", flush=True)
            if e.errno != errno.EPERM or "held" not in e.text or "node1" not in e.text:
                fail("the error does not name volume and holder")
    log = open(lab.path(2, "log")).read()[at:]
    if "node1" not in log or "HELD" not in log:
        fail("the log does not name the holder:\n" + log)
    shown = lab.ashlar("volume", "show", "held", "--brief", node=3)
    if "exclusive by" not in shown or "node1" not in shown:
        fail("volume show does not name the holder:\n" + shown)
    refused("delete of an attached volume", 1, ["held", "node1"], "volume", "delete", "held", "--yes", node=3)
    if first.read(0, 4096) != b"1" * 4096:
        fail("the second writer's data was taken")
    first.close()

    def second_may():
        with Nbd(lab.socket(2), "held") as d:
            try:
                d.write(0, b"2" * 4096)
                return True
            except NbdError:
                return False
    watch_for("the volume to be free after its holder left", second_may, 20)
    watch_for("the volume to be detached", lambda: "attached    no" in lab.ashlar("volume", "show", "held", "--brief"), 20)
    lab.ashlar("volume", "delete", "held", "--yes")


# ---- noise ----
def noises():
    yield b""
    yield rng.randbytes(rng.randrange(1, 64))
    yield rng.randbytes(rng.randrange(64, 20000))
    yield bytes(rng.randrange(1, 300))
    yield b"\xff" * rng.randrange(1, 300)


def nbd_noise():
    flags = struct.pack(">I", rng.choice([0, 1, 3, 0xffffffff]))
    name = b"precious" if rng.random() < 0.7 else rng.randbytes(9)
    go = struct.pack(">I", len(name)) + name + b"\0\0"
    go = rng.choice([go, go[:rng.randrange(len(go))], go + rng.randbytes(3), struct.pack(">I", 0xfffffff0) + name])
    n = rng.choice([len(go), len(go), 0, 0xffffffff, 1 << 20])
    data = flags + b"IHAVEOPT" + struct.pack(">II", rng.choice([1, 2, 3, 5, 6, 7, 8, 9, 10, rng.randrange(1 << 32)]), n) + go
    for _ in range(rng.randrange(4)):  # if it got through: requests, of which no write is well-formed
        data += struct.pack(">IHHQQI", rng.choice([0x25609513, rng.randrange(1 << 32)]), rng.randrange(1 << 16),
                            rng.choice([0, 3, 5, 7, 9, rng.randrange(7, 1 << 16)]), 1,
                            rng.choice([0, 1 << 63, rng.randrange(1 << 64)]), rng.choice([0, 1, 0xffffffff, 4096]))
    return data[:rng.randrange(len(data) + 1)] if rng.random() < 0.5 else data


def http_noise():
    text = rng.choice([
        b"GET / HTTP/1.1\r\n\r\n", b"GET /v1/volumes HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/volumes HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n{",
        b"POST /v1/volumes HTTP/1.1\r\nContent-Length: -5\r\n\r\n{}",
        b"POST /v1/volumes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"POST /v1/volumes HTTP/1.1\r\nContent-Length: 20\r\n\r\n{\"name\":" + b"[" * 12,
        b"GET /" + b"a" * rng.randrange(40000) + b" HTTP/1.1\r\n\r\n",
        b"GET /%00%ff%zz/../../etc HTTP/1.1\r\n" + b"X: " + b"y" * rng.randrange(30000) + b"\r\n\r\n",
        b"DELETE /v1/volumes/%2e%2e HTTP/1.1\r\n\r\n", rng.randbytes(200) + b"\r\n\r\n"])
    return text[:rng.randrange(len(text) + 1)] if rng.random() < 0.5 else text


def shout(family, address, data, wait):
    s = socket.socket(family)
    s.settimeout(5)
    try:
        s.connect(address)
        s.sendall(data)
        if wait:
            s.shutdown(socket.SHUT_WR)
            while s.recv(65536):
                pass
    except OSError:
        pass
    s.close()


def noise():
    step("malformed bytes on every port")
    config = open(lab.path(1, "ashlard.yaml")).read()
    port = {k: ("127.0.0.1", int(v.rsplit(":", 1)[1])) for k, v in
            (x.split(": ", 1) for x in config.splitlines()) if k in ("listen", "admin_listen")}
    unix, inet = socket.AF_UNIX, socket.AF_INET
    doors = [("peer port", inet, port["listen"], None), ("admin TLS port", inet, port["admin_listen"], None),
             ("NBD socket", unix, lab.socket(1), nbd_noise), ("admin socket", unix, lab.path(1, "admin.sock"), http_noise)]
    pid = born[0]
    rounds = 2000 if LONG else 250
    sizes, files = [], open_files(pid)
    for part in range(3):
        for name, family, address, maker in doors:
            for i in range(rounds):
                kinds = [*noises()] + ([maker()] * 5 if maker else [bytes([22, 3, 1, 0, 200]) + rng.randbytes(200)])
                shout(family, address, rng.choice(kinds), i % 4 == 0)
        sizes.append(resident(pid))
        lab.ashlar("status", "-o", "json")
    print(f"  {3 * len(doors) * rounds} connections; resident MiB after each third: "
          + ", ".join(str(s // MIB) for s in sizes), flush=True)
    if sizes[2] - sizes[1] > 8 * MIB:
        fail("memory grows with bad connections")
    watch_for("the files of the bad connections to be closed", lambda: open_files(pid) <= files + 8, 60)
    nothing_lost("after noise")


# ---- full ----
def full():
    step("a full cluster")
    lab.volume("big", "4G")
    with Nbd(lab.socket(2), "big", timeout=120) as d:
        written, data = 0, rng.randbytes(MIB)
        try:
            while written < d.size:
                d.write(written, written.to_bytes(8, "big") + data[8:])
                written += MIB
            fail("4 GiB went into a cluster of 1.5 GiB")
        except NbdError as e:
            print(f"  after {written // MIB} MiB: {errno.errorcode.get(e.errno)}: {e.text}", flush=True)
            if e.errno != errno.ENOSPC:
                fail("a full cluster must answer ENOSPC")
        for at in range(0, written, 16 * MIB):
            if d.read(at, 8) != at.to_bytes(8, "big"):
                fail(f"what was acknowledged before the end is not there: {at}")
        nothing_lost("when full")
        health = sh(os.path.join(BIN, "ashlar"), "health", rc=None,
                    env={"ASHLAR_ADMIN": "unix:" + lab.path(1, "admin.sock")})[1]
        print("  health: " + " / ".join(x for x in health.splitlines() if x.strip())[:400], flush=True)
        step("trim makes room, without a restart")
        for at in range(0, written, 32 * MIB):
            d.trim(at, min(32 * MIB, written - at))

        def writes_go_on():
            try:
                d.write(0, data)
                return True
            except NbdError as e:
                if e.errno != errno.ENOSPC:
                    raise
                return False
        watch_for("room after trim", writes_go_on, 60)
        room = 0
        try:
            while room < written // 2:
                d.write(room, data)
                room += MIB
        except NbdError as e:
            if e.errno != errno.ENOSPC:
                raise
        print(f"  {room // MIB} MiB written again at once", flush=True)
        if d.read(0, MIB) != data:
            fail("written after the trim, and not there")
    step("delete makes room, without a restart")
    watch_for("the volume to be detached", lambda: "attached    no" in lab.ashlar("volume", "show", "big", "--brief"), 20)
    lab.ashlar("volume", "delete", "big", "--yes")
    create = ("volume", "create", "next", "--size", "64M", "--copies", 2)
    watch_for("room for a volume", lambda: lab.ashlar(*create, rc=None)[0] == 0, 60)
    watch_for("it to be known at node 3", lambda: lab.ashlar("volume", "show", "next", node=3, rc=None)[0] == 0, 10)

    def fits():
        with Nbd(lab.socket(3), "next") as d:
            try:
                for at in range(0, 64 * MIB, MIB):
                    d.write(at, data)
                return True
            except NbdError as e:
                if e.errno != errno.ENOSPC:
                    raise
                return False
    watch_for("room after delete", fits, 60)


for part in os.environ.get("PARTS", "volumes,joining,devices,writers,noise,full").split(","):
    globals()[part]()
    nothing_lost(part)
lab.in_sync()
other.ok = True
lab.done()
