#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real files: an ext4 image of this host's /usr/share/doc (long: and of /usr/lib), imported twice into two
volumes. The second import costs next to nothing, and both are what they were. Duplicates are found within a
disk group: with two nodes and two copies each group has all of the data."""
import shutil, tempfile
from kit import *

SIZE = "8G" if LONG else "512M"
FROM = ["/usr/share/doc", "/usr/lib"] if LONG else ["/usr/share/doc/" + d for d in sorted(os.listdir("/usr/share/doc"))[::3]]
PARTS = ["data_used_bytes", "padding_bytes", "summary_bytes", "dead_bytes"]

lab = Lab("real", "--nodes", "2", *([] if LONG else ["--ram"]), "--size", "8G" if LONG else "512M",
          "--cache", "1G" if LONG else "128M", timeout=300)


def used():
    lab.ashlar("diskgroup", "flush", "--all")
    watch_for("what was stored raw under load to be reduced", lambda: not any(
        lab.json("diskgroup", "show", g)["stats"]["reduce_pending"] for g in (1, 2)), 1200)
    s = lab.json("status")["capacity"]
    return sum(s[k] for k in PARTS) + s["metadata_used_bytes"]


with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
    image = f"{d}/image.ext4"
    step("an ext4 image of real files")
    os.mkdir(f"{d}/tree")
    for path in FROM:
        sh("cp", "-a", "--reflink=auto", path, f"{d}/tree/", timeout=1800)
    sh("truncate", "-s", SIZE, image)
    sh("mkfs.ext4", "-q", "-d", f"{d}/tree", image, timeout=1800)
    shutil.rmtree(f"{d}/tree")
    taken = os.stat(image).st_blocks * 512
    whole = int(sh("sh", "-c", f"lz4 -c {image} | wc -c", timeout=1800))
    cost, raw = [], used()
    for name in ("one", "two"):
        step(f"import into {name}")
        lab.ashlar("volume", "create", name, "--size", SIZE, "--copies", "2", "--compression", "lz4", "--dedup", "on")
        lab.in_sync()
        sh("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, lab.uri(1, name), timeout=3600)
        now = used()
        cost.append(now - raw)
        raw = now
    space = lab.json("volume", "show", "one")["space"]
    stored = cost[0] / 2
    print(f"image {taken >> 10} KiB of data; lz4 makes one stream of {whole >> 10} KiB ({taken / whole:.2f} : 1); here it takes "
          f"{stored / 1024:.0f} KiB raw per copy ({taken / stored:.2f} : 1), all overhead included; the second import "
          f"{cost[1] / 2048:.0f} KiB more, {100 * cost[1] / cost[0]:.2f} %", flush=True)
    if cost[1] > 0.05 * cost[0]:
        fail("the second import costs more than 5 %")
    if not space["dedup_saved_bytes"] or space["frees_exact"] and space["frees_if_deleted_bytes"] == space["stored_bytes"]:
        fail("a volume that shares all of its blocks would free all of them")
    step("both are the image, from both nodes")
    for node, name in ((1, "one"), (2, "two")):
        sh("qemu-img", "compare", "-f", "raw", "-F", "raw", image, lab.uri(node, name), timeout=3600)
    lab.ashlar("diskgroup", "verify", "--all")
    step("the first is deleted: the second stays whole")
    lab.ashlar("volume", "delete", "one", "--yes")
    watch_for("its rows to go", lambda: len([r for r in lab.json("diskgroup", "show", 1)["volumes"] if r.get("volume")]) == 1, 300)
    sh("qemu-img", "compare", "-f", "raw", "-F", "raw", image, lab.uri(1, "two"), timeout=3600)
    lab.ashlar("diskgroup", "verify", "--all")
lab.done()
