/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum log_level log_threshold = LOG_INFO;

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_set_level(enum log_level level)
{
	log_threshold = level;
}

int log_level_parse(const char *name, enum log_level *out)
{
	for (unsigned i = 0; i < ARRAY_LEN(level_names); i++)
		if (!strcmp(name, level_names[i])) {
			*out = (enum log_level)i;
			return 0;
		}
	return -EINVAL;
}

void log_write(enum log_level level, const char *mod, const char *msg, const char *fields, ...)
{
	char line[2048];
	struct timespec ts;
	struct tm tm;
	size_t n;
	va_list ap;

	clock_gettime(CLOCK_REALTIME, &ts);
	gmtime_r(&ts.tv_sec, &tm);
	n = strftime(line, sizeof(line), "time=%Y-%m-%dT%H:%M:%S", &tm);
	n += (size_t)snprintf(line + n, sizeof(line) - n, ".%03ldZ level=%s mod=%s msg=\"%s\"%s",
			      ts.tv_nsec / 1000000, level_names[level], mod, msg,
			      *fields ? " " : "");
	va_start(ap, fields);
	if (n < sizeof(line))
		n += (size_t)vsnprintf(line + n, sizeof(line) - n, fields, ap);
	va_end(ap);
	if (n > sizeof(line) - 2)
		n = sizeof(line) - 2;
	line[n++] = '\n';
	/* One write, so that lines of several threads do not mix. A log that cannot be written must
	 * not stop the service. */
	if (write(STDERR_FILENO, line, n) < 0)
		return;
}
