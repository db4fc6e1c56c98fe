/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes tell each other who there is. A node that was away hears of nothing before a leader reaches it; if
 * that leader joined meanwhile, neither can reach the other: the lower number dials, and does not know the
 * higher one. So whoever connects is told the nodes of our map, and again when they change. It is a hint of
 * where to dial; who answers there has to prove it. */
#include "cluster/control_impl.h"
#include "cluster/map_codec.h"

#include <stdlib.h>

static void encode(const struct map *m, struct writer *w)
{
	struct control_nodes *list = xcalloc(1, sizeof(*list));
	size_t count;
	struct map_node **n = map_nodes_sorted(m, &count);

	list->version = m->version;
	for (size_t i = 0; i < count && list->count < ARRAY_LEN(list->node); i++) {
		struct control_node *out = &list->node[list->count];

		if (n[i]->state != NODE_ACTIVE)
			continue;
		out->number = n[i]->id;
		out->uuid = n[i]->uuid;
		memcpy(out->address, n[i]->address, sizeof(out->address));
		list->count++;
	}
	control_nodes_encode(list, w);
	free(n);
	free(list);
}

static uint64_t newest(const struct map *m)
{
	uint64_t changed = 0;

	for (struct hnode *h = hmap_walk(&m->nodes, NULL); h; h = hmap_walk(&m->nodes, h))
		changed = MAX(changed, container_of(h, struct map_node, by_id)->changed);
	return changed;
}

void control_nodes_tell(struct control *c, struct peer *p)
{
	struct writer w = writer_init_heap();

	if (!state_map(c->state)->nodes.count)
		return;
	encode(state_map(c->state), &w);
	if (!conn_full(p->conn)) /* then it is told at the next change, or connection */
		conn_send(p->conn, OP_NODES, 0, w.data, (uint32_t)w.len, NULL, 0);
	writer_free(&w);
}

void control_nodes_news(struct control *c)
{
	uint64_t changed = newest(state_map(c->state));
	struct peer *p;

	if (changed == c->nodes_told)
		return;
	c->nodes_told = changed;
	list_for_each(p, &c->peers, link) control_nodes_tell(c, p);
}

void control_on_nodes(struct control *c, struct peer *p, const struct frame *f)
{
	struct reader r = reader_init(f->body, f->body_len);
	struct control_nodes *list = xcalloc(1, sizeof(*list));

	if (control_nodes_decode(&r, list))
		conn_close(p->conn, -ERR_PROTOCOL);
	else if (c->cfg.hooks->nodes && list->version > state_map(c->state)->version)
		c->cfg.hooks->nodes(c->cfg.ctx, list);
	free(list);
}
