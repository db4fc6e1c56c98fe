/* SPDX-License-Identifier: Apache-2.0 */
/* Requests in: who asks, what they may ask, and the route to who answers. Must never let a request that
 * changes something through on a weaker identity than its route wants. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "node/admin_impl.h"

#define REQUESTS_MAX        64u
#define TLS_CONNECTIONS_MAX 256u
#define BODY_MAX            (1u << 20)
#define IDLE_TIMEOUT_S      60u
#define TICK_US             5000000u

static const struct route routes[] = {
	{"GET", "/v1/status", RIGHT_READ, true, admin_get_status},
	{"GET", "/v1/health", RIGHT_READ, true, admin_get_health},
	{"GET", "/v1/nodes", RIGHT_READ, false, admin_get_nodes},
	{"GET", "/v1/nodes/*", RIGHT_READ, false, admin_get_node},
	{"GET", "/v1/diskgroups", RIGHT_READ, false, admin_get_diskgroups},
	{"GET", "/v1/diskgroups/*", RIGHT_READ, false, admin_get_diskgroup},
	{"GET", "/v1/volumes", RIGHT_READ, false, admin_get_volumes},
	{"GET", "/v1/volumes/*", RIGHT_READ, false, admin_get_volume},
	{"GET", "/v1/jobs", RIGHT_READ, false, admin_get_jobs},
	{"GET", "/v1/jobs/*", RIGHT_READ, false, admin_get_job},
	{"POST", "/v1/jobs", RIGHT_ADMIN, false, admin_start_job},
	{"POST", "/v1/jobs/*/pause", RIGHT_ADMIN, false, admin_pause_job},
	{"POST", "/v1/jobs/*/resume", RIGHT_ADMIN, false, admin_resume_job},
	{"POST", "/v1/jobs/*/cancel", RIGHT_ADMIN, false, admin_cancel_job},
	{"GET", "/v1/ops", RIGHT_READ, false, admin_get_ops},
	{"GET", "/v1/events", RIGHT_READ, false, admin_get_events},
	{"GET", "/v1/metrics", RIGHT_READ, true, admin_get_metrics},
	{"GET", "/v1/local", RIGHT_READ, true, admin_get_local},
	{"GET", "/v1/local/ops", RIGHT_READ, false, admin_get_local_ops},
	{"GET", "/v1/local/replicas/*", RIGHT_READ, false, admin_get_local_replicas},
	{"GET", "/v1/local/ledgers/*", RIGHT_READ, false, admin_get_local_ledgers},
	{"GET", "/v1/local/ca-key", RIGHT_ADMIN, false, admin_get_ca_key},
	{"GET", "/v1/ca", RIGHT_ANY, false, admin_get_ca},
	{"POST", "/v1/cluster/init", RIGHT_LOCAL, true, admin_init},
	{"POST", "/v1/node/invite", RIGHT_ADMIN, false, admin_invite},
	{"POST", "/v1/node/join-prepare", RIGHT_LOCAL, true, admin_join_prepare},
	{"POST", "/v1/node/join-request", RIGHT_ANY, false, admin_join_request},
	{"POST", "/v1/node/join-finish", RIGHT_LOCAL, true, admin_join_finish},
	{"POST", "/v1/certs", RIGHT_ADMIN, false, admin_sign},
	{"POST", "/v1/diskgroups", RIGHT_ADMIN, false, admin_add_diskgroup},
	{"POST", "/v1/diskgroups/*/flush", RIGHT_ADMIN, false, admin_flush_group},
	{"POST", "/v1/diskgroups/*/verify", RIGHT_ADMIN, false, admin_verify_group},
	{"POST", "/v1/diskgroups/*/scrub", RIGHT_ADMIN, true, admin_scrub_group},
	{"POST", "/v1/diskgroups/*/replace", RIGHT_ADMIN, false, admin_replace_device},
	{"POST", "/v1/volumes", RIGHT_ADMIN, false, admin_create_volume},
	{"PATCH", "/v1/volumes/*", RIGHT_ADMIN, false, admin_patch_volume},
	{"POST", "/v1/volumes/*/resize", RIGHT_ADMIN, false, admin_resize_volume},
	{"DELETE", "/v1/volumes/*", RIGHT_ADMIN, false, admin_delete_volume},
	{"POST", "/v1/volumes/*/detach", RIGHT_ADMIN, false, admin_detach_volume},
	{"POST", "/v1/volumes/*/force", RIGHT_ADMIN, false, admin_force_volume},
	{"POST", "/v1/volumes/*/discard", RIGHT_ADMIN, false, admin_discard_volume},
	{"GET", "/v1/quarantine", RIGHT_READ, false, admin_get_quarantine},
	{"POST", "/v1/local/yield", RIGHT_ADMIN, false, admin_local_yield},
	{"GET", "/v1/can-stop/*", RIGHT_READ, false, admin_can_stop},
	{"GET", "/v1/can-lose/*", RIGHT_READ, false, admin_can_lose},
	{"POST", "/v1/nodes/*/maintenance", RIGHT_ADMIN, false, admin_node_maintenance},
	{"POST", "/v1/nodes/*/remove", RIGHT_ADMIN, false, admin_node_remove},
	{"GET", "/v1/settings", RIGHT_READ, false, admin_get_settings},
	{"PUT", "/v1/settings/*", RIGHT_ADMIN, false, admin_put_setting},
};

