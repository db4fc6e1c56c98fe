/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/op.h"

static void join_settle_one(struct join *j, int rc)
{
	CHECK(j->pending > 0);
	j->pending--;
	if (rc < 0 && !j->error)
		j->error = rc;
	if (!j->pending && !j->starting)
		wait_resume(j->owner, j->error);
}

static void join_resume(struct wait *w, int rc)
{
	join_settle_one(container_of(w, struct join, wait), rc);
}

void join_init(struct join *j, struct wait *owner)
{
	*j = (struct join){.wait.resume = join_resume, .owner = owner, .starting = true};
}

struct wait *join_arm(struct join *j)
{
	j->pending++;
	return &j->wait;
}

void join_settle(struct join *j, int rc)
{
	if (rc != PENDING)
		join_settle_one(j, rc);
}

int join_done(struct join *j)
{
	j->starting = false;
	return j->pending ? PENDING : j->error;
}
