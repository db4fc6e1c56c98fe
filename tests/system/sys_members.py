#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who belongs to the cluster. A voter that stays away is replaced by a standby and is one when it is back; its
successor has the key of the CA."""
import sys, os
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
lab.done()
