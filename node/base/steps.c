/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/steps.h"

#include "node/base/err.h"
#include "node/base/log.h"

int steps_run(const struct step *steps, size_t count, void *ctx, size_t *done)
{
	for (*done = 0; *done < count; ++*done) {
		int rc = steps[*done].action(ctx);

		if (rc < 0) {
			log_error("steps", "a start-up step failed",
				  "step=\"%s\" error=%s reason=\"%s\"", steps[*done].name,
				  err_name(rc), err_text(rc));
			steps_undo(steps, *done, ctx);
			*done = 0;
			return rc;
		}
	}
	return 0;
}

void steps_undo(const struct step *steps, size_t done, void *ctx)
{
	while (done--)
		if (steps[done].undo)
			steps[done].undo(ctx);
}
