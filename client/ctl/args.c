/* SPDX-License-Identifier: Apache-2.0 */
/* Words and options. Strict: what is not understood is refused, so that a misspelt option can never
 * mean its default. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"

int ctl_usage(const char *fmt, ...)
{
	va_list ap;

	fputs("ashlar: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	return CTL_USAGE;
}

static const struct option_spec *find_option(const struct option_spec *o, size_t n, const char *arg,
					     size_t len)
{
	for (size_t i = 0; i < n; i++)
		if (strlen(o[i].name) == len && !strncmp(o[i].name, arg, len))
			return &o[i];
	return NULL;
}

int ctl_args(const struct verb *v, int argc, char **argv, const struct option_spec *o, size_t n,
	     const char **words, unsigned min, unsigned max)
{
	const char *name = v->verb ? v->verb : v->noun;
	unsigned count = 0;
	bool only_words = false;

	for (int i = 0; i < argc; i++) {
		const char *arg = argv[i], *equals = strchr(arg, '=');
		const struct option_spec *spec;

		if (!only_words && !strcmp(arg, "--")) {
			only_words = true;
			continue;
		}
		if (only_words || arg[0] != '-' || !arg[1]) {
			if (count >= max)
				return ctl_usage("%s: \"%s\" is one argument too many; usage: "
						 "ashlar %s%s%s %s",
						 name, arg, v->noun, v->verb ? " " : "",
						 v->verb ? v->verb : "", v->usage);
			words[count++] = arg;
			continue;
		}
		spec = find_option(o, n, arg, equals ? (size_t)(equals - arg) : strlen(arg));
		if (!spec)
			return ctl_usage("%s: unknown option %s; see ashlar %s%s%s --help", name,
					 arg, v->noun, v->verb ? " " : "", v->verb ? v->verb : "");
		if (spec->flag) {
			if (equals)
				return ctl_usage("%s: %s takes no value", name, spec->name);
			*spec->flag = true;
		} else if (equals) {
			*spec->value = equals + 1;
		} else if (i + 1 < argc) {
			*spec->value = argv[++i];
		} else {
			return ctl_usage("%s: %s needs a value", name, spec->name);
		}
	}
	if (count < min)
		return ctl_usage("%s: an argument is missing; usage: ashlar %s%s%s %s", name,
				 v->noun, v->verb ? " " : "", v->verb ? v->verb : "", v->usage);
	return CTL_OK;
}

bool ctl_number(const char *text, uint64_t max, uint64_t *out)
{
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return false;
	errno = 0;
	*out = strtoull(text, &end, 10);
	return !errno && !*end && *out <= max;
}

bool ctl_size(const char *text, uint64_t *out)
{
	static const char units[] = "KMGTP";
	uint64_t whole, fraction = 0, scale = 1;
	const char *p, *unit;
	unsigned shift;
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return false;
	errno = 0;
	whole = strtoull(text, &end, 10);
	if (errno)
		return false;
	p = end;
	if (*p == '.') {
		for (p++; isdigit((unsigned char)*p) && scale < 1000000; p++) {
			fraction = fraction * 10 + (uint64_t)(*p - '0');
			scale *= 10;
		}
		if (scale == 1 || isdigit((unsigned char)*p))
			return false;
	}
	unit = *p ? strchr(units, toupper((unsigned char)*p)) : NULL;
	if (*p && !unit)
		return false;
	shift = unit ? 10u * (unsigned)(unit - units + 1) : 0;
	if (unit)
		p++;
	if (unit && !strcasecmp(p, "iB"))
		p += 2;
	if (*p || (!unit && scale > 1) || (shift && whole >> (64 - shift)))
		return false;
	*out = (whole << shift) + (fraction << shift) / scale;
	return true;
}

bool ctl_duration_s(const char *text, uint64_t *out)
{
	char *end;
	uint64_t unit = 1;

	if (!isdigit((unsigned char)text[0]))
		return false;
	errno = 0;
	*out = strtoull(text, &end, 10);
	if (*end && strchr("smhd", *end)) {
		unit = *end == 'm' ? 60 : *end == 'h' ? 3600 : *end == 'd' ? 86400 : 1;
		end++;
	}
	if (errno || *end || *out > UINT32_MAX)
		return false;
	*out *= unit;
	return true;
}

uint64_t ctl_now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec;
}
