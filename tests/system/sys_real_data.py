#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real files: an ext4 image of this host's /usr/share/doc (long: and of /usr/lib), imported twice into two
volumes. The second import costs next to nothing, and both are what they were. Duplicates are found within a
disk group: with two nodes and two copies each group has all of the data. That must not depend on how busy the
machine is: short, two loops take what CPU they can get. `diskgroup flush --reduce` is waited for."""
import shutil, tempfile
from kit import *

SIZE = "8G" if LONG else "512M"
FROM = ["/usr/share/doc", "/usr/lib"] if LONG else ["/usr/share/doc/" + d for d in sorted(os.listdir("/usr/share/doc"))[::3]]
PARTS = ["data_used_bytes", "padding_bytes", "summary_bytes", "dead_bytes"]
WAIT = 3600 if LONG else 600

lab = Lab("real", "--nodes", "2", *([] if LONG else ["--ram"]), "--size", "8G" if LONG else "512M",
          "--cache", "1G" if LONG else "64M", timeout=300)


def used():
    """Of both groups: bytes on the capacity devices, and in the map databases, which have room of their own; blocks."""
    lab.ashlar("diskgroup", "flush", "--all", "--reduce", timeout=WAIT)
    stats = [lab.json("diskgroup", "show", g)["stats"] for g in (1, 2)]
    if any(s["reduce_pending"] for s in stats):
        fail("flush --reduce came back before all was reduced")
    print(f"  stored raw under load {[s['reduce_bypassed_blocks'] for s in stats]} blocks, moved by collecting "
          f"{[s['gc_blocks'] for s in stats]}", flush=True)
    return (sum(s[k] for s in stats for k in PARTS), sum(s["metadata_used_bytes"] for s in stats),
            sum(s["logical_bytes"] for s in stats) // 4096)


def busy():
    """As others who want the CPU."""
    p = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    atexit.register(lambda: p.poll() is None and p.kill())
    return p


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
    loops = [] if LONG else [busy(), busy()]
    before = used()
    data, metadata, blocks = [], [], []
    for name in ("one", "two"):
        step(f"import into {name}")
        lab.ashlar("volume", "create", name, "--size", SIZE, "--copies", "2", "--compression", "lz4", "--dedup", "on")
        lab.in_sync()
        sh("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, lab.uri(1, name), timeout=3600)
        now = used()
        data.append(now[0] - before[0])
        metadata.append(now[1] - before[1])
        blocks.append(now[2] - before[2])
        before = now
    for p in loops:
        p.kill()
        p.wait()
    space = lab.json("volume", "show", "one")["space"]
    stored = data[0] / 2
    print(f"image {taken >> 10} KiB of data; lz4 makes one stream of {whole >> 10} KiB ({taken / whole:.2f} : 1); here it takes "
          f"{stored / 1024:.0f} KiB raw per copy ({taken / stored:.2f} : 1) and {metadata[0] / 2048:.0f} KiB of metadata; the "
          f"second import {data[1] / 2048:.0f} KiB more, {100 * data[1] / data[0]:.2f} %, and {metadata[1] / 2048:.0f} KiB of "
          f"metadata: {100 * (data[1] + metadata[1]) / (data[0] + metadata[0]):.2f} % together", flush=True)
    if blocks[1] != blocks[0]:
        fail(f"the imports are of {blocks} blocks")
    if data[1] > 0.02 * data[0]:
        fail("the second import costs more than 2 % of raw space")
    # An entry in the map; on first sharing also a share and the key by its place. And a table's own overhead.
    if metadata[1] > 128 * blocks[1] + 2 * (256 << 10):
        fail(f"the second import costs {metadata[1] / blocks[1]:.0f} bytes of metadata per block")
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
