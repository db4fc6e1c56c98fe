/* SPDX-License-Identifier: Apache-2.0 */
/* Tables, sizes and ages for people. What scripts read is JSON. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

static void add_cell(struct table *t, char *text)
{
	if (t->cells == t->cap) {
		t->cap = t->cap * 2 + 64;
		t->cell = xrealloc(t->cell, t->cap * sizeof(*t->cell));
	}
	t->cell[t->cells++] = text;
}

void table_init(struct table *t, unsigned columns, uint32_t right, const char *const *head)
{
	*t = (struct table){.columns = columns, .right = right};
	for (unsigned i = 0; i < columns; i++)
		add_cell(t, xstrdup(head[i]));
}

void table_add(struct table *t, const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&text, fmt, ap) < 0)
		text = xstrdup("?");
	va_end(ap);
	add_cell(t, text);
}

/* Columns on a terminal: bytes that do not continue a UTF-8 character. */
static unsigned width_of(const char *s)
{
	unsigned n = 0;

	for (; *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}

void table_print(struct table *t)
{
	unsigned width[32] = {0};

	CHECK(t->columns <= ARRAY_LEN(width));
	for (unsigned i = 0; i < t->cells; i++)
		width[i % t->columns] = MAX(width[i % t->columns], width_of(t->cell[i]));
	for (unsigned i = 0; i < t->cells; i++) {
		unsigned col = i % t->columns, pad = width[col] - width_of(t->cell[i]);
		bool last = col == t->columns - 1;

		if (t->right & 1u << col)
			printf("%*s%s", (int)pad, "", t->cell[i]);
		else
			printf("%s%*s", t->cell[i], last ? 0 : (int)pad, "");
		fputs(last ? "\n" : "  ", stdout);
		free(t->cell[i]);
	}
	free(t->cell);
}

static void add_member(struct table *t, const struct json *row, const char *key)
{
	const struct json *v = json_get(row, key);
	uint64_t number = json_as_u64(v, UINT64_MAX);

	if (json_as_str(v))
		table_add(t, "%s", json_as_str(v));
	else if (number != UINT64_MAX)
		table_add(t, "%" PRIu64, number);
	else if (json_bool(row, key, true) == json_bool(row, key, false))
		table_add(t, "%s", json_bool(row, key, false) ? "on" : "off");
	else
		table_add(t, "-");
}

void print_rows(const struct json *list, const struct column *columns, unsigned n, bool backwards)
{
	const char *head[32];
	uint32_t right = 0;
	struct table t;
	size_t count = json_len(list);

	CHECK(n <= ARRAY_LEN(head));
	for (unsigned k = 0; k < n; k++) {
		head[k] = columns[k].head;
		right |= (uint32_t)columns[k].right << k;
	}
	table_init(&t, n, right, head);
	for (size_t i = 0; i < count; i++) {
		const struct json *row = json_at(list, backwards ? count - 1 - i : i);

		for (unsigned k = 0; k < n; k++)
			if (columns[k].cell)
				columns[k].cell(&t, row);
			else
				add_member(&t, row, columns[k].key);
	}
	table_print(&t);
}

int ctl_list(struct ctl *c, const struct list_view *v)
{
	struct json *j;
	int rc = ctl_call(c, "GET", v->path, NULL, &j);

	if (rc != CTL_OK)
		return rc;
	if (c->json) {
		print_json(j);
	} else {
		print_rows(json_get(j, v->key), v->columns, v->n, v->backwards);
		print_groups_known(j, "what is stored: ");
		print_source(j);
	}
	json_free(j);
	return CTL_OK;
}

int ctl_show(struct ctl *c, const char *path, void (*print)(const struct json *j))
{
	struct json *j;
	int rc = ctl_call(c, "GET", path, NULL, &j);

	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		print(j);
	json_free(j);
	return CTL_OK;
}

void add_bytes(struct table *t, int64_t bytes)
{
	char text[24];

	table_add(t, "%s%s", bytes < 0 ? "-" : "", bytes_text((uint64_t)(bytes < 0 ? -bytes : bytes), text));
}

void print_json(const struct json *j)
{
	CLEANUP(free_ptr) char *text = json_print(j, true);

	puts(text);
}

const char *age_text(uint64_t s, char out[24])
{
	if (s < 120)
		snprintf(out, 24, "%" PRIu64 " s", s);
	else if (s < 7200)
		snprintf(out, 24, "%" PRIu64 " min", s / 60);
	else if (s < 172800)
		snprintf(out, 24, "%" PRIu64 " h", s / 3600);
	else
		snprintf(out, 24, "%" PRIu64 " d", s / 86400);
	return out;
}

const char *str_or(const struct json *j, const char *key, const char *otherwise)
{
	const char *s = json_str(j, key);

	return s ? s : otherwise;
}

void print_source(const struct json *answer)
{
	const struct json *s = json_get(answer, "source");

	if (s)
		printf("(said by %s; map version %" PRIu64 ", %.1f s old; leader %s)\n",
		       str_or(s, "node", "?"), json_u64(s, "map_version", 0),
		       (double)json_u64(s, "map_age_ms", 0) / 1000, str_or(s, "leader", "none"));
}

const char *severity_color(const struct ctl *c, const char *severity)
{
	if (!c->color)
		return "";
	if (!strcmp(severity, "error"))
		return "\033[31m";
	if (!strcmp(severity, "warning"))
		return "\033[33m";
	return strcmp(severity, "ok") ? "" : "\033[32m";
}

const char *color_off(const struct ctl *c)
{
	return c->color ? "\033[0m" : "";
}
