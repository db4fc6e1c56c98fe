/* SPDX-License-Identifier: Apache-2.0 */
#include "node/loop/failpoint.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "node/base/log.h"

enum action { ACTION_NONE, ACTION_KILL, ACTION_EIO, ACTION_DELAY };

struct point {
	enum action action;
	uint64_t at; /* 0: each time */
	unsigned delay_ms;
	_Atomic uint64_t passed;
};

static const struct {
	const char *name, *where;
	bool can_fail;
} kinds[FAILPOINTS] = {
#undef FAILPOINT
#define FAILPOINT(name, can_fail, where) {#name, where, can_fail},
#include "node/loop/failpoint.def"
#undef FAILPOINT
};

bool failpoints_armed;
static struct point points[FAILPOINTS];

int failpoint_hit(enum failpoint p)
{
	struct point *f = &points[p];
	struct timespec t = {f->delay_ms / 1000, f->delay_ms % 1000 * 1000000L};

	if (f->action == ACTION_NONE)
		return 0;
	if (f->at && atomic_fetch_add(&f->passed, 1) + 1 != f->at)
		return 0;
	log_warn("failpoint", "asked for", "name=%s where=\"%s\"", kinds[p].name, kinds[p].where);
	switch (f->action) {
	case ACTION_KILL:
		kill(getpid(), SIGKILL);
		for (;;)
			pause(); /* nothing more of this thread */
	case ACTION_DELAY:
		nanosleep(&t, NULL);
		return 0;
	case ACTION_EIO:
		return -EIO;
	case ACTION_NONE:
		break;
	}
	return 0;
}

static bool parse_action(const char *text, struct point *f)
{
	char *end;

	if (!strcmp(text, "kill")) {
		f->action = ACTION_KILL;
		return true;
	}
	if (!strcmp(text, "eio")) {
		f->action = ACTION_EIO;
		return true;
	}
	if (strncmp(text, "delay=", 6))
		return false;
	f->delay_ms = (unsigned)strtoul(text + 6, &end, 10);
	f->action = ACTION_DELAY;
	return end > text + 6 && !*end;
}

static const char *parse_one(char *item)
{
	char *action = strchr(item, '='), *count, *end;
	struct point *f = NULL;

	if (!action)
		return "it has no =ACTION";
	*action++ = 0;
	count = strchr(item, ':');
	if (count)
		*count++ = 0;
	for (unsigned i = 0; i < FAILPOINTS; i++)
		if (!strcmp(item, kinds[i].name))
			f = &points[i];
	if (!f)
		return "there is no such name";
	if (count) {
		f->at = strtoull(count, &end, 10);
		if (*end || !f->at)
			return "the number after : must be 1 or more";
	}
	if (!parse_action(action, f))
		return "the action is kill, eio or delay=MS";
	if (f->action == ACTION_EIO && !kinds[f - points].can_fail)
		return "that place cannot report an error";
	return NULL;
}

int failpoints_parse(const char *text, char *why, size_t why_cap)
{
	CLEANUP(free_ptr) char *copy = text ? xstrdup(text) : NULL;
	char *rest = copy, *item;
	size_t len;

	while ((item = strsep(&rest, ","))) {
		const char *wrong = parse_one(item);

		if (!wrong) {
			failpoints_armed = true;
			continue;
		}
		len = (size_t)snprintf(why, why_cap, "ASHLAR_FAILPOINT: %s: %s; names:", item,
				       wrong);
		for (unsigned i = 0; i < FAILPOINTS && len < why_cap; i++)
			len += (size_t)snprintf(why + len, why_cap - len, " %s", kinds[i].name);
		return -EINVAL;
	}
	return 0;
}
