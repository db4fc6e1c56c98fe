# SPDX-License-Identifier: Apache-2.0
"""Which disks of a host make the disk groups that the inventory asks for. Pure: takes what lsblk said
and returns choices and refusals, so that it can be tested without disks."""
import json

GB = 10 ** 9


def ours(disk):
    """Partitioned by an earlier run: `diskgroup add` still checks whose superblocks are on it."""
    children = disk.get("children") or []
    return bool(children) and all(c.get("partlabel") in ("ashlar-metadata", "ashlar-data") for c in children)


def busy(disk):
    """Why a disk may not be taken, or ''."""
    if ours(disk):
        return ""
    mounts = [m for m in disk.get("mountpoints") or [] if m]
    if mounts:
        return "mounted at " + ", ".join(mounts)
    for child in disk.get("children") or []:
        return "has %s (%s)" % (child.get("name"), busy(child) or child.get("type"))
    if disk.get("fstype"):
        return "carries %s" % disk["fstype"]
    if disk.get("pttype"):
        return "has a %s partition table" % disk["pttype"]
    if disk.get("ro"):
        return "is read-only"
    return ""


def mounted(disk):
    return any(m for m in disk.get("mountpoints") or []) or any(mounted(c) for c in disk.get("children") or [])


def stable_path(disk, links):
    """The by-id name of a disk: WWN and NVMe EUI names last, so that people see a serial."""
    names = sorted((p for p, target in links.items() if target == disk["path"]),
                   key=lambda p: (p.rsplit("/", 1)[1].startswith(("wwn-", "nvme-eui", "nvme-nvme", "scsi-")), p))
    return names[0] if names else disk["path"]


def matches(disk, want):
    size = int(disk.get("size") or 0)
    return (("min_gb" not in want or size >= want["min_gb"] * GB)
            and ("max_gb" not in want or size <= want["max_gb"] * GB)
            and ("rotational" not in want or bool(disk.get("rota")) == bool(want["rotational"]))
            and ("model" not in want or want["model"] in (disk.get("model") or "")))


class Chooser:
    def __init__(self, disks, links, allow_wipe):
        self.disks = [d for d in disks if d.get("type") == "disk"]
        self.links, self.allow_wipe = links, set(allow_wipe)
        self.taken, self.errors = set(), []

    def take(self, disk):
        self.taken.add(disk["path"])
        why = busy(disk)
        wipe = bool(why) and disk.get("serial") in self.allow_wipe and not mounted(disk) and not disk.get("ro")
        if why and not wipe:
            self.errors.append("%s (serial %s) %s; release it, or list its serial in ashlar_allow_wipe"
                               % (disk["path"], disk.get("serial"), why))
        return {"path": stable_path(disk, self.links), "wipe": wipe}

    def by_serial(self, serial):
        found = [d for d in self.disks if d.get("serial") == serial]
        if not found:
            self.errors.append("no disk has the serial %s" % serial)
            return []
        if found[0]["path"] in self.taken:
            self.errors.append("the disk with serial %s is asked for twice" % serial)
            return []
        return [self.take(found[0])]

    def pick(self, want):
        want = {k: v for k, v in want.items() if v is not None}
        if "path" in want:
            return [{"path": want["path"], "wipe": False}]
        serials = want.get("serials", []) + ([want["serial"]] if "serial" in want else [])
        if serials:
            return [x for s in serials for x in self.by_serial(s)]
        count = want.get("count")
        if not count:
            self.errors.append("give serial, serials, path, or a count of disks to choose: %s" % want)
            return []
        # Chosen by kind: only disks that nobody uses come into question at all.
        free = sorted((d for d in self.disks if matches(d, want) and d["path"] not in self.taken and not busy(d)),
                      key=lambda d: d.get("serial") or d["path"])
        if len(free) != count:
            self.errors.append("%d free disks match %s, and exactly %d are asked for; narrow it down or name serials"
                               % (len(free), {k: v for k, v in want.items() if k != "count"}, count))
            return []
        return [self.take(d) for d in free]


def group_devices(groups_json, node):
    """Paths of the devices that this node's groups have already."""
    try:
        groups = json.loads(groups_json)["diskgroups"]
    except (ValueError, KeyError, TypeError):
        return []
    return [[d["path"] for d in g.get("devices") or []] for g in groups if g.get("node") == node]


def disk_of(path, disks, links):
    """The whole disk behind a path that may be a by-id name or a partition."""
    target = links.get(path, path)
    for d in disks:
        if d["path"] == target or any(c.get("path") == target for c in d.get("children") or []):
            return d["path"]
    return target


def choose(groups, disks, links, groups_json="", node="", allow_wipe=()):
    """{'groups': [{cache, capacity, metadata_size_gib, wipe}], 'errors': [sentence]}. Groups that exist
    already are left out: theirs are the first ones of the list, in order."""
    existing = group_devices(groups_json, node)
    chooser = Chooser(disks, links, allow_wipe)
    for paths in existing:
        chooser.taken.update(disk_of(p, disks, links) for p in paths)
    out = []
    for number, group in enumerate(groups[len(existing):], len(existing) + 1):
        before = len(chooser.errors)
        cache = chooser.pick(group["cache"]) if group.get("cache") else []
        capacity = chooser.pick(group["capacity"])
        if len(cache) > 1:
            chooser.errors.append("group %d: one cache disk, not %d" % (number, len(cache)))
        if len(chooser.errors) == before and not 1 <= len(capacity) <= 7:
            chooser.errors.append("group %d: 1 to 7 capacity disks, not %d" % (number, len(capacity)))
        if group.get("metadata_size_gib") and any("/by-id/" not in d["path"] for d in capacity):
            chooser.errors.append("group %d: a metadata partition needs disks with names in /dev/disk/by-id" % number)
        out.append({"cache": cache[0]["path"] if cache else "", "capacity": [d["path"] for d in capacity],
                    "metadata_size_gib": group.get("metadata_size_gib") or 0, "number": number,
                    "wipe": any(d["wipe"] for d in cache + capacity)})
    return {"groups": out, "errors": chooser.errors}


class FilterModule:
    def filters(self):
        return {"ashlar_choose_disks": choose}
