/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs in the state machine: that somebody wants long work done, or wants it to wait. What is left
 * to do is never written down: it follows from the map (relocate.c), so a restart or another leader
 * goes on where the work stands. */
#include "cluster/state_impl.h"

#include <stdio.h>

const char *job_kind_name(uint8_t kind)
{
	static const char *const name[] = {"?", "rebuild", "evacuate", "rebalance", "remove"};

	return kind < ARRAY_LEN(name) ? name[kind] : name[0];
}

const char *job_state_name(uint8_t state)
{
	static const char *const name[] = {"?", "running", "paused", "done", "cancelled"};

	return state < ARRAY_LEN(name) ? name[state] : name[0];
}

const struct state_job *state_jobs(const struct state *s, unsigned *count)
{
	*count = s->job_count;
	return s->job;
}

static struct state_job *job_find(struct state *s, uint32_t id)
{
	for (unsigned i = 0; i < s->job_count; i++)
		if (s->job[i].id == id)
			return &s->job[i];
	return NULL;
}

const struct state_job *state_job(const struct state *s, uint32_t id)
{
	return job_find((struct state *)s, id);
}

static bool targets_group(const struct state_job *j, const struct map_group *g)
{
	return j->group ? j->group == g->id : j->node && j->node == g->node;
}

bool state_job_empties(const struct state_job *j, const struct map_group *g)
{
	bool wanted = j->kind == JOB_EVACUATE ? j->state != JOB_CANCELLED
					      : j->kind == JOB_REMOVE && job_live(j);

	return wanted && targets_group(j, g);
}

bool state_job_holds(const struct state *s, const struct state_job *j)
{
	struct map_group *g = j->group ? map_group(&s->map, j->group) : NULL;
	struct map_node *n = j->node ? map_node(&s->map, j->node) : NULL;

	if (j->kind != JOB_EVACUATE || j->state != JOB_DONE)
		return false;
	return (g && g->state != GROUP_REMOVED) || (n && n->state != NODE_REMOVED);
}

/* Room for one more: the oldest job that is over and holds nothing goes. */
static struct state_job *job_room(struct state *s)
{
	for (unsigned i = 0; s->job_count == STATE_JOBS && i < s->job_count; i++) {
		if (job_live(&s->job[i]) || state_job_holds(s, &s->job[i]))
			continue;
		s->job_count--;
		memmove(&s->job[i], &s->job[i + 1], (s->job_count - i) * sizeof(s->job[0]));
	}
	if (s->job_count == STATE_JOBS)
		return NULL;
	memset(&s->job[s->job_count], 0, sizeof(s->job[0]));
	return &s->job[s->job_count++];
}

/* Objects with a replica on the target. */
static uint32_t count_objects(const struct state *s, const struct state_job *j)
{
	uint32_t count = 0;

	for (struct hnode *h = hmap_walk(&s->map.volumes, NULL); h;
	     h = hmap_walk(&s->map.volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < v->objects; i++) {
			bool there = false;

			for (unsigned k = 0; k < v->object[i].member_count; k++) {
				struct map_group *g =
					map_group(&s->map, v->object[i].member[k].group);

				there |= g && targets_group(j, g);
			}
			count += there;
		}
	}
	return count;
}

/* The target's name, for people. */
static const char *target_text(const struct state *s, const struct state_job *j, char out[96])
{
	struct map_node *n = map_node(&s->map, j->node);

	if (j->group)
		snprintf(out, 96, "%s of disk group %u", job_kind_name(j->kind), j->group);
	else if (n)
		snprintf(out, 96, "%s of node %s", job_kind_name(j->kind), n->name);
	else
		snprintf(out, 96, "%s", job_kind_name(j->kind));
	return out;
}

/* 0, or a refusal. Fills in the incarnation of what is named. */
static int target_check(const struct state *s, const struct job_change *ch, struct state_job *j,
			struct command_result *out)
{
	struct map_group *g = map_group(&s->map, ch->group);
	struct map_node *n = map_node(&s->map, ch->node);

	if (ch->kind < JOB_REBUILD || ch->kind > JOB_REMOVE || (ch->node && ch->group) ||
	    (ch->kind == JOB_REBALANCE) != (!ch->node && !ch->group) ||
	    (ch->kind == JOB_REMOVE && !ch->node))
		return state_refuse(
			out, -ERR_INVALID,
			"a rebuild and an evacuation need one node or one disk group, a removal a node, a "
			"rebalance nothing");
	if ((ch->group && (!g || g->state == GROUP_REMOVED)) ||
	    (ch->node && (!n || n->state == NODE_REMOVED)))
		return state_refuse(out, -ERR_NOT_FOUND, "there is no %s %u",
				    ch->group ? "disk group" : "node",
				    ch->group ? ch->group : ch->node);
	*j = (struct state_job){.kind = ch->kind,
				.node = ch->node,
				.group = ch->group,
				.incarnation = g   ? g->incarnation
					       : n ? n->incarnation
						   : 0};
	return 0;
}

