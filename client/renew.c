/* SPDX-License-Identifier: Apache-2.0 */
/* Renewal of attachments: all of this client in one command, about three times per time to live,
 * and no timer while there is none. A renewal that does not get through stops no I/O: a lease that
 * ran out only permits others to take it, and who took it is told by the map and by every primary. */
#include "client/client_impl.h"

#include <stdio.h>

#define RENEW_RETRY_US 1000000u
#define RENEW_MIN_US   200000u

static uint64_t volume_period_us(const struct volume *v)
{
	const struct map_attachment *a = map_attachment(v->client->cfg.map, v->attachment);
	uint32_t ttl_ms = a && a->ttl_ms ? a->ttl_ms : ATTACH_TTL_MS;

	return MAX((uint64_t)ttl_ms * 1000 / 3, (uint64_t)RENEW_MIN_US);
}

/* 0: nothing is attached. */
static uint64_t client_period_us(const struct client *c)
{
	uint64_t period = 0;
	struct volume *v;

	list_for_each(v, &c->volumes, link) if (v->attach_state == ATTACH_OK)
	{
		uint64_t p = volume_period_us(v);

		period = period ? MIN(period, p) : p;
	}
	return period;
}

static void renew_timer_set(struct client *c, uint64_t in_us)
{
	c->renew_at_us = loop_mono_us(c->cfg.loop) + in_us;
	timer_set(&c->renew_timer, in_us);
}

void renew_schedule(struct client *c)
{
	uint64_t period = client_period_us(c), now = loop_mono_us(c->cfg.loop);

	if (period && !c->renew_busy && (!c->renew_timer.armed || c->renew_at_us > now + period))
		renew_timer_set(c, period);
}

static void renew_next(struct client *c);

static void renew_done(struct wait *w, int rc)
{
	struct client *c = container_of(w, struct client, renew_wait);
	const struct command_result *r = &c->renew_result;
	struct volume *v;

	c->renew_busy = false;
	c->attention = true; /* a volume that was closed meanwhile may go now */
	client_arm(c);
	if (rc < 0 || r->code) {
		if (!c->renew_failing) /* once, not every second of an outage */
			log_warn("client", "attachments could not be renewed; trying again",
				 "count=%u error=%s", c->renew_count, err_name(rc < 0 ? rc : r->code));
		c->renew_failing = true;
		if (client_period_us(c))
			renew_timer_set(c, RENEW_RETRY_US);
		return;
	}
	if (c->renew_failing)
		log_info("client", "attachments are renewed again", "count=%u", c->renew_count);
	c->renew_failing = false;
	for (unsigned i = 0; i < MIN(r->count, c->renew_count); i++)
		if (r->object[i])
			list_for_each(v, &c->volumes, link) if (v->attach_state == ATTACH_OK &&
								v->attachment == c->renew_ids[i])
				volume_fence(v);
	renew_next(c);
}

/* The next RENEW_MAX attachments of this round; when there are none left, the next round's time. */
static void renew_next(struct client *c)
{
	struct command cmd = {.kind = CMD_RENEW};
	struct volume *v;
	int rc;

	c->renew_count = 0;
	list_for_each(v, &c->volumes, link)
	{
		if (c->renew_count == RENEW_MAX)
			break;
		if (v->attach_state != ATTACH_OK || v->renew_round == c->renew_round)
			continue;
		v->renew_round = c->renew_round;
		c->renew_ids[c->renew_count++] = v->attachment;
	}
	if (!c->renew_count) {
		renew_schedule(c);
		return;
	}
	snprintf(cmd.actor, sizeof(cmd.actor), "%s", c->cfg.holder);
	cmd.renew.count = c->renew_count;
	cmd.renew.attachment = c->renew_ids;
	c->renew_result = (struct command_result){0};
	c->renew_wait.resume = renew_done;
	c->renew_busy = true;
	rc = c->cfg.hooks->propose(c->cfg.ctx, &cmd, &c->renew_result, &c->renew_wait);
	if (rc != PENDING)
		renew_done(&c->renew_wait, rc);
}

static void renew_tick(struct timer *t)
{
	struct client *c = container_of(t, struct client, renew_timer);

	c->renew_round++;
	renew_next(c);
}

void renew_init(struct client *c)
{
	timer_init(&c->renew_timer, c->cfg.loop, renew_tick);
}

void renew_fini(struct client *c)
{
	CHECK(!c->renew_busy); /* the last volume waited for it */
	timer_fini(&c->renew_timer);
}
