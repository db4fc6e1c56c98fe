/* SPDX-License-Identifier: Apache-2.0 */
/* can-stop and can-lose: the exit code is the answer, so that a playbook can wait for it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

#define TARGETS_MAX 64u

static void print_objects(const struct json *o)
{
	static const struct {
		const char *key, *text;
	} line[] = {{"lost", "would lose their data"},
		    {"unavailable", "would have no in-sync replica in reach"},
		    {"below_min_in_sync", "would take no writes (min in-sync)"},
		    {"single_copy", "would have a single copy"},
		    {"quarantined", "would lose a replica in quarantine"},
		    {"degraded", "would have fewer copies than their policy"},
		    {"unavailable_now", "are unavailable now already"}};

	printf("objects     %" PRIu64 " have a replica there\n", json_u64(o, "affected", 0));
	for (size_t i = 0; i < ARRAY_LEN(line); i++)
		if (json_u64(o, line[i].key, 0))
			printf("            %" PRIu64 " %s\n", json_u64(o, line[i].key, 0), line[i].text);
}

static void print_again(const struct json *k)
{
	char bytes[24], rate[24], rest[24], age[24];

	printf("new copies  %s", bytes_text(json_u64(k, "copy_bytes", 0), bytes));
	printf(" in about %s (at %s/s, %s)", age_text(json_u64(k, "copy_s", 0), age),
	       bytes_text(json_u64(k, "rate_bytes_per_s", 0), rate), str_or(k, "rate", "?"));
	if (json_bool(k, "space_enough", false))
		printf(", %s free afterwards\n", bytes_text(json_u64(k, "free_after_bytes", 0), rest));
	else
		printf(", and there is NO SPACE for them\n");
	if (!json_bool(k, "known", false))
		printf("            (the bytes of some disk groups are not known now)\n");
	if (!json_bool(k, "fault_sets_enough", true))
		printf("            TOO FEW FAULT SETS would be left for them\n");
}

static void print_answer(const struct json *j)
{
	const struct json *r = json_get(j, "raft"), *v = json_get(j, "volumes");

	printf("%s: %s\n", json_bool(j, "ok", false) ? "yes" : "NO", str_or(j, "why", "?"));
	print_objects(json_get(j, "objects"));
	if (json_len(v)) {
		printf("volumes    ");
		for (size_t i = 0; i < json_len(v); i++)
			printf(" %s", json_as_str(json_at(v, i)));
		printf("%s\n", json_u64(j, "volumes_at_risk", 0) > json_len(v) ? " …" : "");
	}
	printf("raft        %" PRIu64 " of %" PRIu64 " voters left, %" PRIu64 " needed\n",
	       json_u64(r, "left", 0), json_u64(r, "voters", 0), json_u64(r, "needed", 0));
	if (json_get(j, "again"))
		print_again(json_get(j, "again"));
	print_source(j);
}

static int ask(struct ctl *c, const struct verb *v, const char *path, int argc, char **argv)
{
	const char *words[TARGETS_MAX];
	CLEANUP(free_ptr) char *at = NULL;
	unsigned n = (unsigned)argc;
	struct json *j;
	int rc;

	rc = ctl_args(v, argc, argv, NULL, 0, words, 1, TARGETS_MAX);
	if (rc != CTL_OK)
		return rc;
	for (unsigned i = 0; i < n; i++) {
		CLEANUP(free_ptr) char *segment = ctl_escape(words[i]);
		char *longer = at ? xasprintf("%s,%s", at, segment) : xasprintf("%s%s", path, segment);

		free(at);
		at = longer;
	}
	rc = ctl_call(c, "GET", at, NULL, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		print_answer(j);
	rc = (int)json_u64(j, "exit_code", CTL_REFUSED);
	json_free(j);
	return rc;
}

static int can_stop(struct ctl *c, int argc, char **argv)
{
	return ask(c, &safety_verbs[0], "/v1/can-stop/", argc, argv);
}

static int can_lose(struct ctl *c, int argc, char **argv)
{
	return ask(c, &safety_verbs[1], "/v1/can-lose/", argc, argv);
}

const struct verb safety_verbs[] = {
	{"can-stop", NULL, "NODE…",
	 "Says whether these nodes could be stopped now, together, without stopping any I/O.\n\n"
	 "Nodes in maintenance count as stopped. Exits with 0: yes; 5: data would be unavailable or take\n"
	 "no writes; 6: Raft would have no majority.\n\n"
	 "Example: until ashlar can-stop n2; do sleep 2; done",
	 can_stop},
	{"can-lose", NULL, "NODE|FAULTSET|GROUP…",
	 "Says what would be lost if these never came back, and what it would take to have all copies "
	 "again.\n\n"
	 "A disk is asked for by the number of its disk group. Exits with 0: nothing would be lost and the\n"
	 "copies can be made anew; 5: data, or copies for good, would be lost; 6: Raft would have no "
	 "majority.\n\n"
	 "Example: ashlar can-lose rack2",
	 can_lose},
	{NULL},
};
