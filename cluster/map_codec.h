/* SPDX-License-Identifier: Apache-2.0 */
/* Field codecs of map records, shared by deltas, commands and snapshots, so that each record has one
 * layout (specified in map.h). Readers validate what everybody relies on (sizes, counts, powers of
 * two) and set r->bad; meaning beyond that is the state's business. Internal to cluster/. */
#pragma once

#include "cluster/map.h"

void map_uuid_write(struct writer *w, const struct uuid *u);
void map_uuid_read(struct reader *r, struct uuid *u);
void map_node_write(struct writer *w, const struct map_node *n);
void map_node_read(struct reader *r, struct map_node *n);
/* What deltas and snapshots add to it; commands about nodes do not carry it. */
void map_maintenance_write(struct writer *w, const struct map_node *n);
void map_maintenance_read(struct reader *r, struct map_node *n);
void map_group_write(struct writer *w, const struct map_group *g);
void map_group_read(struct reader *r, struct map_group *g);
/* The fields, without the object array. `strict` is for records of a map, not for wishes in commands. */
void map_volume_write(struct writer *w, const struct map_volume *v);
void map_volume_read(struct reader *r, struct map_volume *v, bool strict);
/* Without the id. */
void map_object_write(struct writer *w, const struct map_object *o);
void map_object_read(struct reader *r, struct map_object *o);
/* Without its times: deltas and snapshots add what they carry of them. */
void map_attachment_write(struct writer *w, const struct map_attachment *a);
void map_attachment_read(struct reader *r, struct map_attachment *a);

/* Find or make; the id is set, the rest zero when made. Grow: new objects have an id and no members. */
struct map_node *map_node_put(struct map *m, uint16_t id);
struct map_group *map_group_put(struct map *m, uint16_t id);
struct map_volume *map_volume_put(struct map *m, uint32_t id);
struct map_attachment *map_attachment_put(struct map *m, uint32_t id);
void map_volume_grow(struct map_volume *v, uint32_t objects);
void map_volume_drop(struct map *m, struct map_volume *v);
void map_attachment_drop(struct map *m, struct map_attachment *a);

/* All records of one kind, ascending by id: what is encoded must not depend on hash order. malloc'ed. */
struct map_node **map_nodes_sorted(const struct map *m, size_t *count);
struct map_group **map_groups_sorted(const struct map *m, size_t *count);
struct map_volume **map_volumes_sorted(const struct map *m, size_t *count);
struct map_attachment **map_attachments_sorted(const struct map *m, size_t *count);