/* ---- Routing -----------------------------------------------------------------------------------
 */

/* Segment by segment; "*" takes one non-empty segment, which is copied to *param (malloc'ed). */
static bool match(const char *pattern, const char *path, char **param)
{
	const char *name = NULL;
	size_t name_len = 0;

	while (*pattern && *path) {
		if (*pattern == '*') {
			name = path;
			name_len = strcspn(path, "/");
			if (name_len == 0)
				return false;
			path += name_len;
			pattern++;
		} else if (*pattern++ != *path++) {
			return false;
		}
	}
	if (*pattern || *path)
		return false;
	free(*param);
	*param = name ? strndup(name, name_len) : NULL;
	return true;
}

static bool allowed(const struct route *r, enum admin_who who)
{
	switch (r->right) {
	case RIGHT_ANY:
		return true;
	case RIGHT_READ:
		return who >= WHO_CLIENT;
	case RIGHT_ADMIN:
		return who >= WHO_NODE;
	case RIGHT_LOCAL:
		return who == WHO_ROOT;
	}
	return false;
}

/* A node that runs no cluster can answer little: why, and what to do. */
static void fail_unclaimed(struct areq *q)
{
	const struct identity *id = q->admin->cfg.identity;

	if (id->removed)
		admin_fail(q, -ERR_UNCLAIMED,
			   "this node was removed from cluster %s; to use it again: stop ashlard, "
			   "empty %s, start it and join",
			   id->cluster_name, q->admin->cfg.config->state_dir);
	else if (id->behind > id->recovery)
		admin_fail(q, -ERR_UNCLAIMED,
			   "cluster %s was recovered without this node; with ashlard stopped: "
			   "ashlard recover --follow TOKEN, as the recovery printed it",
			   id->cluster_name);
	else if (id->number)
		admin_fail(q, -ERR_RETRY, "ashlard is still starting; try again in a moment");
	else
		admin_fail(q, -ERR_UNCLAIMED,
			   "this node belongs to no cluster yet: `ashlar cluster init` "
			   "makes one, `ashlar node join TOKEN` joins one");
}

static void dispatch(struct areq *q)
{
	bool known_path = false;

	for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
		const struct route *r = &routes[i];

		if (!match(r->pattern, q->path, &q->param))
			continue;
		known_path = true;
		if (strcmp(r->method, q->method))
			continue;
		if (!allowed(r, q->who))
			admin_fail(q, -ERR_REFUSED, "%s may not %s %s%s", q->actor, q->method, q->path,
				   r->right == RIGHT_LOCAL ? "; only root on the node itself may" : "");
		else if (!q->admin->ops && !r->unclaimed)
			fail_unclaimed(q);
		else if (r->unclaimed || !admin_refused_blank(q))
			r->handle(q);
		return;
	}
	if (known_path)
		admin_fail(q, -ERR_INVALID, "%s is not possible on %s", q->method, q->path);
	else
		admin_fail(q, -ERR_NOT_FOUND, "no such resource: %.200s", q->path);
}

static struct areq *request_new(struct admin *a, const char *method, const char *path,
				const char *query)
{
	struct areq *q = xcalloc(1, sizeof(*q));

	q->admin = a;
	q->method = xstrdup(method);
	q->path = xstrdup(path);
	q->query = xstrdup(query);
	list_init(&q->link);
	list_push_back(&a->requests, &q->link);
	return q;
}

static void start(struct areq *q, const char *body, size_t len)
{
	char err[160];

	if (q->admin->stopping) {
		admin_fail(q, -ERR_CLOSED, "ashlard is stopping");
		return;
	}
	if (len > 0) {
		q->body = json_parse(body, len, err, sizeof(err));
		if (!q->body) {
			admin_fail(q, -ERR_INVALID, "the body is not JSON: %s", err);
			return;
		}
	}
	dispatch(q);
}

/* The certificate of a node is good for as long as it is one of us. */
static bool is_member(const struct admin *a, const char *identity)
{
	const struct map *m = admin_map(a);
	const struct map_node *n = m ? map_holder_node(m, identity) : NULL;

	return n && (n->state == NODE_ACTIVE || n->state == NODE_JOINING);
}

static enum admin_who who_is(const struct admin *a, const struct http_request *r)
{
	if (r->local)
		return WHO_ROOT;
	if (!strncmp(r->identity, "operator:", 9))
		return WHO_OPERATOR;
	if (!strncmp(r->identity, "node:", 5))
		return is_member(a, r->identity) ? WHO_NODE : WHO_NOBODY;
	if (!strncmp(r->identity, "client:", 7))
		return WHO_CLIENT;
	return WHO_NOBODY;
}

static void on_http(void *ctx, struct http_request *r)
{
	struct areq *q = request_new(ctx, r->method, r->path, r->query);

	q->http = r;
	q->who = who_is(ctx, r);
	snprintf(q->actor, sizeof(q->actor), "%.63s",
		 r->local         ? "root"
		 : r->identity[0] ? r->identity
				  : "anonymous");
	start(q, r->body, r->body_len);
}

