/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's settings: few, each with a default that is right for nearly everybody. One that nobody
 * reads is refused: a misspelt key must not look as if it did something. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

void admin_get_settings(struct areq *q)
{
	const struct state *s = q->admin->ops->state(q->admin->cluster);
	struct json *j = json_object_new(), *list = json_array_new();

	for (const struct setting_rule *r = setting_rules; r->key; r++) {
		const char *value = state_setting(s, r->key);
		struct json *x = json_object_new();
		char fallback[16];

		snprintf(fallback, sizeof(fallback), "%u", r->fallback);
		json_put_str(x, "key", r->key);
		json_put_str(x, "value", value ? value : fallback);
		json_put_str(x, "default", fallback);
		json_put_str(x, "what", r->what);
		json_add(list, x);
	}
	json_put(j, "settings", list);
	json_put(j, "source", admin_source(q->admin));
	admin_reply(q, 200, j);
}

struct put {
	struct wait wait;
	struct areq *q;
	struct control_propose propose;
	const struct setting_rule *setting;
	char value[256];
};

static void on_put(struct wait *w, int rc)
{
	struct put *p = container_of(w, struct put, wait);
	struct json *j;

	if (admin_failed(p->q, rc, &p->propose.result))
		return;
	j = json_object_new();
	json_put_str(j, "key", p->setting->key);
	json_put_str(j, "value", p->value[0] ? p->value : NULL);
	json_put_u64(j, "index", p->propose.result.index);
	admin_reply(p->q, 200, j);
}

/* False: it was answered. */
static bool value_given(struct areq *q)
{
	static const char *const known[] = {"value"};

	if (!admin_only_known(q, known, ARRAY_LEN(known)))
		return false;
	if (q->body && (json_str(q->body, "value") || json_has_null(q->body, "value")))
		return true;
	admin_fail(q, -ERR_INVALID,
		   "the body needs the member \"value\": a text, or null for the default again");
	return false;
}

/* {"value": TEXT}; null is the default again, which is asked for and never a slip. */
void admin_put_setting(struct areq *q)
{
	const struct setting_rule *s = setting_rule(q->param);
	const char *value = q->body ? json_str(q->body, "value") : NULL;
	struct command cmd;
	struct put *p;
	int rc;

	if (!s) {
		admin_fail(q, -ERR_NOT_FOUND, "no setting is named \"%.63s\"; `ashlar cluster settings` "
			   "shows all", q->param);
		return;
	}
	if (!value_given(q))
		return;
	if (value && strlen(value) >= sizeof(cmd.setting.value)) {
		admin_fail(q, -ERR_INVALID, "no setting takes so long a value");
		return;
	}
	p = xcalloc(1, sizeof(*p));
	p->q = q;
	p->setting = s;
	p->wait.resume = on_put;
	snprintf(p->value, sizeof(p->value), "%s", value ? value : "");
	q->op = p;
	admin_command(q, CMD_SETTING, &cmd);
	snprintf(cmd.setting.key, sizeof(cmd.setting.key), "%s", s->key);
	memcpy(cmd.setting.value, p->value, sizeof(cmd.setting.value));
	rc = q->admin->ops->propose(q->admin->cluster, &p->propose, &cmd, PROPOSE_TIMEOUT_MS, &p->wait);
	if (rc != PENDING)
		on_put(&p->wait, rc);
}
