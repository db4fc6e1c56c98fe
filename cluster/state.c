/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine: dispatch, bookkeeping of changes, and what only operators see (tokens,
 * settings, events). Everything here must give the same result on every node for the same log: no
 * clock (time comes in the command), no randomness, no walk in hash order that has an effect. */
#include "cluster/state_impl.h"
#include "node/base/hash.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct state *state_create(void)
{
	struct state *s = xcalloc(1, sizeof(*s));

	map_init(&s->map);
	s->next_job = 1;
	state_limits_update(s);
	return s;
}

void state_destroy(struct state *s)
{
	map_fini(&s->map);
	free(s);
}

const struct map *state_map(const struct state *s)
{
	return &s->map;
}

unsigned state_recoveries(const struct state *s)
{
	return s->recoveries;
}

const char *state_cluster_name(const struct state *s)
{
	return s->name;
}

int state_refuse(struct command_result *out, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(out->text, sizeof(out->text), fmt, ap);
	va_end(ap);
	return code;
}

void state_event_add(struct state *s, uint8_t severity, const char *code, const char *fmt, ...)
{
	struct state_event *e = &s->event[s->events++ % STATE_EVENTS];
	va_list ap;

	memset(e, 0, sizeof(*e));
	e->index = s->index;
	e->time_ms = s->time_ms;
	e->severity = severity;
	snprintf(e->code, sizeof(e->code), "%s", code);
	snprintf(e->actor, sizeof(e->actor), "%s", s->actor);
	va_start(ap, fmt);
	vsnprintf(e->text, sizeof(e->text), fmt, ap);
	va_end(ap);
}

unsigned state_events(const struct state *s, struct state_event *out, unsigned max)
{
	unsigned n = (unsigned)MIN((uint64_t)max, MIN(s->events, (uint64_t)STATE_EVENTS));

	for (unsigned i = 0; i < n; i++)
		out[i] = s->event[(s->events - 1 - i) % STATE_EVENTS];
	return n;
}

static void tell(struct state *s, enum map_record kind, uint64_t id)
{
	s->map.version = s->index;
	if (s->changed)
		s->changed(s->arg, kind, id);
}

void state_node_changed(struct state *s, struct map_node *n)
{
	n->changed = s->index;
	tell(s, MAP_REC_NODE, n->id);
}

void state_group_changed(struct state *s, struct map_group *g)
{
	g->changed = s->index;
	tell(s, MAP_REC_GROUP, g->id);
}

void state_volume_changed(struct state *s, struct map_volume *v)
{
	v->changed = s->index;
	tell(s, MAP_REC_VOLUME, v->id);
}

void state_object_changed(struct state *s, struct map_object *o)
{
	o->changed = s->index;
	map_volume(&s->map, object_volume(o->id))->objects_changed = s->index;
	tell(s, MAP_REC_OBJECT, o->id);
}

void state_limits_changed(struct state *s)
{
	s->map.limits.changed = s->index;
	tell(s, MAP_REC_LIMITS, 0);
}

void state_attachment_changed(struct state *s, struct map_attachment *a)
{
	a->changed = s->index;
	tell(s, MAP_REC_ATTACHMENT, a->id);
}

/* Remembered for deltas; a subscriber older than the oldest one remembered gets everything. */
void state_gone(struct state *s, enum map_record kind, uint32_t id)
{
	if (s->gone_count == STATE_GONE) {
		unsigned half = STATE_GONE / 2;

		s->floor = MAX(s->floor, s->gone_index[half - 1]);
		s->gone_count -= half;
		memmove(s->gone, s->gone + half, s->gone_count * sizeof(s->gone[0]));
		memmove(s->gone_index, s->gone_index + half,
			s->gone_count * sizeof(s->gone_index[0]));
	}
	s->gone[s->gone_count] = (uint64_t)kind << 32 | id;
	s->gone_index[s->gone_count++] = s->index;
	tell(s, kind, id);
}

void state_delta(const struct state *s, uint64_t from, struct writer *w)
{
	unsigned first = 0;

	if (from < s->floor)
		from = 0;
	while (first < s->gone_count && s->gone_index[first] <= from)
		first++;
	map_delta_encode(&s->map, from, s->gone + first, s->gone_count - first, w);
}

