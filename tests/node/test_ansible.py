#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Ansible role: the choice of disks as a pure function; and, where the tools are installed, syntax,
ansible-lint and yamllint.   test_ansible.py SOURCE-DIR [--lint]"""
import copy, os, shutil, subprocess, sys

ROOT = os.path.join(sys.argv[1], "ansible")
sys.path.insert(0, os.path.join(ROOT, "roles/ashlar/filter_plugins"))
sys.dont_write_bytecode = True
import ashlar_disks  # noqa: E402

DISKS = [
    {"name": "sda", "path": "/dev/sda", "type": "disk", "size": 480 * 10**9, "rota": False, "serial": "BOOT", "pttype": "gpt",
     "children": [{"name": "sda1", "path": "/dev/sda1", "type": "part", "mountpoints": ["/"]}]},
    {"name": "sdb", "path": "/dev/sdb", "type": "disk", "size": 960 * 10**9, "rota": False, "serial": "B"},
    {"name": "sdc", "path": "/dev/sdc", "type": "disk", "size": 960 * 10**9, "rota": False, "serial": "C"},
    {"name": "sdd", "path": "/dev/sdd", "type": "disk", "size": 960 * 10**9, "rota": False, "serial": "OLD", "fstype": "ext4"},
    {"name": "sde", "path": "/dev/sde", "type": "disk", "size": 8000 * 10**9, "rota": True, "serial": "E"},
    {"name": "nvme0n1", "path": "/dev/nvme0n1", "type": "disk", "size": 400 * 10**9, "rota": False, "serial": "N"},
    {"name": "sr0", "path": "/dev/sr0", "type": "rom", "size": 1, "serial": "ROM"},
]
LINKS = {"/dev/disk/by-id/wwn-0x1": "/dev/sdb", "/dev/disk/by-id/ata-B": "/dev/sdb", "/dev/disk/by-id/ata-C": "/dev/sdc"}


def choose(groups, **more):
    return ashlar_disks.choose(groups, copy.deepcopy(DISKS), LINKS, **more)


def refused(groups, word, **more):
    errors = " ".join(choose(groups, **more)["errors"])
    assert word in errors, f"{groups}: {errors!r} does not say {word!r}"


def test_choice():
    r = choose([{"cache": {"serial": "N"}, "capacity": {"serials": ["B", "C"]}}])
    assert not r["errors"], r
    g = r["groups"][0]
    assert g["cache"] == "/dev/nvme0n1" and g["capacity"] == ["/dev/disk/by-id/ata-B", "/dev/disk/by-id/ata-C"], g
    assert not g["wipe"] and g["number"] == 1
    r = choose([{"capacity": {"min_gb": 900, "max_gb": 1000, "rotational": False, "count": 2}}])
    assert not r["errors"] and len(r["groups"][0]["capacity"]) == 2, r  # the formatted one does not count
    r = choose([{"capacity": {"path": "/srv/file"}}])
    assert r["groups"][0]["capacity"] == ["/srv/file"]


def test_refusals():
    refused([{"capacity": {"serial": "BOOT"}}], "mounted at /")
    refused([{"capacity": {"serial": "BOOT"}}], "mounted", allow_wipe=["BOOT"])  # never the running system
    refused([{"capacity": {"serial": "OLD"}}], "carries ext4")
    refused([{"capacity": {"serial": "GHOST"}}], "no disk has the serial")
    refused([{"capacity": {"serial": "ROM"}}], "no disk has the serial")
    refused([{"cache": {"serial": "B"}, "capacity": {"serial": "B"}}], "twice")
    refused([{"capacity": {"min_gb": 900, "count": 1}}], "exactly 1")
    refused([{"capacity": {"min_gb": 900}}], "count")
    refused([{"cache": {"serials": ["B", "C"]}, "capacity": {"serial": "E"}}], "one cache disk")
    refused([{"capacity": {"serial": "E"}, "metadata_size_gib": 10}], "by-id")


def test_wipe_and_rerun():
    r = choose([{"capacity": {"serial": "OLD"}}], allow_wipe=["OLD"])
    assert not r["errors"] and r["groups"][0]["wipe"], r
    disks = copy.deepcopy(DISKS)
    disks[1].update(pttype="gpt", children=[{"name": "sdb1", "path": "/dev/sdb1", "partlabel": "ashlar-metadata"},
                                            {"name": "sdb2", "path": "/dev/sdb2", "partlabel": "ashlar-data"}])
    r = ashlar_disks.choose([{"capacity": {"serial": "B"}}], disks, LINKS)
    assert not r["errors"], r  # an interrupted run goes on
    existing = '{"diskgroups": [{"node": "n1", "devices": [{"path": "/dev/disk/by-id/ata-B"}]}, {"node": "n2", "devices": []}]}'
    groups = [{"capacity": {"serial": "B"}}, {"capacity": {"serial": "C"}}]
    r = choose(groups, groups_json=existing, node="n1")
    assert not r["errors"] and [g["number"] for g in r["groups"]] == [2], r
    assert choose(groups[:1], groups_json=existing, node="n1") == {"groups": [], "errors": []}
    refused([groups[0], groups[0]], "twice", groups_json=existing, node="n1")


def run(*cmd):
    r = subprocess.run(cmd, cwd=ROOT, capture_output=True, text=True, env=dict(os.environ, NO_COLOR="1"))
    if r.returncode:
        print(f"FAILED: {' '.join(cmd)}\n{r.stdout}{r.stderr}")
        sys.exit(1)


def lint():
    missing = [t for t in ("ansible-playbook", "ansible-lint", "yamllint") if not shutil.which(t)]
    if missing:
        print("not installed:", *missing)
        sys.exit(77)
    for inventory in ("hci", "two-layer"):
        run("ansible-playbook", "-i", f"inventory/{inventory}.yml", "deploy.yml", "--syntax-check")
    run("yamllint", "--strict", "-c", ".yamllint", ".")
    run("ansible-lint", "--offline", "-q")


if sys.argv[2:] == ["--lint"]:
    lint()
else:
    test_choice()
    test_refusals()
    test_wipe_and_rerun()
print("passed")
