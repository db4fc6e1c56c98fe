/* SPDX-License-Identifier: Apache-2.0 */
/* Answers: to whoever asked, over HTTP, from another node or in this process; what an error is in HTTP and in
 * words; who says it, and of when. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

void admin_request_free(struct areq *q)
{
	list_del(&q->link);
	json_free(q->body);
	free(q->method);
	free(q->path);
	free(q->query);
	free(q->param);
	free(q->op);
	free(q);
}

static void send_text(struct areq *q, int status, const char *type, const char *text)
{
	if (q->answered)
		return;
	q->answered = true;
	if (q->http)
		http_reply(q->http, status, type, text, strlen(text));
	else if (q->done)
		q->done(q->done_arg, status, text);
	else if (q->admin->ops)
		q->admin->ops->call_answer(q->admin->cluster, q->ticket, status, text);
}

void admin_reply_text(struct areq *q, int status, const char *type, const char *text)
{
	send_text(q, status, type, text);
	admin_request_free(q);
}

static char *finish_json(struct json *body)
{
	CLEANUP(free_ptr) char *text = NULL;

	json_put_u64(body, "schema", ADMIN_SCHEMA);
	text = json_print(body, false);
	json_free(body);
	return xasprintf("%s\n", text);
}

void admin_reply(struct areq *q, int status, struct json *body)
{
	CLEANUP(free_ptr) char *text = finish_json(body);

	admin_reply_text(q, status, "application/json", text);
}

static int http_status(int rc)
{
	static const struct {
		int rc, status;
	} table[] = {
		{-ERR_NOT_FOUND, 404},  {-ENOENT, 404},          {-ERR_EXISTS, 409},
		{-ERR_CLAIMED, 409},    {-EEXIST, 409},          {-ERR_BUSY, 409},
		{-ERR_HELD, 409},       {-EBUSY, 409},           {-ERR_INVALID, 400},
		{-ERR_LIMIT, 400},      {-EINVAL, 400},          {-ERR_TOO_FEW, 507},
		{-ERR_FULL, 507},       {-ENOSPC, 507},          {-ERR_NO_LEADER, 503},
		{-ERR_NOT_LEADER, 503}, {-ERR_UNAVAILABLE, 503}, {-ERR_UNCLAIMED, 503},
		{-ERR_CLOSED, 503},     {-ERR_RETRY, 503},       {-ETIMEDOUT, 504},
		{-ERR_AUTH, 401},       {-ERR_REFUSED, 403},     {-ERR_FOREIGN, 403},
		{-ERR_FENCED, 403},     {-ERR_OCCUPIED, 409},
	};

	for (size_t i = 0; i < ARRAY_LEN(table); i++)
		if (table[i].rc == rc)
			return table[i].status;
	return 500;
}

static struct json *error_json(int rc, const char *message)
{
	struct json *j = json_object_new();

	json_put_str(j, "error", err_name(rc));
	json_put_str(j, "message", message);
	return j;
}

void admin_fail(struct areq *q, int rc, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	admin_reply(q, http_status(rc), error_json(rc, text[0] ? text : err_text(rc)));
}

bool admin_failed(struct areq *q, int rc, const struct command_result *r)
{
	if (rc == 0 && r->code == 0)
		return false;
	if (rc == -ETIMEDOUT)
		admin_fail(q, rc,
			   "no answer from the cluster within %u s; it may still happen: look "
			   "before you "
			   "repeat",
			   PROPOSE_TIMEOUT_MS / 1000);
	else if (rc < 0)
		admin_fail(q, rc, "%s", err_text(rc));
	else
		admin_fail(q, r->code, "%s", r->text[0] ? r->text : err_text(r->code));
	return true;
}

struct json *admin_source(const struct admin *a)
{
	struct json *j = json_object_new();
	const struct map *m = admin_map(a);
	struct consensus_status st = {0};
	const struct map_node *leader;
	uint64_t now = loop_mono_us(a->cfg.loop), applied;

	json_put_str(j, "node", a->cfg.config->name);
	json_put_u64(j, "node_number", a->cfg.identity->number);
	json_put_u64(j, "time_ms", wall_ms());
	if (!m)
		return j;
	a->ops->status(a->cluster, &st);
	applied = a->ops->applied_us(a->cluster);
	leader = st.leader ? map_node(m, st.leader) : NULL;
	json_put_u64(j, "map_version", m->version);
	json_put_u64(j, "map_age_ms", applied && applied < now ? (now - applied) / 1000 : 0);
	json_put_str(j, "leader", leader ? leader->name : NULL);
	json_put_u64(j, "term", st.term);
	return j;
}

void admin_say_stopping(struct areq *q)
{
	CLEANUP(free_ptr) char *text = finish_json(error_json(-ERR_CLOSED, "ashlard is stopping"));

	send_text(q, 503, "application/json", text);
}
