/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "client/ctl/ctl.h"

/* The words of one noun's verbs, or all nouns when noun is NULL. */
static void print_words(const char *noun)
{
	const char *last = "";

	for (size_t i = 0; all_verbs[i]; i++)
		for (const struct verb *v = all_verbs[i]; v->noun; v++) {
			if (noun && !strcmp(v->noun, noun) && v->verb)
				printf("%s ", v->verb);
			if (!noun && strcmp(v->noun, last))
				printf("%s ", v->noun);
			last = v->noun;
		}
}

static int completion_run(struct ctl *c, int argc, char **argv)
{
	const char *shell, *last = "";
	int rc = ctl_args(&completion_verbs[0], argc, argv, NULL, 0, &shell, 1, 1);

	if (rc != CTL_OK)
		return rc;
	if (strcmp(shell, "bash"))
		return ctl_usage("completion: only bash is known");
	printf("_ashlar() {\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} words=\"\"\n"
	       "\tif [ \"$COMP_CWORD\" -eq 1 ]; then words=\"");
	print_words(NULL);
	printf("\"\n\telif [ \"$COMP_CWORD\" -eq 2 ]; then\n\t\tcase ${COMP_WORDS[1]} in\n");
	for (size_t i = 0; all_verbs[i]; i++)
		for (const struct verb *v = all_verbs[i]; v->noun; v++) {
			if (!v->verb || !strcmp(v->noun, last))
				continue;
			last = v->noun;
			printf("\t\t%s) words=\"", v->noun);
			print_words(v->noun);
			printf("\" ;;\n");
		}
	printf("\t\tesac\n\telif [ \"${COMP_WORDS[1]}\" = volume ]; then\n"
	       "\t\twords=$(ashlar volume list 2>/dev/null | awk 'NR > 1 && $1 !~ /^\\(/ { print "
	       "$1 }')\n"
	       "\telif [ \"${COMP_WORDS[1]}\" = node ]; then\n"
	       "\t\twords=$(ashlar node list 2>/dev/null | awk 'NR > 1 && $1 !~ /^\\(/ { print $2 "
	       "}')\n"
	       "\tfi\n\tCOMPREPLY=($(compgen -W \"$words -o --admin --timeout --help\" -- "
	       "\"$cur\"))\n}\n"
	       "complete -F _ashlar ashlar\n");
	return CTL_OK;
}

const struct verb completion_verbs[] = {
	{"completion", NULL, "bash",
	 "Prints a completion script for the shell.\n\nExample: ashlar completion bash > "
	 "/etc/bash_completion.d/ashlar",
	 completion_run},
	{NULL},
};