void admin_call(struct admin *a, uint64_t ticket, const char *method, const char *path,
		const char *json)
{
	const char *query = strchr(path, '?');
	struct areq *q = request_new(a, method, path, query ? query + 1 : "");

	if (query)
		q->path[query - path] = '\0';
	q->ticket = ticket;
	q->who = WHO_NODE;
	snprintf(q->actor, sizeof(q->actor), "node");
	start(q, json, json ? strlen(json) : 0);
}

void admin_request(struct admin *a, const char *method, const char *path, const char *json,
		   void (*done)(void *arg, int status, const char *text), void *arg)
{
	struct areq *q = request_new(a, method, path, "");

	q->done = done;
	q->done_arg = arg;
	q->who = WHO_ROOT;
	snprintf(q->actor, sizeof(q->actor), "standalone");
	start(q, json, json ? strlen(json) : 0);
}

/* ---- What handlers ask --------------------------------------------------------------------------
 */

uint64_t wall_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

const struct map *admin_map(const struct admin *a)
{
	return a->ops ? state_map(a->ops->state(a->cluster)) : NULL;
}

bool admin_query_u32(struct areq *q, const char *key, uint32_t dflt, uint32_t *out)
{
	size_t len = strlen(key);
	unsigned long long n;
	char *end;

	*out = dflt;
	for (const char *p = q->query; p; p = strchr(p, '&')) {
		p += *p == '&';
		if (strncmp(p, key, len) || p[len] != '=')
			continue;
		n = strtoull(p + len + 1, &end, 10);
		if (p[len + 1] < '0' || p[len + 1] > '9' || (*end && *end != '&') || n > UINT32_MAX) {
			admin_fail(q, -ERR_INVALID, "%s= takes a whole number up to %u", key, UINT32_MAX);
			return false;
		}
		*out = (uint32_t)n;
	}
	return true;
}

void admin_command(const struct areq *q, uint16_t kind, struct command *out)
{
	memset(out, 0, sizeof(*out));
	out->kind = kind;
	out->time_ms = wall_ms();
	snprintf(out->actor, sizeof(out->actor), "%s", q->actor);
}

/* ---- Life --------------------------------------------------------------------------------------
 */

/* Keeps "since" honest between questions. */
static void on_tick(struct timer *t)
{
	struct admin *a = container_of(t, struct admin, tick);
	struct health_report *r;

	timer_set(t, TICK_US);
	if (!a->ops)
		return;
	admin_report(a);
	admin_scrub_tick(a);
	admin_ca_tick(a);
	r = xcalloc(1, sizeof(*r));
	facts_health(a, r);
	free(r);
}

struct admin *admin_create(const struct admin_config *cfg)
{
	struct admin *a = xcalloc(1, sizeof(*a));
	const struct http_config http = {.loop = cfg->loop,
					 .handle = on_http,
					 .ctx = a,
					 .body_max = BODY_MAX,
					 .requests_max = REQUESTS_MAX,
					 .tls_connections_max = TLS_CONNECTIONS_MAX,
					 .idle_timeout_s = IDLE_TIMEOUT_S};

	a->cfg = *cfg;
	list_init(&a->requests);
	list_init(&a->facts_waiters);
	a->started_us = loop_mono_us(cfg->loop);
	a->http = http_create(&http);
	timer_init(&a->tick, cfg->loop, on_tick);
	timer_set(&a->tick, TICK_US);
	timer_init(&a->owners, cfg->loop, admin_owners_look);
	return a;
}

void admin_set_cluster(struct admin *a, const struct admin_cluster_ops *ops, void *cluster)
{
	a->ops = ops;
	a->cluster = cluster;
	a->crashed = !birth_stop_taken(a->cfg.config->state_dir) && a->cfg.identity->incarnation > 1;
}

int admin_listen_unix(struct admin *a)
{
	return http_listen_unix(a->http, a->cfg.config->admin_socket);
}

int admin_listen_tls(struct admin *a, struct tls_ctx *tls)
{
	return http_listen_tls(a->http, tls, a->cfg.config->admin_listen);
}

uint16_t admin_tls_port(const struct admin *a)
{
	return http_tls_port(a->http);
}

void admin_stop(struct admin *a)
{
	struct areq *q;

	a->stopping = true;
	timer_cancel(&a->tick);
	timer_cancel(&a->owners);
	http_unlisten(a->http);
	/* Their operations may still be resumed by the cluster on its way down; only the answer
	 * goes now. */
	list_for_each(q, &a->requests, link) admin_say_stopping(q);
}

void admin_destroy(struct admin *a)
{
	struct areq *q, *next;

	if (!a)
		return;
	CHECK(a->stopping);
	a->ops = NULL;
	list_for_each_safe(q, next, &a->requests, link) admin_request_free(q);
	timer_fini(&a->tick);
	timer_fini(&a->owners);
	facts_free(a);
	free(a->report);
	free(a->ca_fetch);
	http_destroy(a->http);
	free(a);
}