static int job_start(struct state *s, const struct job_change *ch, struct command_result *out)
{
	struct state_job in, *j;
	char text[96];
	int rc = target_check(s, ch, &in, out);

	if (rc)
		return rc;
	for (unsigned i = 0; i < s->job_count; i++) {
		j = &s->job[i];
		if (j->kind != in.kind || j->node != in.node || j->group != in.group ||
		    !(job_live(j) || state_job_holds(s, j)))
			continue;
		out->id = j->id;            /* the same again, or wanted twice: that one goes on */
		if (j->state == JOB_DONE) { /* something came there before it was held empty */
			j->state = JOB_RUNNING;
			j->changed_ms = s->time_ms;
			j->total = count_objects(s, j);
		}
		return 0;
	}
	j = job_room(s);
	if (!j)
		return state_refuse(
			out, -ERR_LIMIT,
			"there are %u jobs that are not over: cancel one first, or wait",
			STATE_JOBS);
	*j = in;
	j->id = s->next_job++;
	j->state = JOB_RUNNING;
	j->started_ms = j->changed_ms = s->time_ms;
	j->total = j->kind == JOB_REBALANCE ? ch->total : count_objects(s, j);
	snprintf(j->actor, sizeof(j->actor), "%s", s->actor);
	snprintf(j->note, sizeof(j->note), "%s", ch->note);
	out->id = j->id;
	state_event_add(s, 0, "JOB_STARTED", "job %u: %s, %u object%s", j->id,
			target_text(s, j, text), j->total, j->total == 1 ? "" : "s");
	return 0;
}

void state_jobs_of_node_end(struct state *s, uint16_t node)
{
	char text[96];

	for (unsigned i = 0; i < s->job_count; i++) {
		struct state_job *j = &s->job[i];

		if (j->kind != JOB_REMOVE || j->node != node || !job_live(j))
			continue;
		j->state = JOB_DONE;
		j->changed_ms = s->time_ms;
		snprintf(j->note, sizeof(j->note), "done");
		state_event_add(s, 0, "JOB_DONE", "job %u: %s is finished", j->id, target_text(s, j, text));
	}
}

int state_job_change(struct state *s, const struct command *c, struct command_result *out)
{
	static const struct {
		uint8_t from[2], to;
		const char *code, *verb;
	} step[] = {
		[JOB_PAUSE] = {{JOB_RUNNING}, JOB_PAUSED, "JOB_PAUSED", "paused"},
		[JOB_RESUME] = {{JOB_PAUSED}, JOB_RUNNING, "JOB_RESUMED", "resumed"},
		[JOB_CANCEL] = {{JOB_RUNNING, JOB_PAUSED},
				JOB_CANCELLED,
				"JOB_CANCELLED",
				"cancelled"},
		[JOB_FINISH] = {{JOB_RUNNING}, JOB_DONE, "JOB_DONE", "finished"},
	};
	const struct job_change *ch = &c->job;
	struct state_job *j;
	char text[96];

	if (ch->op == JOB_START)
		return job_start(s, ch, out);
	if (ch->op > JOB_FINISH || ch->op < JOB_PAUSE)
		return state_refuse(out, -ERR_INVALID, "unknown change of a job");
	j = job_find(s, ch->id);
	if (!j)
		return state_refuse(out, -ERR_NOT_FOUND,
				    "there is no job %u; `ashlar job list` shows all", ch->id);
	out->id = j->id;
	if (j->state == step[ch->op].to)
		return 0; /* the same again */
	if (j->kind == JOB_REMOVE && ch->op == JOB_FINISH)
		return state_refuse(out, -ERR_REFUSED,
				    "job %u ends when its node has left, and not before", j->id);
	if (j->state != step[ch->op].from[0] && j->state != step[ch->op].from[1] &&
	    !(ch->op == JOB_CANCEL && state_job_holds(s, j)))
		return state_refuse(out, -ERR_REFUSED, "job %u is %s and cannot be %s", j->id,
				    job_state_name(j->state), step[ch->op].verb);
	j->state = step[ch->op].to;
	j->changed_ms = s->time_ms;
	if (ch->op == JOB_FINISH && ch->note[0])
		snprintf(j->note, sizeof(j->note), "%s", ch->note);
	state_event_add(s, 0, step[ch->op].code, "job %u: %s is %s%s%s", j->id,
			target_text(s, j, text), step[ch->op].verb,
			ch->op == JOB_FINISH && ch->note[0] ? ": " : "",
			ch->op == JOB_FINISH ? ch->note : "");
	return 0;
}
