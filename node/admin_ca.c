/* SPDX-License-Identifier: Apache-2.0 */
/* The private key of the cluster's CA lives on the voters. The first three get it when they join; a
 * voter that takes the place of another fetches it here, or after enough replacements nobody could
 * join any more.
 *
 * It is given only over a control connection, whose other end has proved to be a node of the
 * cluster. It must never be an answer over HTTP, nor in a log. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/ca.h"
#include "node/admin_impl.h"

struct ca_fetch {
	struct admin *admin;
	struct ask_all *ask;
	struct wait asked, written;
	struct work work;
	bool busy;
	char *pem;
};

void admin_get_ca_key(struct areq *q)
{
	struct birth_paths p;
	struct json *j;
	char *pem;
	size_t len;
	int rc;

	if (q->http || q->who != WHO_NODE) {
		admin_fail(q, -ERR_REFUSED,
			   "the CA key is given to other nodes of the cluster only");
		return;
	}
	birth_paths(q->admin->cfg.config->state_dir, &p);
	rc = birth_file_read(p.ca_key, &pem, &len);
	if (rc < 0) {
		admin_fail(q, -ERR_UNAVAILABLE, "this node does not hold the CA key");
		return;
	}
	j = json_object_new();
	json_put_str(j, "ca_key", pem);
	explicit_bzero(pem, len);
	free(pem);
	admin_reply(q, 200, j);
}

static int install_blocking(struct work *w)
{
	struct ca_fetch *f = container_of(w, struct ca_fetch, work);
	struct birth_paths p;

	birth_paths(f->admin->cfg.config->state_dir, &p);
	return ca_key_install(p.ca, p.ca_key, f->pem);
}

static void on_written(struct wait *w, int rc)
{
	struct ca_fetch *f = container_of(w, struct ca_fetch, written);

	explicit_bzero(f->pem, strlen(f->pem));
	free(f->pem);
	f->pem = NULL;
	f->busy = false; /* what failed was logged, and is tried at the next tick */
	if (rc == 0)
		log_info("admin", "this voter holds the key of the cluster's CA now", "%s", "");
}

static void on_asked(struct wait *w, int rc)
{
	struct ca_fetch *f = container_of(w, struct ca_fetch, asked);
	struct admin *a = f->admin;

	for (unsigned i = 0; i < f->ask->count && !f->pem; i++) {
		const char *pem =
			f->ask->one[i].json ? json_str(f->ask->one[i].json, "ca_key") : NULL;

		f->pem = pem ? xstrdup(pem) : NULL;
	}
	ask_all_free(f->ask);
	f->ask = NULL;
	if (!f->pem) {
		f->busy = false;
		return;
	}
	rc = worker_submit(a->cfg.workers, a->cfg.loop, &f->work, &f->written);
	if (rc != PENDING)
		on_written(&f->written, rc);
}

static bool votes_here(const struct admin *a)
{
	struct consensus_status st = {0};

	a->ops->status(a->cluster, &st);
	for (unsigned i = 0; i < st.voters && i < ARRAY_LEN(st.voter); i++)
		if (st.voter[i] == a->cfg.identity->number)
			return true;
	return false;
}

void admin_ca_tick(struct admin *a)
{
	struct ca_fetch *f = a->ca_fetch;

	if ((f && f->busy) || !votes_here(a) || birth_has_ca_key(a->cfg.config->state_dir))
		return;
	if (!f) {
		f = a->ca_fetch = xcalloc(1, sizeof(*f));
		f->admin = a;
		f->asked.resume = on_asked;
		f->written.resume = on_written;
		f->work.run = install_blocking;
	}
	f->busy = true;
	if (ask_all(a, "/v1/local/ca-key", &f->ask, &f->asked) != PENDING)
		on_asked(&f->asked, 0);
}
