#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All nodes end, some hard and some cleanly, and start again in shuffled order, with delays between them, under
history load: every acknowledged write reads back, whoever came first. 3 rounds; 20 in the long run. One that is
alone says that it knows nothing yet, not that there is nothing."""
import random, signal, sys, os
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import *

seed = int(os.environ.get("SEED", time.time_ns() % 1000000))
rng = random.Random(seed)
step(f"SEED={seed}")
lab = Lab("orders", "--nodes", "3", "--ram", "--size", "1G", "--cache", "64M")
lab.volume("v", "128M")


def pid(n):
    return int(dict(x.split("=") for x in lab.do("env").splitlines() if x.startswith("NODE"))[f"NODE{n}_PID"])


def ended(p):
    try:
        fields = open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()
        return fields[0] == "Z" and int(fields[17]) <= 1  # with its threads
    except (FileNotFoundError, ProcessLookupError):
        return True


def stop(nodes):
    """In this order, each hard or cleanly, with pauses between."""
    words = []
    for n in nodes:
        how = rng.choice(["kill", "kill", "stop"])
        words.append(f"{how} {n}")
        p = pid(n)
        os.kill(p, signal.SIGKILL if how == "kill" else signal.SIGTERM)
        watch_for(f"node {n} to end", lambda: ended(p), 20)
        time.sleep(rng.choice([0, 0, 0.3, 1.5]))  # part of the random plan
    return words


def start(nodes):
    """One after the other. A first node alone cannot serve yet, so `lab start` is not waited for, only its
    process; the delays are what it is given."""
    delays = [rng.choice([0.1, 0.3, 1, 3]) for _ in nodes]
    for n, delay in zip(nodes, delays):
        lab.do("start", n, rc=None, timeout=delay)
    for n in nodes:
        watch_for(f"node {n} to serve", lambda: serving(n), 60)
    return delays


def serving(n):
    rc, out, _ = lab.ashlar("status", "-o", "json", node=n, rc=None)
    return rc == 0 and json.loads(out).get("state") == "serving"


def alone(n):
    """The first of three: what it is asked about the cluster ends with exit code 6, not with an empty list."""
    lab.do("start", n, rc=None, timeout=1)
    watch_for(f"node {n} to answer", lambda: lab.ashlar("status", node=n, rc=None)[0] == 0, 20)
    status = lab.json("status", node=n)
    if status["state"] != "starting" or "volumes" in status or len(status["raft"]["voters"]) != 3:
        fail(f"status: {status}")
    for question in (["volume", "list"], ["volume", "show", "v"], ["node", "list"], ["can-stop", "node2"], ["events"]):
        rc, out, err = lab.ashlar(*question, node=n, rc=None)
        if rc != 6 or "does not know yet" not in err:
            fail(f"{question}: exit {rc}\n{out}{err}")
    items = lab.json("health", node=n)["items"]
    if [i["code"] for i in items] != ["RAFT_MINORITY"] or "?" in json.dumps(items):
        fail(f"health: {items}")
    if lab.ashlar("cluster", "recover", node=n, rc=None)[0] != 6:
        fail("cluster recover does not say that there is no leader")


for r in range(20 if LONG else 3):
    order, back = [1, 2, 3], [1, 2, 3]
    rng.shuffle(order)
    rng.shuffle(back)
    history = History(lab, "v", ["1", "2", "3"], blocks=rng.choice([64, 256, 1024]), seed=seed * 100 + r + 1)
    time.sleep(rng.uniform(0.5, 2))  # how long the load runs before
    words = stop(order)
    step(f"round {r + 1}: {', '.join(words)}; start {back}")
    delays = start(back)
    print(f"  delays {delays}", flush=True)
    lab.in_sync()
    history.finish()
    lab.in_sync()
step("all are killed; node 2 is alone")
for n in (1, 2, 3):
    lab.do("kill", n)
alone(2)
for n in (1, 3):
    lab.do("start", n)
lab.in_sync()
lab.done()
