/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/json.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* A struct json is a json_t: the type only keeps jansson's header out of everybody else's file. */
static json_t *in(const struct json *j)
{
	return (json_t *)(uintptr_t)j;
}

static struct json *out(json_t *j)
{
	CHECK(j);
	return (struct json *)j;
}

struct json *json_object_new(void)
{
	return out(json_object());
}

struct json *json_array_new(void)
{
	return out(json_array());
}

void json_free(struct json *j)
{
	json_decref(in(j));
}

void json_put(struct json *obj, const char *key, struct json *value)
{
	CHECK(json_object_set_new(in(obj), key, in(value)) == 0);
}

void json_drop(struct json *obj, const char *key)
{
	json_object_del(in(obj), key);
}

static json_t *make_string(const char *s)
{
	json_t *j = s ? json_string(s) : json_null();

	/* Bytes that are not UTF-8 come from outside (a host name, an error text): show, not fail.
	 */
	return j ? j : json_string("(not UTF-8)");
}

void json_put_str(struct json *obj, const char *key, const char *value)
{
	json_put(obj, key, out(make_string(value)));
}

void json_put_u64(struct json *obj, const char *key, uint64_t value)
{
	json_put(obj, key, out(json_integer((json_int_t)value)));
}

void json_put_i64(struct json *obj, const char *key, int64_t value)
{
	json_put(obj, key, out(json_integer(value)));
}

void json_put_bool(struct json *obj, const char *key, bool value)
{
	json_put(obj, key, out(json_boolean(value)));
}

void json_put_real(struct json *obj, const char *key, double value)
{
	json_put(obj, key, out(json_real(value)));
}

void json_add(struct json *arr, struct json *value)
{
	CHECK(json_array_append_new(in(arr), in(value)) == 0);
}

void json_append(struct json *arr, struct json *more)
{
	if (more)
		CHECK(json_array_extend(in(arr), in(more)) == 0);
	json_decref(in(more));
}

void json_add_str(struct json *arr, const char *value)
{
	json_add(arr, out(make_string(value)));
}

void json_add_u64(struct json *arr, uint64_t value)
{
	json_add(arr, out(json_integer((json_int_t)value)));
}

void json_add_i64(struct json *arr, int64_t value)
{
	json_add(arr, out(json_integer(value)));
}

const struct json *json_get(const struct json *obj, const char *key)
{
	return (const struct json *)json_object_get(in(obj), key);
}

const char *json_str(const struct json *obj, const char *key)
{
	return json_string_value(json_object_get(in(obj), key));
}

bool json_take_str(const struct json *obj, const char *key, char *out, size_t cap)
{
	const char *s = json_str(obj, key);

	if (!s || strlen(s) >= cap)
		return false;
	memcpy(out, s, strlen(s) + 1);
	return true;
}

uint64_t json_u64(const struct json *obj, const char *key, uint64_t dflt)
{
	return json_as_u64(json_get(obj, key), dflt);
}

int64_t json_i64(const struct json *obj, const char *key, int64_t dflt)
{
	json_t *j = json_object_get(in(obj), key);

	return json_is_integer(j) ? json_integer_value(j) : dflt;
}

double json_get_real(const struct json *obj, const char *key, double dflt)
{
	json_t *j = json_object_get(in(obj), key);

	return json_is_number(j) ? json_number_value(j) : dflt;
}

bool json_bool(const struct json *obj, const char *key, bool dflt)
{
	json_t *j = json_object_get(in(obj), key);

	return json_is_boolean(j) ? json_is_true(j) : dflt;
}

bool json_has(const struct json *obj, const char *key)
{
	return json_object_get(in(obj), key) != NULL;
}

bool json_has_null(const struct json *obj, const char *key)
{
	return json_is_null(json_object_get(in(obj), key));
}

size_t json_len(const struct json *arr)
{
	return json_array_size(in(arr));
}

const struct json *json_at(const struct json *arr, size_t i)
{
	return (const struct json *)json_array_get(in(arr), i);
}

const char *json_as_str(const struct json *j)
{
	return json_string_value(in(j));
}

uint64_t json_as_u64(const struct json *j, uint64_t dflt)
{
	if (!json_is_integer(in(j)) || json_integer_value(in(j)) < 0)
		return dflt;
	return (uint64_t)json_integer_value(in(j));
}

int64_t json_as_i64(const struct json *j, int64_t dflt)
{
	return json_is_integer(in(j)) ? json_integer_value(in(j)) : dflt;
}

void *json_members(const struct json *obj)
{
	return json_object_iter(in(obj));
}

void *json_members_next(const struct json *obj, void *it)
{
	return json_object_iter_next(in(obj), it);
}

const char *json_member_key(void *it)
{
	return json_object_iter_key(it);
}

const struct json *json_member_value(void *it)
{
	return (const struct json *)json_object_iter_value(it);
}

struct json *json_parse(const char *text, size_t len, char *err, size_t err_cap)
{
	json_error_t e;
	json_t *j = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);

	if (!j && err_cap)
		snprintf(err, err_cap, "line %d: %s", e.line, e.text);
	return (struct json *)j;
}

char *json_print(const struct json *j, bool pretty)
{
	char *s = json_dumps(in(j), JSON_ENCODE_ANY | (pretty ? JSON_INDENT(2) : JSON_COMPACT));

	CHECK(s);
	return s;
}

struct json *json_dup(const struct json *j)
{
	return out(json_deep_copy(in(j)));
}
