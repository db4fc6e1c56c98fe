/* SPDX-License-Identifier: Apache-2.0 */
/* Structured log: one line `time=… level=… mod=… msg="…" key=value …` to stderr. Any thread.
 * Log once, where the cause is known; pass the code up unchanged. */
#pragma once

#include "node/base/check.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_set_level(enum log_level level);
int log_level_parse(const char *name, enum log_level *out); /* "debug" … "error"; -EINVAL */
extern enum log_level log_threshold;

/* `fields` is printf-like "key=value key=value". */
void log_write(enum log_level level, const char *mod, const char *msg, const char *fields, ...)
	PRINTF_LIKE(4, 5);

#define log_at(level, mod, msg, ...)                                                               \
	do {                                                                                       \
		if ((level) >= log_threshold)                                                      \
			log_write(level, mod, msg, __VA_ARGS__);                                   \
	} while (0)
/* log_info("store", "group opened", "group=%u segments=%u", g, n); with no fields pass "%s", "". */
#define log_debug(mod, msg, ...) log_at(LOG_DEBUG, mod, msg, __VA_ARGS__)
#define log_info(mod, msg, ...) log_at(LOG_INFO, mod, msg, __VA_ARGS__)
#define log_warn(mod, msg, ...) log_at(LOG_WARN, mod, msg, __VA_ARGS__)
#define log_error(mod, msg, ...) log_at(LOG_ERROR, mod, msg, __VA_ARGS__)