uint64_t state_digest(const struct state *s)
{
	struct writer w = writer_init_heap();
	uint64_t digest;

	state_snapshot(s, &w);
	digest = hash_xxh3(w.data, w.len, 0);
	writer_free(&w);
	return digest;
}

static bool alnum(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool state_name_ok(const char *name)
{
	struct uuid u;

	if (!alnum(name[0]) || strlen(name) > NAME_MAX_LEN || !uuid_parse(name, &u))
		return false;
	for (const char *p = name; *p; p++)
		if (!alnum(*p) && *p != '.' && *p != '_' && *p != '-')
			return false;
	return true;
}

/* Tokens. */

static int token_find(const struct state *s, const char *sha256)
{
	for (unsigned i = 0; i < s->token_count; i++)
		if (!strcmp(s->token[i].sha256, sha256))
			return (int)i;
	return -1;
}

static void token_drop(struct state *s, unsigned i)
{
	s->token_count--;
	memmove(&s->token[i], &s->token[i + 1], (s->token_count - i) * sizeof(s->token[0]));
	memset(&s->token[s->token_count], 0, sizeof(s->token[0]));
}

bool state_token_valid(const struct state *s, const char *sha256_hex, uint64_t now_ms)
{
	int i = token_find(s, sha256_hex);

	return i >= 0 && s->token[i].expires_ms > now_ms;
}

int state_token_take(struct state *s, const char *sha256, struct command_result *out)
{
	int i = token_find(s, sha256);
	bool expired = i >= 0 && s->token[i].expires_ms <= s->time_ms;

	if (i >= 0)
		token_drop(s, (unsigned)i);
	if (i < 0)
		return state_refuse(out, -ERR_AUTH,
				    "the invitation is unknown or was used already: make a new "
				    "one with `ashlar node invite`");
	if (expired)
		return state_refuse(out, -ERR_AUTH,
				    "the invitation ran out: make a new one with "
				    "`ashlar node invite`");
	return 0;
}

static int token_add(struct state *s, const struct command *c, struct command_result *out)
{
	if (strlen(c->token.sha256) != 64 || strspn(c->token.sha256, "0123456789abcdef") != 64)
		return state_refuse(out, -ERR_INVALID,
				    "an invitation is stored as 64 lower-case hex digits");
	if (token_find(s, c->token.sha256) >= 0)
		return 0;
	for (unsigned i = s->token_count; i-- > 0;)
		if (s->token[i].expires_ms <= s->time_ms)
			token_drop(s, i);
	if (s->token_count == STATE_TOKENS)
		return state_refuse(out, -ERR_LIMIT,
				    "%u invitations are open: use one or wait until one "
				    "runs out",
				    STATE_TOKENS);
	memcpy(s->token[s->token_count].sha256, c->token.sha256, sizeof(c->token.sha256));
	s->token[s->token_count++].expires_ms = c->token.expires_ms;
	return 0;
}

/* Settings: kept sorted, so that the snapshot does not depend on the order of arrival. */

const char *state_setting(const struct state *s, const char *key)
{
	for (unsigned i = 0; i < s->setting_count; i++)
		if (!strcmp(s->setting[i].key, key))
			return s->setting[i].value;
	return NULL;
}

/* What this version knows of a setting it reads; others are kept for those that know them. */
static int setting_check(const char *key, const char *value, struct command_result *out)
{
	const struct setting_rule *r = setting_rule(key);
	uint32_t number;

	if (!value[0] || !r || !setting_parse(r, value, &number))
		return 0;
	return state_refuse(out, -ERR_INVALID, "setting %s: \"%.40s\" is not a number from %u to %u", key,
			    value, r->min, r->max);
}

static int setting_set(struct state *s, const struct command *c, struct command_result *out)
{
	const char *key = c->setting.key;
	unsigned i = 0;
	bool found;

	if (!state_name_ok(key))
		return state_refuse(out, -ERR_INVALID, "setting \"%s\": the key is not valid: %s",
				    key, NAME_RULE);
	if (setting_check(key, c->setting.value, out))
		return -ERR_INVALID;
	while (i < s->setting_count && strcmp(s->setting[i].key, key) < 0)
		i++;
	found = i < s->setting_count && !strcmp(s->setting[i].key, key);
	if (!c->setting.value[0]) { /* unset */
		if (!found)
			return 0;
		s->setting_count--;
		memmove(&s->setting[i], &s->setting[i + 1],
			(s->setting_count - i) * sizeof(s->setting[0]));
	} else {
		if (!found && s->setting_count == STATE_SETTINGS)
			return state_refuse(out, -ERR_LIMIT,
					    "there are %u settings already: unset one first",
					    STATE_SETTINGS);
		if (!found) {
			memmove(&s->setting[i + 1], &s->setting[i],
				(s->setting_count - i) * sizeof(s->setting[0]));
			s->setting_count++;
		}
		memset(&s->setting[i], 0, sizeof(s->setting[i]));
		snprintf(s->setting[i].key, sizeof(s->setting[i].key), "%s", key);
		snprintf(s->setting[i].value, sizeof(s->setting[i].value), "%s", c->setting.value);
	}
	if (state_limits_update(s))
		state_limits_changed(s);
	state_event_add(s, 0, "SETTING", "%s = \"%s\"", key, c->setting.value);
	return 0;
}

static int event_add(struct state *s, const struct command *c, struct command_result *out)
{
	if (c->event.severity > 2 || !c->event.code[0])
		return state_refuse(out, -ERR_INVALID,
				    "an event needs a code and a severity of 0 to 2");
	state_event_add(s, c->event.severity, c->event.code, "%s", c->event.text);
	return 0;
}

static int dispatch(struct state *s, const struct command *c, struct command_result *out)
{
	if (c->kind != CMD_CLUSTER_INIT && uuid_is_nil(&s->map.cluster))
		return state_refuse(out, -ERR_UNCLAIMED,
				    "there is no cluster yet: run `ashlar cluster init`");
	switch ((enum command_kind)c->kind) {
	case CMD_CLUSTER_INIT:
		return state_cluster_init(s, c, out);
	case CMD_NODE_ADD:
		return state_node_add(s, c, out);
	case CMD_NODE_START:
		return state_node_start(s, c, out);
	case CMD_NODE_STATE:
		return state_node_state(s, c, out);
	case CMD_TOKEN_ADD:
		return token_add(s, c, out);
	case CMD_TOKEN_USE:
		return state_token_take(s, c->token.sha256, out);
	case CMD_GROUP_ADD:
		return state_group_add(s, c, out);
	case CMD_GROUP_STATE:
		return state_group_state(s, c, out);
	case CMD_REGROUP:
		return state_regroup(s, c, out);
	case CMD_VOLUME_CREATE:
		return state_volume_create(s, c, out);
	case CMD_VOLUME_RESIZE:
		return state_volume_resize(s, c, out);
	case CMD_VOLUME_DELETE:
		return state_volume_delete(s, c, out);
	case CMD_VOLUME_SET:
		return state_volume_set(s, c, out);
	case CMD_ATTACH:
		return state_attach(s, c, out);
	case CMD_DETACH:
		return state_detach(s, c, out);
	case CMD_OBJECT:
		return state_object_changes(s, c, out);
	case CMD_SETTING:
		return setting_set(s, c, out);
	case CMD_EVENT:
		return event_add(s, c, out);
	case CMD_RENEW:
		return state_renew(s, c, out);
	case CMD_FENCE:
		return state_fence(s, c, out);
	case CMD_MAINTENANCE:
		return state_maintenance(s, c, out);
	case CMD_JOB:
		return state_job_change(s, c, out);
	case CMD_NODE_REMOVE:
		return state_node_remove(s, c, out);
	}
	return -ERR_VERSION;
}

void state_apply(struct state *s, uint64_t index, const void *cmd, size_t len,
		 struct command_result *out,
		 void (*changed)(void *arg, enum map_record kind, uint64_t id), void *arg)
{
	struct reader r = reader_init(cmd, len);
	struct command *c = xcalloc(1, sizeof(*c));
	void *arena = NULL;
	int rc;

	memset(out, 0, sizeof(*out));
	out->index = index;
	rc = command_decode(&r, c, &arena);
	if (rc) {
		state_refuse(out, rc,
			     "this version (%s) cannot read the command: upgrade all nodes to the "
			     "version that sent it",
			     ASHLAR_VERSION);
	} else {
		s->index = index;
		s->time_ms = c->time_ms;
		s->actor = c->actor;
		s->changed = changed;
		s->arg = arg;
		rc = dispatch(s, c, out);
		s->changed = NULL;
		s->actor = "";
	}
	out->code = rc;
	free(arena);
	free(c);
}
